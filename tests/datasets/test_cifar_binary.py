"""Tests reading CIFAR's binary files, with small files of the same layout."""

import numpy as np
import pytest

from tests.runs import tiny_config
from tff_pfl.config import ConfigError, build_dataset
from tff_pfl.datasets import DataNotFoundError, sources
from tff_pfl.datasets.cifar_binary import CIFAR10, CIFAR100, read_cifar

SMALL10 = CIFAR10._replace(num_records=(2, 3))
SMALL100 = CIFAR100._replace(num_records=(6, 4))


def images_and_labels(layout, seed=0):
    """Returns `(x, labels)` of all files together, with `x` as `read_cifar` returns it."""
    of_train, of_test = layout.num_records
    number = of_train * len(layout.train) + of_test
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 256, [number, 32, 32, 3], np.uint8)
    return x, [rng.integers(0, classes, number, np.uint8) for classes in layout.num_labels]


def write(folder, layout, x, labels):
    """Writes the files byte by byte, in the publisher's format."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = iter(range(len(x)))
    of_train, of_test = layout.num_records
    files = [(name, of_train) for name in layout.train] + [(layout.test, of_test)]
    for name, number in files:
        content = bytearray()
        for _, row in zip(range(number), rows, strict=False):
            content += bytes(column[row] for column in labels)
            for channel in range(3):
                content += x[row, :, :, channel].tobytes()
        (folder / name).write_bytes(content)


@pytest.fixture
def small_files(monkeypatch):
    """Makes the sources expect files of a few images."""
    monkeypatch.setattr(sources, "CIFAR10", SMALL10)
    monkeypatch.setattr(sources, "CIFAR100", SMALL100)


@pytest.mark.parametrize(
    ("name", "layout", "num_train"),
    [("cifar10_binary", SMALL10, 10), ("cifar100_binary", SMALL100, 6)],
)
def test_load_keeps_the_order_of_the_files(
    small_files, tmp_path, monkeypatch, name, layout, num_train
):
    x, labels = images_and_labels(layout)
    write(tmp_path / layout.folder, layout, x, labels)
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    # The parent of the archive's folder, the folder itself, or TFDS_DATA_DIR.
    for data_dir in (tmp_path, tmp_path / layout.folder, None):
        images = sources.load(name, data_dir)
        np.testing.assert_array_equal(images.x, x)
        np.testing.assert_array_equal(images.y, labels[-1])
    assert images.x.dtype == np.uint8 and images.y.dtype == np.int32
    assert images.x.flags.c_contiguous
    assert (images.name, images.num_train) == (name, num_train)
    assert images.num_classes == {"cifar10_binary": 10, "cifar100_binary": 100}[name]


def test_sizes_of_the_publishers_files_are_expected(tmp_path):
    with pytest.raises(ValueError, match="data_batch_1.bin has 0 bytes, .* have 30,730,000: 10"):
        read_cifar(tmp_path, CIFAR10)
    with pytest.raises(ValueError, match="train.bin has 0 bytes, but must have 153,700,000: 50"):
        read_cifar(tmp_path, CIFAR100)


def test_file_of_another_size_raises_a_config_error(small_files, tmp_path):
    write(tmp_path, SMALL100, *images_and_labels(SMALL100))
    path = tmp_path / "test.bin"
    path.write_bytes(path.read_bytes()[:-1])
    config = tiny_config()
    config.data.update(name="cifar100_binary", data_dir=str(tmp_path))
    with pytest.raises(ConfigError, match=f"config.data: {path} has 12,295 bytes"):
        build_dataset(config)


@pytest.mark.parametrize(("byte", "label"), [(0, 20), (1, 100)])
def test_labels_out_of_range_are_refused(tmp_path, byte, label):
    write(tmp_path, SMALL100, *images_and_labels(SMALL100))
    path = tmp_path / "train.bin"
    content = bytearray(path.read_bytes())
    content[2 * 3074 + byte] = label
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"train.bin, record 2: label {label} is out of range"):
        read_cifar(tmp_path, SMALL100)


def test_missing_files_are_reported(tmp_path):
    with pytest.raises(DataNotFoundError, match="'cifar100_binary'"):
        sources.load("cifar100_binary", tmp_path)
