"""Reads CIFAR-10 and CIFAR-100 from the unpacked "binary version" of their publisher.

A file is a sequence of records without a header. A record has one byte for each label, then the
3,072 bytes of an image: its red, green and blue channel, each of 32 rows of 32 pixels.
"""

import os
import pathlib
from typing import NamedTuple

import numpy as np

_SHAPE = (3, 32, 32)  # of an image as it is stored
_NUM_PIXELS = 3 * 32 * 32


class CifarLayout(NamedTuple):
    """The layout of the files of CIFAR-10 or CIFAR-100.

    Attributes:
        folder: The folder to which the archive unpacks.
        train: The files of the training split, in order.
        test: The file of the test split.
        num_records: The numbers of images in each training file and in the test file.
        num_labels: The number of classes of each label of a record; models learn the last label.
    """

    folder: str
    train: tuple[str, ...]
    test: str
    num_records: tuple[int, int]
    num_labels: tuple[int, ...]

    @property
    def num_classes(self) -> int:
        """The number of classes of the last label."""
        return self.num_labels[-1]

    def find(self, data_dir: str | os.PathLike) -> pathlib.Path | None:
        """Returns the folder of the files, `data_dir/folder` or `data_dir`; `None` if not found."""
        data_dir = pathlib.Path(data_dir).expanduser()
        for folder in (data_dir / self.folder, data_dir):
            if any((folder / name).exists() for name in (*self.train, self.test)):
                return folder
        return None


CIFAR10 = CifarLayout(
    "cifar-10-batches-bin",
    tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
    "test_batch.bin",
    num_records=(10_000, 10_000),
    num_labels=(10,),
)
CIFAR100 = CifarLayout(
    "cifar-100-binary",
    ("train.bin",),
    "test.bin",
    num_records=(50_000, 10_000),
    num_labels=(20, 100),  # coarse and fine
)


def read_cifar(folder: pathlib.Path, layout: CifarLayout) -> tuple[np.ndarray, np.ndarray, int]:
    """Reads all files.

    Args:
        folder: The folder of the files.
        layout: `CIFAR10` or `CIFAR100`.

    Returns:
        `(x, y, num_train)`, in the order of the files and of the images in them, with
        x: uint8 `[n, 32, 32, 3]`.
        y: int32 `[n]` classes, the fine classes for CIFAR-100.
        num_train: The first `num_train` rows are the training split, the rest the test split.

    Raises:
        ValueError: A file is missing or has another size, or a label is out of range.
    """
    of_train, of_test = layout.num_records
    num_train = of_train * len(layout.train)
    x = np.empty((num_train + of_test, 32, 32, 3), np.uint8)
    y = np.empty(len(x), np.int32)
    start = 0
    for name, number in [*((name, of_train) for name in layout.train), (layout.test, of_test)]:
        rows = slice(start, start + number)
        x[rows], y[rows] = _read(folder / name, number, layout)
        start += number
    return x, y, num_train


def _read(path, number, layout):
    """Returns the images and classes of a file."""
    size = len(layout.num_labels) + _NUM_PIXELS
    found = path.stat().st_size if path.is_file() else 0
    if found != number * size:
        raise ValueError(
            f"{path} has {found:,} bytes, but must have {number * size:,}: {number:,} records of "
            f"{size:,}. Unpack the archive again."
        )
    records = np.fromfile(path, np.uint8).reshape(number, size)
    labels, pixels = np.split(records, [len(layout.num_labels)], axis=1)
    wrong = np.argwhere(labels >= np.array(layout.num_labels))
    if len(wrong):
        raise ValueError(
            f"{path}, record {wrong[0, 0]}: label {labels[tuple(wrong[0])]} is out of range. "
            "Unpack the archive again."
        )
    return pixels.reshape(-1, *_SHAPE).transpose(0, 2, 3, 1), labels[:, -1]
