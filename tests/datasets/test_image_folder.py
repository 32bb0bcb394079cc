"""Tests reading Tiny ImageNet, from a folder with the archive's layout and 3 classes."""

import numpy as np
import pytest
import tensorflow as tf

from tff_pfl.datasets import image_folder, sources
from tff_pfl.datasets.sources import DataNotFoundError

IDS = ["n03000000", "n01000000", "n02000000"]  # not sorted, as in the archive
NUMBERS = [10, 0, 9, 1]
VAL = {11: "n02000000", 2: "n03000000", 10: "n01000000", 9: "n03000000", 0: "n01000000"}
GREY = "train/n01000000/images/n01000000_1.JPEG"


def picture(seed, shape=(64, 64, 3)):
    """Returns a smooth image, which JPEG hardly changes and no other seed has."""
    rows, columns = np.mgrid[: shape[0], : shape[1]] / 64
    slopes = np.random.default_rng(seed).uniform(20, 100, (2, shape[2]))
    image = 30 + rows[..., None] * slopes[0] + columns[..., None] * slopes[1]
    return np.rint(image).astype(np.uint8)


def seed_of(class_id, number):
    return [int(class_id[1:]), number]


def write(path, image):
    path.parent.mkdir(parents=True, exist_ok=True)
    tf.io.write_file(str(path), tf.io.encode_jpeg(image, quality=100))


@pytest.fixture
def folder(tmp_path):
    """The folder tiny-imagenet-200, whose parent is passed as data_dir."""
    folder = tmp_path / "tiny-imagenet-200"
    for i in IDS:
        for k in NUMBERS:
            image = picture(seed_of(i, k))
            path = folder / "train" / i / "images" / f"{i}_{k}.JPEG"
            write(path, image[..., :1] if path == folder / GREY else image)
        (folder / "train" / i / f"{i}_boxes.txt").write_text(f"{i}_0.JPEG\t0\t10\t63\t58\n")
    (folder / "train" / IDS[0] / "images" / f"._{IDS[0]}_0.JPEG").write_text("not an image")
    for k in VAL:
        write(folder / "val" / "images" / f"val_{k}.JPEG", picture(seed_of("n99", k)))
    write(folder / "test" / "images" / "test_0.JPEG", picture(5))
    (folder / "wnids.txt").write_text("".join(f"{i}\n" for i in IDS))
    lines = [f"val_{k}.JPEG\t{i}\t0\t32\t44\t62\n" for k, i in VAL.items()]
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))
    return folder


def test_load_returns_images_and_labels_in_order(folder):
    images = sources.load("tiny_imagenet", folder.parent)
    assert images.x.shape == (17, 64, 64, 3) and images.x.dtype == np.uint8
    assert images.y.dtype == np.int32 and images.writer is None
    assert (images.num_classes, images.num_train, images.name) == (3, 12, "tiny_imagenet")
    # Training images by class in sorted order of ids; then the validation images 0, 2, 9, 10, 11.
    assert images.y.tolist() == [0] * 4 + [1] * 4 + [2] * 4 + [0, 2, 2, 0, 1]
    seeds = [seed_of(i, k) for i in sorted(IDS) for k in (0, 1, 9, 10)]
    seeds += [seed_of("n99", k) for k in sorted(VAL)]
    expected = np.stack([picture(seed) for seed in seeds])
    expected[1] = expected[1, ..., :1]  # GREY: three equal channels
    assert np.abs(images.x.astype(int) - expected).max() <= 4
    assert (images.x[1, ..., :1] == images.x[1]).all()
    # The images differ by more than that, so that a swap of two would be found.
    distances = np.abs(expected[:, None].astype(int) - expected).max(axis=(2, 3, 4))
    assert distances[~np.eye(17, dtype=bool)].min() > 8


