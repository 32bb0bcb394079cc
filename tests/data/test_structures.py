"""Tests data sets whose inputs and labels are structures of arrays."""

import numpy as np
import pytest

from tests.marks import together
from tff_pfl.data import SPLITS, ExamplesError, FederatedDataset, LabelledImages, federate

LARGE = (1 << 24) + 1  # an integer that float32 cannot hold
FINGERPRINTS = "52555666d7bfcf38", "545f093d32b168fea6b52f4dea3896a3"


def ratings(size, first=0):
    """Returns inputs and labels of `size` ratings, whose users are numbered from `first`."""
    user = LARGE + first + np.arange(size)
    x = {"user": user, "item": np.stack([user % 3, user % 5], axis=1).astype(np.int16)}
    return x, (np.linspace(1, 5, size), user[:, np.newaxis] % 2 == np.arange(3))


def make():
    """Makes a data set of two clients; the second has no test examples."""
    return FederatedDataset.from_client_arrays(
        [(*ratings(4), *ratings(2, first=4)), (*ratings(3, first=9), [], [])]
    )


def test_examples_keep_structure_rows_and_types():
    dataset = make()
    assert str(dataset.examples_type) == (
        "<x=<item=int16[?,2],user=int64[?]>,y=<float64[?],bool[?,3]>,size=int32>"
    )
    for client, split, (x, y) in [
        (0, "train", ratings(4)),
        (0, "test", ratings(2, first=4)),
        (1, "train", ratings(3, first=9)),
    ]:
        found = dataset.examples(client, split)
        assert list(found.x) == ["item", "user"] and found.size == len(x["user"])
        for name, array in x.items():
            np.testing.assert_array_equal(found.x[name], array)
        for array, label in zip(found.y, y, strict=True):
            np.testing.assert_array_equal(array, label)
    nobody = dataset.of([1]).examples(0, "test")
    assert nobody.x["item"].shape == (0, 2) and nobody.y[1].dtype == bool


def test_map_gets_and_returns_structures():
    dataset = make().map(lambda x: (x["user"] % 10, {"sum": x["item"].sum(axis=1)}), batch_size=4)
    first, (second,) = dataset.x[0], dataset.x[1].values()
    np.testing.assert_array_equal(first, make().x["user"] % 10)
    np.testing.assert_array_equal(second, make().x["item"].sum(axis=1))
    assert dataset.image_shape == ((), {"sum": ()})


def test_fingerprint_depends_on_every_label_and_type():
    one, other, third = make(), make(), make()
    other.y[1][2, 0] ^= True
    third.x["item"] = third.x["item"].astype(np.int32)
    assert one.fingerprint == make().fingerprint
    assert len({data.fingerprint for data in (one, other, third)}) == 3
    assert one.inputs_fingerprint == other.inputs_fingerprint != third.inputs_fingerprint


def test_fingerprint_of_class_labels_stays():
    x, y = np.arange(6, dtype=np.uint8).reshape(3, 2), np.array([0, 1, 0])
    dataset = FederatedDataset.from_client_arrays([(x[:2], y[:2], x[2:], y[2:])], 2)
    assert (dataset.fingerprint, dataset.inputs_fingerprint) == FINGERPRINTS


def changed(part, path, change):
    """Returns a client whose training inputs or labels have a changed array."""
    client = list((*ratings(4), *ratings(2)))
    arrays = dict(client[part]) if part == 0 else list(client[part])
    arrays[path] = change(arrays[path])
    client[part] = arrays if part == 0 else tuple(arrays)
    return client


@together(
    ("client", "message"),
    [
        (changed(0, "user", lambda a: a[:3]), r"inputs 'user' of shape \(3,\) for 4 labels"),
        (changed(1, 0, lambda a: a * [1, 1, np.nan, 1]), "label '0' of example 2 is not finite"),
        (changed(0, "user", lambda a: a.astype(np.int32)), "int32 of shape .. 'user', but inputs"),
        (changed(1, 0, lambda a: a.astype(np.float32)), "labels are float32 .* but labels of"),
    ],
)
def test_errors_name_the_client_and_the_array(client, message):
    with np.errstate(all="ignore"), pytest.raises(ExamplesError, match=f"client 1, .*{message}"):
        FederatedDataset.from_client_arrays([(*ratings(4), *ratings(2)), client])


def images(y, num_classes=None, writer=None):
    x = {"a": np.arange(20), "b": np.zeros((20, 2), np.float32)}
    return LabelledImages("table", x, y, num_classes, 15, writer)


def test_labels_that_are_not_classes_are_dealt_out_like_one_class():
    y, how = np.linspace(0, 1, 20), {"num_clients": 3, "partitioner": "iid", "seed": 0}
    for options in ({}, {"merge": False, "num_validation": 4}):
        found = federate(images(y), **how, **options).partition
        expected = federate(images(np.zeros(20, int), 1), **how, **options).partition
        for split in SPLITS:
            np.testing.assert_array_equal(getattr(found, split).rows, getattr(expected, split).rows)
    assert found.metadata["labels"] != federate(images(y / 2), **how).partition.metadata["labels"]
    natural = federate(images(y, writer=np.arange(20) % 2), partitioner="natural", seed=0)
    assert set(natural.examples(1).x["a"] % 2) == {1}


def test_what_needs_classes_says_so():
    def dealt(**how):
        return federate(images(np.linspace(0, 1, 20)), num_clients=2, seed=0, **how)

    with pytest.raises(ValueError, match="'dirichlet'.* 'table' has n"):
        dealt(partitioner="dirichlet")
    with pytest.raises(ValueError, match="imbalance=2.* 'table' has n"):
        dealt(partitioner="iid", imbalance=2)
    with pytest.raises(ValueError, match="class_counts.* 'table' has n"):
        dealt(partitioner="iid").class_counts()
