"""Data sets that are folders of image files: Tiny ImageNet, as its archive unpacks."""

import os
import pathlib
import re
from collections.abc import Sequence

import numpy as np

_IMAGE_SHAPE = (64, 64, 3)
_BATCH = 256  # images that leave the pipeline at a time: 3 MB


class ImageFolderError(ValueError):
    """A folder of images is damaged or incomplete; the message names the file."""


def find_tiny_imagenet(data_dir: str | os.PathLike) -> pathlib.Path | None:
    """The folder of Tiny ImageNet: `data_dir`/tiny-imagenet-200, `data_dir` itself, or `None`."""
    data_dir = pathlib.Path(data_dir).expanduser()
    for folder in (data_dir / "tiny-imagenet-200", data_dir):
        if (folder / "wnids.txt").exists():
            return folder
    return None


def read_tiny_imagenet(folder: pathlib.Path) -> tuple[np.ndarray, np.ndarray, int, int]:
    """Reads Tiny ImageNet from the layout of its archive, tiny-imagenet-200.zip.

    wnids.txt has the ids of the classes, one a line. Training images are
    train/ID/images/ID_NUMBER.JPEG. Validation images are val/images/val_NUMBER.JPEG;
    val/val_annotations.txt has a line of each, FILE, ID and a bounding box, separated by tabs. The
    images in test/ have no labels and are not read, and boxes are not used.

    Args:
        folder: The folder that holds wnids.txt.

    Returns:
        `(x, y, num_classes, num_train)`, with
        x: uint8 `[n, 64, 64, 3]`; a grey image has three equal channels.
        y: int32 `[n]`; the class number of an id is its place among the sorted ids, which is not
            its place in wnids.txt.
        num_classes: Number of ids in wnids.txt.
        num_train: The first `num_train` rows are the training images by class, then by number in
            the file name; the rest are the validation images by number.

    Raises:
        ImageFolderError: A text file is missing, empty or malformed; an id is there twice; a
            class has no training images, or not as many as the others; an annotation is of an
            unknown class, or of a file that is missing or has another annotation; a validation
            image has no annotation; an image cannot be decoded or is not of 64x64 pixels.
    """
    ids = _read_ids(folder / "wnids.txt")
    train = [_train_images(folder, i) for i in ids]
    for i, paths in zip(ids, train, strict=True):
        if len(paths) != len(train[0]):
            raise ImageFolderError(
                f"{_images(folder, i)} has {len(paths)} training images, "
                f"{_images(folder, ids[0])} has {len(train[0])}: all classes of Tiny ImageNet have "
                "the same number. Unpack the archive again."
            )
    val_paths, val_labels = _read_annotations(folder, {i: label for label, i in enumerate(ids)})
    train_labels = np.repeat(np.arange(len(ids)), len(train[0]))
    paths = [path for of_class in train for path in of_class] + val_paths
    y = np.concatenate([train_labels, val_labels]).astype(np.int32)
    return read_images(paths, _IMAGE_SHAPE), y, len(ids), len(train_labels)


def read_images(paths: Sequence[str], shape: tuple[int, int, int]) -> np.ndarray:
    """Reads and decodes JPEG files, on all cores.

    Args:
        paths: n files.
        shape: (height, width, channels) that all images have; channels is 1 or 3, to which grey
            and coloured images are converted.

    Returns:
        uint8 `[n, height, width, channels]`, in the order of `paths`.

    Raises:
        ImageFolderError: A file cannot be decoded, or its image has another height or width.
    """
    import tensorflow as tf

    def decode(path):
        # TensorFlow's default, a faster transform, is a few grey levels off what others decode.
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
    except tf.errors.OpError:
        # The pipeline does not say which file it was: look at those that did not come out.
        for path in paths[done:]:
            _check_image(path, shape, decode)
        raise
    return images


def _check_image(path, shape, decode):
    """Raises the error of a file that cannot be decoded to `shape`."""
    import tensorflow as tf

    height, width, _ = shape
    try:
        found = decode(path).shape
    except tf.errors.OpError as error:
        size = f"{os.path.getsize(path)} bytes" if os.path.exists(path) else "missing"
        raise ImageFolderError(
            f"{path} ({size}) cannot be decoded: it must be a complete JPEG image of "
            f"{height}x{width} pixels. Unpack the archive again."
        ) from error
    if found != shape:
        raise ImageFolderError(
            f"{path} is an image of {found[0]}x{found[1]} pixels (height x width): it must be of "
            f"{height}x{width}."
        )


def _images(folder, class_id):
    return folder / "train" / class_id / "images"


def _read_lines(path, content):
    """The lines of a text file that are not blank, with their numbers."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ImageFolderError(
            f"{path} cannot be read ({error}): it must be a text file with {content}."
        ) from error
    lines = [(n, line) for n, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines:
        raise ImageFolderError(f"{path} is empty: it must have {content}.")
    return lines


def _read_ids(path):
    """The ids of the classes, sorted."""
    first = {}
    for number, line in _read_lines(path, "the id of a class in each line, such as n01443537"):
        class_id = line.strip()
        if not re.fullmatch(r"\w+", class_id):
            raise ImageFolderError(
                f"{path}, line {number}: {class_id!r} is not the id of a class, such as n01443537."
            )
        if class_id in first:
            raise ImageFolderError(
                f"{path}, line {number}: {class_id!r} is already in line {first[class_id]}; each "
                "class must be there once."
            )
        first[class_id] = number
    return sorted(first)


def _numbered_files(folder, prefix):
    """The names of PREFIX_NUMBER.JPEG in a folder, in the order of their numbers."""
    names = os.listdir(folder) if folder.is_dir() else []
    matches = filter(None, (re.fullmatch(rf"{prefix}_(\d+)\.JPEG", name) for name in names))
    return [match[0] for match in sorted(matches, key=lambda match: (int(match[1]), match[0]))]


def _train_images(folder, class_id):
    images = _images(folder, class_id)
    names = _numbered_files(images, class_id)
    if not names:
        raise ImageFolderError(
            f"{images} has no training images of class {class_id!r} of {folder / 'wnids.txt'}: "
            f"there must be {class_id}_0.JPEG and so on."
        )
    return [str(images / name) for name in names]


def _read_annotations(folder, labels):
    """(paths, labels) of the validation images, in the order of their numbers."""
    path = folder / "val" / "val_annotations.txt"
    images = folder / "val" / "images"
    names = _numbered_files(images, "val")
    there = set(names)
    label_of = {}
    content = "a validation image in each line, as in val_0.JPEG<tab>n03444034<tab>0<tab>32<tab>..."
    for number, line in _read_lines(path, content):
        where = f"{path}, line {number}"
        name, *rest = line.split("\t")
        if not rest:
            raise ImageFolderError(f"{where}: {line!r} has no tab. There must be {content}.")
        class_id = rest[0].strip()
        if class_id not in labels:
            raise ImageFolderError(
                f"{where}: class {class_id!r} of {name!r} is not in {folder / 'wnids.txt'}."
            )
        if name in label_of:
            raise ImageFolderError(f"{where}: {name!r} has an annotation already; one is right.")
        if name not in there:
            raise ImageFolderError(
                f"{where}: {images / name} is missing: validation images must lie in one folder, "
                "as the archive unpacks them, named val_0.JPEG and so on."
            )
        label_of[name] = labels[class_id]
    for name in names:
        if name not in label_of:
            raise ImageFolderError(f"{images / name} has no line in {path}; each image needs one.")
    return [str(images / name) for name in names], [label_of[name] for name in names]