def test_load_finds_the_folder(folder, monkeypatch):
    monkeypatch.delenv("TFDS_DATA_DIR", raising=False)
    first = sources.load("tiny_imagenet", folder)
    renamed = folder.rename(folder.parent / "tiny")
    second = sources.load("tiny_imagenet", str(renamed))
    monkeypatch.setenv("TFDS_DATA_DIR", str(renamed))
    third = sources.load("tiny_imagenet")
    monkeypatch.setenv("TFDS_DATA_DIR", "~")
    monkeypatch.setenv("HOME", str(renamed.rename(folder).parent))
    for images in (second, third, sources.load("tiny_imagenet")):
        np.testing.assert_array_equal(images.x, first.x)
        np.testing.assert_array_equal(images.y, first.y)


def test_missing_folder_is_reported(tmp_path, monkeypatch):
    message = f"'tiny_imagenet' is not in {tmp_path}.* tiny-imagenet-200.zip.*data_dir.*TFDS_DATA_D"
    with pytest.raises(DataNotFoundError, match=message):
        sources.load("tiny_imagenet", tmp_path)
    monkeypatch.delenv("TFDS_DATA_DIR", raising=False)
    with pytest.raises(DataNotFoundError, match="is not in any folder"):
        sources.load("tiny_imagenet")


def test_error_names_the_image_that_cannot_be_read(folder):
    def expect(path, found):
        message = rf"^{path} must be a complete JPEG image of shape \(64, 64, 3\), found {found}"
        with pytest.raises(ValueError, match=message):
            sources.load("tiny_imagenet", folder)

    # The message names the first bad image in the order of rows; each below precedes the last.
    path = folder / "val/images/val_10.JPEG"
    write(path, picture(0, (32, 48, 3)))
    expect(path, r"\(32, 48, 3\)")
    path = folder / "val/images/val_9.JPEG"
    path.write_bytes(path.read_bytes()[:500])
    expect(path, "a file that cannot be decoded")
    path = folder / "train/n02000000/images/n02000000_9.JPEG"
    path.write_bytes(b"")
    expect(path, "a file that cannot be decoded")


def test_read_images_converts_colour_to_grey(folder):
    paths = [str(folder / "train" / i / "images" / f"{i}_{k}.JPEG") for i in IDS for k in NUMBERS]
    colour = image_folder.read_images(paths, (64, 64, 3))
    many = image_folder.read_images(paths * 25, (64, 64, 3))  # in batches of 256
    np.testing.assert_array_equal(many, np.tile(colour, (25, 1, 1, 1)))
    grey = image_folder.read_images(paths, (64, 64, 1))
    luma = colour @ np.array([0.299, 0.587, 0.114])  # JPEG's luma
    assert np.abs(grey[..., 0] - luma).max() <= 3
    assert image_folder.read_images([], (64, 64, 3)).shape == (0, 64, 64, 3)


def test_image_with_two_classes_is_refused(folder):
    with open(folder / "val" / "val_annotations.txt", "a") as file:
        file.write(f"val_2.JPEG\t{IDS[0]}\nval_2.JPEG\t{IDS[1]}\n")
    with pytest.raises(ValueError, match="one line.* for each image.*'val_2.JPEG' is wrong"):
        sources.load("tiny_imagenet", folder)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("wnids.txt", b"\xff\xfe\x00", r"wnids\.txt cannot be read .*utf-8"),
        ("wnids.txt", b" \n\n", r"train must have the same number .*, found {}"),
        ("train/n01000000/images/n01000000_2.JPEG", b"", "found {'n01000000': 5, 'n02000000': 4, "),
        ("val/val_annotations.txt", b"val_0.JPEG\tn07000000\t0\n", "'val_0.JPEG' is wrong"),
        ("val/val_annotations.txt", b"val_0.JPEG n01000000\n", "'val_0.JPEG' is wrong"),
        ("val/images/val_9.JPEG", None, "'val_9.JPEG' is wrong"),
        ("val/val_annotations.txt", None, r"val_annotations\.txt cannot be read .*No such file"),
    ],
)
def test_contradictory_files_are_refused(file, content, message, folder):
    path = folder / file
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"^{folder}/.*{message}"):
        sources.load("tiny_imagenet", folder)
