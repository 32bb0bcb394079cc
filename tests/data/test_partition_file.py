"""Tests that saved partitions are complete and are used with the right data set only."""

import numpy as np
import pytest

from tff_pfl.data import FederatedDataset, federate
from tff_pfl.data.labelled_images import LabelledImages
from tff_pfl.data.partition import PartitionError
from tff_pfl.data.partition_file import SPLITS, Partition, PartitionFileError

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


def test_damaged_and_foreign_files_are_refused(tmp_path):
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
    for name in ("array.npy", "other.npz"):
        with pytest.raises(PartitionFileError, match="is not a partition"):
            Partition.load(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        Partition.load(tmp_path / "none.npz")


def write(path, **changes):
    """Writes a partition in which `changes` replace some arrays."""
    content = {"format": "tff_pfl.data.Partition/1", "metadata": "{}", **make().flat()}
    np.savez(path, **content | changes)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"train_offsets": [0, 2, 1, 3, 3]}, "The offsets do not fit"),
        ({"train": np.zeros(40)}, r"rows must be integers of shape .*, got float64"),
        ({"test": np.array([None])}, "Object arrays cannot be loaded"),
        ({"metadata": "{"}, "Expecting property name"),
        ({"format": "tff_pfl.data.Partition/0"}, "its format is"),
    ],
    ids=range(5),
)
def test_wrong_content_is_refused(tmp_path, changes, reason):
    path = tmp_path / "p.npz"
    write(path, **changes)
    with pytest.raises(PartitionFileError, match=f"{path} is not a partition .*{reason}"):
        Partition.load(path)


def test_load_accepts_other_integer_types_and_no_clients(tmp_path):
    flat = make().flat()
    write(tmp_path / "p.npz", train=flat["train"].astype(np.uint8))
    loaded = Partition.load(tmp_path / "p.npz", LABELS)
    assert [rows.tolist() for rows in loaded.train] == [rows.tolist() for rows in make().train]
    Partition((), (), ()).save(tmp_path / "empty.npz")
    assert Partition.load(tmp_path / "empty.npz").num_clients == 0


NONE = arrays(0, 0)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ((arrays(1, 1), arrays(0), arrays(1, 1)), "'train': 2, 'validation': 1, 'test': 2"),
        ((NONE, NONE, ([0], [4, 60])), r"Client 1, test: rows 4..60 .* within 0..59"),
        ((([-1], []), NONE, NONE), r"Client 0, train: rows -1..-1"),
        ((([0, 3], []), NONE, ([], [3])), r"Row 3 .* 2 times: by client 0 \(train\), client 1"),
    ],
)
def test_rows_must_exist_and_be_used_once(parts, message):
    with pytest.raises(PartitionError, match=message):
        FederatedDataset(IMAGES.x, IMAGES.y, 3, Partition(*parts))


def test_error_for_missing_rows_names_the_file(tmp_path):
    write(tmp_path / "q.npz", train=make().flat()["train"] + 1000)
    with pytest.raises(PartitionFileError, match="q.npz: Client 0, train: rows 10"):
        Partition.load(tmp_path / "q.npz", LABELS)


def test_selection_from_a_selection_records_the_original_ids():
    rows = [[0], [1], [2], [3]]
    none = [[]] * 4
    some = Partition(rows, none, none).of([3, 1, 2]).of([2, 0])
    assert [list(part) for part in some.train] == [[2], [3]]
    assert some.metadata["clients"] == [2, 3]
