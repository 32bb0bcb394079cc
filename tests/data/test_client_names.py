"""Tests the names of clients, and how names and ids choose clients."""

import numpy as np
import pytest

from tests.marks import together
from tff_pfl.arguments.names import UnknownNameError
from tff_pfl.data import FederatedDataset, Partition

X, Y = np.zeros((6, 2), np.float32), np.arange(6) % 3


def named(*names):
    """Makes clients with one training and one test example each."""
    rows = np.arange(2 * len(names)).reshape(2, -1, 1)
    return Partition(rows[0], [np.empty(0, np.int64)] * len(names), rows[1], names=names)


@pytest.mark.parametrize("names", [("user_17", "1000003", "a, b"), (1000003, -7, 0)])
def test_names_are_saved_and_stay_with_their_clients(names, tmp_path):
    partition = named(*names)
    partition.save(tmp_path / "p.npz")
    loaded = Partition.load(tmp_path / "p.npz")
    assert loaded.names.tolist() == list(names)
    part = FederatedDataset(X, Y, 3, loaded).of([2, 0])
    assert part.names.tolist() == [names[2], names[0]] and part.ids_of(names[::2]) == [1, 0]
    assert part.examples(part.ids_of([names[0]])[0]).y == [0]
    assert part.fingerprint != FederatedDataset(X, Y, 3, loaded.of([2, 1])).fingerprint


def test_clients_without_names_have_the_same_file_as_ever(tmp_path):
    none = [np.empty(0, np.int64)] * 2
    Partition([[0], [1]], none, none).save(tmp_path / "p.npz")
    with np.load(tmp_path / "p.npz") as content:
        assert "names" not in content
    assert Partition.load(tmp_path / "p.npz").names is None


def test_clients_are_given_by_name_and_by_id_only_without_names():
    text, numbers = named("b", "2", "a"), named(2, 0, 1)
    assert text.ids_of(["a", np.str_("2")]) == [2, 1]
    assert numbers.ids_of([2, "1", np.int64(0)]) == [0, 2, 1]
    none = [np.empty(0, np.int64)] * 2
    assert Partition([[0], [1]], none, none).ids_of(["1", np.int32(0)]) == [1, 0]
    with pytest.raises(TypeError, match="must be a list of names or ids, got '2'"):
        text.ids_of("2")


@together(
    ("partition", "client", "message"),
    [
        (named("b", "a"), "c", "client 'c'"),
        (named("b", "a"), 1, r"Client 1 is a number, but .* names are text, such as 'b'; dataset"),
        (named("b", "a").named(None), -1, r"Client -1 does not exist: ids are 0\.\.1"),
        (named(7, 8), 0, "client 0"),
    ],
)
def test_unknown_clients_are_refused(partition, client, message):
    with pytest.raises(UnknownNameError, match=message):
        partition.ids_of([client])


@together(
    ("names", "message"),
    [
        (("a", "b", "a"), "Two clients have the name 'a'"),
        (("a", 1), "all text, or all whole numbers of 64 bits, got 'a'"),
        ((True, False), "got True"),
        ((1, 2**63), "got 9223372036854775808"),
    ],
)
def test_impossible_names_are_refused(names, message):
    with pytest.raises(ValueError, match=message):
        named(*names)
    with pytest.raises(ValueError, match="2 names for 3 clients"):
        named(5, 6, 7).named(["a", "b"])


def test_a_mapping_of_arrays_names_its_clients():
    arrays = (X[:2], Y[:2], X[2:3], Y[2:3])
    dataset = FederatedDataset.from_client_arrays({"user_17": arrays, "x": arrays}, 3)
    assert dataset.names.tolist() == ["user_17", "x"]
    assert dataset.sizes().tolist() == [2, 2]
