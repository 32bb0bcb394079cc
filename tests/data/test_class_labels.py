"""Tests the number that each class gets from labels of any kind, however data are brought."""

import numpy as np
import pandas as pd
import pytest

import tff_pfl
from tests.marks import together
from tff_pfl.data import ExamplesError, FederatedDataset, Partition

LEVELS = ["low", "mid", "high"]
# Labels, the number of each, the names of the classes.
TABLE = {
    "text": (["b", "a", "c", "a"], [1, 0, 2, 0], ["a", "b", "c"]),
    "text of pandas": (pd.Series(["b", "a", "c"], dtype="string"), [1, 0, 2], ["a", "b", "c"]),
    "numbers as text": (["10", "2", "9", "2"], [2, 0, 1, 0], ["2", "9", "10"]),
    "fractions as text": (["0.5", "-1", "10"], [1, 0, 2], ["-1", "0.5", "10"]),
    "numbers and text": (["10", "2", "x"], [0, 1, 2], ["10", "2", "x"]),
    "categories": (pd.Categorical(["mid", "low", "high"], LEVELS), [1, 0, 2], LEVELS),
    "unused": (pd.Categorical(["high", "low", "low"], LEVELS), [2, 0, 0], LEVELS),
    "sorted by pandas": (pd.Categorical(["mid", "low", "high"]), [2, 1, 0], sorted(LEVELS)),
    "index": (pd.CategoricalIndex(["mid", "low"], LEVELS[:2]), [1, 0], LEVELS[:2]),
    "categories of numbers": (pd.Categorical([9, 1, 5], [5, 1, 9]), [2, 1, 0], ["5", "1", "9"]),
    "truth values": ([True, False, True], [1, 0, 1], None),
    "whole numbers": ([1, 0, 2], [1, 0, 2], None),
    "nullable numbers": (pd.Series([1, 0, 2], dtype="Int64"), [1, 0, 2], None),
}
DOORS = {
    "arrays": lambda x, y, n: FederatedDataset(x, y, n, rows_of_one_client(len(x))),
    "client arrays": lambda x, y, n: FederatedDataset.from_client_arrays([(x, y, x[:0], [])], n),
    "data frame": lambda x, y, n: FederatedDataset.from_dataframe(
        pd.DataFrame({"x": x[:, 0], "y": pd.Series(y), "client": 0}),
        **dict(client="client", x="x", y="y", fractions=(1, 0, 0), num_classes=n),
    ),
    "federate": lambda x, y, _: tff_pfl.federate(
        (x, y), num_clients=1, partitioner="iid", seed=0, fractions=(1, 0, 0)
    ),
}


def rows_of_one_client(number):
    none = [np.zeros(0, int)]
    return Partition([np.arange(number)], none, none)


@together("door", list(DOORS))
@together("kind", list(TABLE))
def test_number_of_each_class(kind, door):
    labels, numbers, names = TABLE[kind]
    x, num_classes = np.zeros([len(labels), 1]), len(names or np.unique(numbers))
    dataset = DOORS[door](x, labels, num_classes)
    assert dataset.y.tolist() == numbers and dataset.y.dtype == np.int32
    assert dataset.num_classes == num_classes
    assert (dataset.class_names is None) if names is None else (list(dataset.class_names) == names)


@together("door", list(DOORS))
@together(
    ("labels", "message"),
    [
        ([1, 0, 5], "label 5 of example 2|whole numbers from 0 to 5"),
        (np.array(["a", 1, "b"], object), "labels must be .*, got object|is object, not numbers"),
        (pd.Categorical(["low", None, "mid"], LEVELS), "no value in 1 "),
    ],
)
def test_other_labels_are_refused(labels, message, door):
    with pytest.raises(ExamplesError, match=message):
        DOORS[door](np.zeros([3, 1]), labels, 3)


def test_clients_have_the_same_categories():
    x, own = np.zeros([2, 1]), pd.Categorical(["mid", "low"], LEVELS)
    dataset = FederatedDataset.from_client_arrays([(x, own, x[:1], own[:1]), (x, own, [], [])], 3)
    assert dataset.y.tolist() == [1, 0, 1, 1, 0]
    for other in (own.reorder_categories(LEVELS[::-1]), ["mid", "low"]):
        with pytest.raises(ExamplesError, match="Categoricals of low, mid, high in this order"):
            FederatedDataset.from_client_arrays([(x, own, x, own), (x, other, [], [])], 3)


def test_partitioners_take_classes_without_examples():
    y = pd.Categorical(np.repeat(["low", "high"], 20), LEVELS)
    for partitioner in ("dirichlet", "iid"):
        dataset = tff_pfl.federate(
            (np.zeros([40, 1]), y), num_clients=2, partitioner=partitioner, seed=0
        )
        assert dataset.class_counts().sum(axis=0)[1] == 0
    assert "3 classes (0 low, 1 mid, 2 high)" in repr(dataset)
