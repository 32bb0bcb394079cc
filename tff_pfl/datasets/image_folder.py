"""Reads data sets that are folders of image files: Tiny ImageNet, from its unpacked archive."""

import os
import pathlib
import re
from collections.abc import Sequence

import numpy as np

_IMAGE_SHAPE = (64, 64, 3)
_BATCH = 256  # images that the pipeline returns at a time: 3 MB


def find_tiny_imagenet(data_dir: str | os.PathLike) -> pathlib.Path | None:
    """Returns the folder that holds wnids.txt, `data_dir`/tiny-imagenet-200 or `data_dir`.

    Returns `None` if neither does.
    """
    data_dir = pathlib.Path(data_dir).expanduser()
    for folder in (data_dir / "tiny-imagenet-200", data_dir):
        if (folder / "wnids.txt").exists():
            return folder
    return None


def read_tiny_imagenet(folder: pathlib.Path) -> tuple[np.ndarray, np.ndarray, int, int]:
    """Reads Tiny ImageNet from the layout of its archive, tiny-imagenet-200.zip.

    wnids.txt has the ids of the classes, one a line. Training images are
    train/ID/images/ID_NUMBER.JPEG. Validation images are val/images/val_NUMBER.JPEG;
    val/val_annotations.txt has a line for each: FILE, ID and a bounding box, separated by tabs.
    Boxes are ignored, and so are the images in test/, which have no labels.

    Args:
        folder: The folder that holds wnids.txt.

    Returns:
        `(x, y, num_classes, num_train)`, with
        x: uint8 `[n, 64, 64, 3]`; a grey image has three equal channels.
        y: int32 `[n]`; the label of an id is its position among the sorted ids, not its position
            in wnids.txt.
        num_classes: The number of ids in wnids.txt.
        num_train: The first `num_train` rows are the training images, sorted by class, then by the
            number in the file name. The rest are the validation images, sorted by number.

    Raises:
        ValueError: A text file is missing or malformed; classes have no training images, or
            different numbers of them; a validation image is missing, has no annotation or
            contradictory annotations; an image cannot be decoded or does not have 64x64 pixels.
    """
    ids = sorted(set(_read(folder / "wnids.txt").split()))
    of_class = [_numbered_files(folder / "train" / i / "images", i) for i in ids]
    numbers = {class_id: len(files) for class_id, files in zip(ids, of_class, strict=True)}
    if len(set(numbers.values())) != 1 or 0 in numbers.values():
        raise ValueError(
            f"{folder / 'train'} must have the same number of training images for each class of "
            f"{folder / 'wnids.txt'}, found {numbers!s:.200}. Unpack the archive again."
        )
    paths = [path for files in of_class for path in files]
    labels = np.repeat(np.arange(len(ids)), len(of_class[0]))
    val_paths = _numbered_files(folder / "val" / "images", "val")
    val_labels = _val_labels(folder / "val" / "val_annotations.txt", val_paths, ids)
    y = np.concatenate([labels, val_labels]).astype(np.int32)
    return read_images(paths + val_paths, _IMAGE_SHAPE), y, len(ids), len(labels)


def read_images(paths: Sequence[str], shape: tuple[int, int, int]) -> np.ndarray:
    """Reads and decodes JPEG files, on all cores.

    Args:
        paths: n files.
        shape: The (height, width, channels) of all images; channels is 1 or 3, and grey and
            coloured images are converted to it.

    Returns:
        uint8 `[n, height, width, channels]`, in the order of `paths`.

    Raises:
        ValueError: A file cannot be decoded, or its image has another height or width.
    """
    import tensorflow as tf

    def decode(path):
        # TensorFlow's faster default differs from other decoders by a few grey levels.
        return tf.io.decode_jpeg(
            tf.io.read_file(path), channels=shape[-1], dct_method="INTEGER_ACCURATE"
        )

    batches = (
        tf.data.Dataset.from_tensor_slices(tf.constant(paths, tf.string))
        .map(
            lambda path: tf.ensure_shape(decode(path), shape),
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=True,
        )
        .batch(_BATCH)
    )
    images = np.empty((len(paths), *shape), np.uint8)
    done = 0
    try:
        for batch in batches.as_numpy_iterator():
            images[done : done + len(batch)] = batch
            done += len(batch)
    except tf.errors.OpError as error:
        # The error does not name the file, so decode the remaining files one by one.
        for path in paths[done:]:
            try:
                found = str(tuple(decode(path).shape))
            except tf.errors.OpError:
                found = "a file that cannot be decoded"
            if found != str(shape):
                raise ValueError(
                    f"{path} must be a complete JPEG image of shape {shape}, found {found}. Unpack "
                    "the archive again."
                ) from error
        raise
    return images


def _read(path: pathlib.Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read ({error}). Unpack the archive again.") from error


def _numbered_files(folder: pathlib.Path, prefix: str) -> list[str]:
    """Lists the files PREFIX_NUMBER.JPEG in a folder, in the order of their numbers."""
    names = os.listdir(folder) if folder.is_dir() else []
    matches = filter(None, (re.fullmatch(rf"{prefix}_(\d+)\.JPEG", name) for name in names))
    return [str(folder / match[0]) for match in sorted(matches, key=lambda m: int(m[1]))]


def _val_labels(path: pathlib.Path, val_paths: list[str], ids: list[str]) -> list[int]:
    """Returns the class numbers of the validation images."""
    lines = (line.split("\t") for line in _read(path).splitlines() if line.strip())
    annotated = [(name, rest[0].strip() if rest else "") for name, *rest in lines]
    class_of = dict(annotated)
    names = list(map(os.path.basename, val_paths))
    label_of = {class_id: label for label, class_id in enumerate(ids)}
    wrong = [
        *(name for name in names if class_of.get(name) not in label_of),
        *(class_of.keys() - {*names}),
        *(name for name, class_id in annotated if class_of[name] != class_id),  # annotated twice
    ]
    if wrong:
        raise ValueError(
            f"{path} must have exactly one line, with a class of wnids.txt, for each image in "
            f"{path.parent / 'images'}, and no other lines; {wrong[0]!r} is wrong. Unpack the "
            "archive again."
        )
    return [label_of[class_of[name]] for name in names]
