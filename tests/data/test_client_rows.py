"""Tests the rows of clients as slices of one array, in memory or on disk."""

import itertools
import os
import pathlib

import numpy as np
import pytest

from tests.marks import together
from tff_pfl.data import ClientRows, ExamplesError, FederatedDataset, Partition, PartitionError
from tff_pfl.data.checks import check_examples

PARTS = ([4, 2], [], [7], [0, 1, 9])


def test_client_rows_are_a_sequence_of_the_given_arrays():
    rows = ClientRows.of(PARTS)
    assert len(rows) == 4 and rows.rows.dtype == np.int64
    assert [own.tolist() for own in rows] == list(PARTS)
    assert [rows[i].tolist() for i in (0, 3, -1)] == [[4, 2], [0, 1, 9], [0, 1, 9]]
    assert [own.tolist() for own in rows[1:3]] == [[], [7]]
    assert [own.tolist() for own in reversed(rows)] == list(reversed(PARTS))
    assert rows.sizes.tolist() == [2, 0, 1, 3] and rows.sizes.dtype == np.int64
    assert [rows.client_of(place) for place in range(6)] == [0, 0, 2, 3, 3, 3]
    for index in (4, -5):
        with pytest.raises(IndexError, match=f"Client {index} does not exist: there are 4 clients"):
            rows[index]


@together("ids", [[], [2, 0, 1], range(4)])
def test_chosen_returns_the_rows_of_some_clients(ids):
    of_all = ClientRows.of(PARTS)
    found = ClientRows(of_all.rows.astype(np.uint64), of_all.offsets.astype(np.uint64)).chosen(ids)
    assert [own.tolist() for own in found] == [PARTS[i] for i in ids]


@together(
    ("make", "error", "message"),
    [
        (
            lambda: ClientRows(np.zeros(3), np.array([0, 3])),
            PartitionError,
            "rows must be integers",
        ),
        (lambda: ClientRows(np.arange(3), np.zeros(2)), PartitionError, "offsets must be"),
        (lambda: ClientRows(np.arange(3), np.array([0, 2])), PartitionError, "fit the 3 rows"),
        (
            lambda: ClientRows(np.arange(3), np.array([0, 2, 1, 3])),
            PartitionError,
            "offsets do not",
        ),
        (lambda: ClientRows(np.arange(0), np.zeros(0, int)), PartitionError, "offsets do not fit"),
        (lambda: ClientRows.of([[0], [False, True]]), PartitionError, r"client 1 .* got bool of"),
        (lambda: ClientRows.of([[[0, 1]]]), PartitionError, r"client 0 .* shape \(1, 2\)"),
        (lambda: ClientRows.of(PARTS).chosen([1, -2]), IndexError, "Client -2 does not .* 0..3"),
        (lambda: ClientRows.of(PARTS).chosen([True]), IndexError, "ids must be integers, got bool"),
    ],
)
def test_other_rows_and_clients_are_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.fixture
def in_files(tmp_path):
    """The arrays of 40 clients, each with three training and one test example, and their files."""
    rng = np.random.default_rng(0)
    n = 40 * 4
    arrays = {
        "x": rng.integers(256, size=(n, 3, 3, 1), dtype=np.uint8),
        "y": rng.integers(5, size=n, dtype=np.int32),
        "train": rng.permutation(n)[: 40 * 3],
    }
    arrays["test"] = np.setdiff1d(np.arange(n), arrays["train"])
    mapped = {}
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
        mapped[name] = np.load(tmp_path / f"{name}.npy", mmap_mode="r")
    return arrays, mapped


def dataset_of(arrays):
    partition = Partition(
        train=ClientRows(arrays["train"], 3 * np.arange(41)),
        validation=ClientRows(np.arange(0), np.zeros(41, int)),
        test=ClientRows(arrays["test"], np.arange(41)),
    )
    return FederatedDataset(arrays["x"], arrays["y"], 5, partition)


def test_memory_mapped_data_set_copies_only_the_examples_of_a_client(in_files):
    in_memory, on_disk = map(dataset_of, in_files)
    assert on_disk.fingerprint == in_memory.fingerprint
    for array, own in ((on_disk.x, "x"), (on_disk.y, "y"), (on_disk.partition.train.rows, "train")):
        assert np.shares_memory(array, in_files[1][own])
    for client_id, split in ((0, "train"), (39, "train"), (7, "test"), (7, "validation")):
        found, expected = (d.examples(client_id, split) for d in (on_disk, in_memory))
        np.testing.assert_array_equal(found.x, expected.x)
        np.testing.assert_array_equal(found.y, expected.y)
        assert found.size == expected.size and not np.shares_memory(found.x, on_disk.x)
    some = on_disk.of([5, 2])
    assert np.shares_memory(some.x, in_files[1]["x"])
    np.testing.assert_array_equal(some.examples(1).x, in_memory.examples(2).x)


def test_first_non_finite_example_is_found_in_every_chunk():
    """Covers the first example, those around a multiple of 2^16, and the last."""
    for bad in ([0], [65_535, 65_536], [159_999]):
        x = np.zeros([160_000, 1], np.float32)
        x[bad] = np.nan
        with pytest.raises(ExamplesError, match=f"example {bad[0]} is not finite"):
            check_examples(x, np.zeros(len(x), np.int64), 2, "here")


def test_kernel_does_not_read_ahead_of_a_client(in_files):
    """Looks for the flag "rr" in `smaps`: random reads, since reading ahead is slower."""
    dataset_of(in_files[1])
    mappings = pathlib.Path("/proc/self/smaps").read_text().split("VmFlags:")
    is_random = {
        name: " rr " in flags
        for name in ("x.npy", "y.npy")
        for mapping, flags in itertools.pairwise(mappings)
        if f"{os.path.dirname(in_files[1]['x'].filename)}/{name}" in mapping
        for flags in [flags.splitlines()[0]]
    }
    assert is_random == {"x.npy": True, "y.npy": False}
