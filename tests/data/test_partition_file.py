"""Saved partitions: complete or not there, and never mistaken for another's."""

import json

import numpy as np
import pytest

from tff_pfl.data.federated_dataset import FederatedDataset, federate
from tff_pfl.data.partition import PartitionError
from tff_pfl.data.partition_file import SPLITS, Partition, PartitionFileError
from tff_pfl.data.sources import LabelledImages

LABELS = (np.arange(60) % 3).astype(np.int32)
IMAGES = LabelledImages("toy", np.zeros((60, 2, 2, 1), np.uint8), LABELS, 3, 50)


def make():
    args = {"alpha": np.float64(1.0), "min_examples": np.int64(2)}
    return federate(
        IMAGES, num_clients=4, partitioner="dirichlet", partition_args=args, seed=7
    ).partition


def arrays(*sizes):
    return tuple(np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1]))


def test_save_and_load(tmp_path):
    partition = make()
    partition.save(tmp_path / "p.npz")
    loaded = Partition.load(tmp_path / "p.npz", LABELS)
    assert loaded.num_clients == 4
    for split in SPLITS:
        for a, b in zip(getattr(partition, split), getattr(loaded, split), strict=True):
            np.testing.assert_array_equal(a, b)
    assert loaded.metadata["dataset"] == "toy"
    spec = loaded.metadata["spec"]
    assert spec["partition_args"] == {"alpha": 1.0, "min_examples": 2}
    assert (spec["seed"], spec["partitioner"], spec["num_clients"]) == (7, "dirichlet", 4)
    assert [path.name for path in tmp_path.iterdir()] == ["p.npz"]


def test_labels_of_another_data_set_are_refused(tmp_path):
    make().save(tmp_path / "p.npz")
    Partition.load(tmp_path / "p.npz", LABELS.astype(np.int64))
    with pytest.raises(PartitionFileError, match=r"made for other labels \(data set 'toy'"):
        Partition.load(tmp_path / "p.npz", LABELS[::-1])


def test_damage_is_named(tmp_path):
    path = tmp_path / "p.npz"
    make().save(path)
    good = path.read_bytes()
    middle = len(good) // 2
    foreign = {"empty": b"", "text": b"hello", "short": good[:middle]}
    foreign["flipped"] = good[:60] + bytes([good[60] ^ 255]) + good[61:]
    for name, content in foreign.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(PartitionFileError, match="is not a partition"):
            Partition.load(tmp_path / name)
    np.save(tmp_path / "array.npy", np.arange(3))
    np.savez(tmp_path / "other.npz", x=np.arange(3))
    np.savez(tmp_path / "version.npz", format="tff_pfl.data.Partition/0")
    for name in ("array.npy", "other.npz", "version.npz"):
        with pytest.raises(PartitionFileError, match="is not a partition"):
            Partition.load(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        Partition.load(tmp_path / "none.npz")


def test_offsets_that_do_not_fit_are_damage(tmp_path):
    partition = make()
    flat = partition.flat()
    flat["train_offsets"] = flat["train_offsets"] + 1
    content = {"format": "tff_pfl.data.Partition/1", "metadata": json.dumps({})}
    np.savez(tmp_path / "p.npz", **content, **flat)
    with pytest.raises(PartitionFileError, match="offsets do not fit"):
        Partition.load(tmp_path / "p.npz")


def test_a_save_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "p.npz"
    make().save(path)
    old = path.read_bytes()

    def fail(file, **content):
        file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez_compressed", fail)
    with pytest.raises(OSError, match="disk full"):
        make().save(path)
    assert path.read_bytes() == old
    assert [p.name for p in tmp_path.iterdir()] == ["p.npz"]


def test_splits_of_different_numbers_of_clients():
    with pytest.raises(PartitionError, match=r"'train': 2, 'validation': 1, 'test': 2"):
        Partition(arrays(1, 1), arrays(0), arrays(1, 1))


def test_rows_exist_and_are_used_once():
    none = arrays(0, 0)
    with pytest.raises(PartitionError, match=r"Client 1, test: rows 4..5 .* within 0..4"):
        Partition(none, none, (np.array([0]), np.array([4, 5]))).check(5)
    with pytest.raises(PartitionError, match=r"Client 0, train: rows -1..-1"):
        Partition((np.array([-1]), none[0]), none, none).check(5)
    leak = Partition((np.array([0, 3]), none[0]), none, (none[0], np.array([3])))
    with pytest.raises(PartitionError, match=r"Row 3 .* 2 times: by client 0 \(train\), client 1"):
        FederatedDataset(IMAGES.x, IMAGES.y, 3, leak)
