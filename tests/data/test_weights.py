"""Tests the weights of examples: where they enter a data set, and what is refused."""

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

from tests.marks import together
from tff_pfl.data import ExamplesError, FederatedDataset, Partition

X = np.arange(12, dtype=np.float32).reshape(6, 2)
Y = np.array([0, 1, 1, 0, 1, 0], np.int32)
W = np.array([0, 1, 2, 0.5, 3, 1])
PARTITION = Partition(([0, 1], [3]), ([], []), ([2], [4, 5]), names=["a", "b"])
SPLIT = ["train", "train", "test", "train", "test", "test"]


def frame(**columns):
    table = pd.DataFrame(X, columns=["one", "two"])
    return table.assign(y=Y, w=W, user=list("aaabbb"), split=SPLIT, **columns)


def of_frame(table, **changes):
    columns = dict(client="user", x=["one", "two"], y="y", weight="w", split="split", num_classes=2)
    return FederatedDataset.from_dataframe(table, **columns | changes)


def of_arrays(*rows):
    clients = {
        name: tuple(array[np.array(part, int)] for part in parts for array in rows)
        for name, parts in {"a": ([0, 1], [2]), "b": ([3], [4, 5])}.items()
    }
    return FederatedDataset.from_client_arrays(clients, 2)


def of_tf_data(*rows, in_test=True):
    def pool(a, b, rows):
        parts = {"a": np.array(a), "b": np.array(b)}
        return {
            name: tf.data.Dataset.from_tensor_slices(tuple(array[part] for array in rows))
            for name, part in parts.items()
        }

    test = pool([2], [4, 5], rows if in_test else rows[:2])
    return FederatedDataset.from_datasets(pool([0, 1], [3], rows), test, num_classes=2)


def constructed(weights=W):
    return FederatedDataset(X, Y, 2, PARTITION, weights=weights)


@together(
    "make",
    [
        constructed,
        lambda: of_frame(frame()),
        lambda: of_arrays(X, Y, W),
        lambda: of_tf_data(X, Y, W),
        lambda: constructed().of([0, 1]),
        lambda: constructed().map(lambda x: x),
    ],
)
def test_weights_enter_with_their_examples(make):
    dataset = make()
    assert dataset.weights.dtype == np.float32
    for client, split, rows in ((0, "train", [0, 1]), (0, "test", [2]), (1, "test", [4, 5])):
        examples = dataset.examples(client, split)
        np.testing.assert_array_equal(examples.x, X[rows])
        np.testing.assert_array_equal(examples.y["label"], Y[rows])
        np.testing.assert_array_equal(examples.y["sample_weight"], W[rows])
    np.testing.assert_array_equal(dataset.class_counts("test"), [[0, 1], [1, 1]])
    expected = "<x=float32[?,2],y=<label=int32[?],sample_weight=float32[?]>,size=int32>"
    assert str(dataset.examples_type) == expected


def test_fingerprint_covers_weights():
    other = constructed(W[::-1])
    found = [dataset.fingerprint for dataset in (constructed(), other, constructed(None))]
    assert len(set(found)) == 3


def test_labels_that_are_not_classes_may_have_weights():
    data = {"a": tf.data.Dataset.from_tensor_slices((X, X, W))}
    dataset = FederatedDataset.from_datasets(data, data)
    np.testing.assert_array_equal(dataset.y, np.concatenate([X, X]))
    np.testing.assert_array_equal(dataset.weights, np.concatenate([W, W]).astype(np.float32))


@together(
    ("make", "message"),
    [
        (lambda: constructed(W[:5]), "each of the 6 examples, got (5,)"),
        (lambda: constructed({"w": W}), "each of the 6 examples, got OrderedDict"),
        (lambda: constructed(0 * W), "weights of all train examples are 0"),
        (lambda: of_arrays(X, Y, W * (np.arange(6) == 1)), "weights of all test examples are 0"),
        (lambda: constructed(1e39 * W), "weight of example 1 is not finite"),
        (lambda: constructed(np.ma.masked_equal(W, 0)), "weights are masked"),
        (lambda: of_frame(frame(), weight="one"), "'one' is both the weight of examples and an in"),
        (lambda: of_frame(frame(), weight="y"), "'y' is both the weight of examples and a label"),
        (lambda: of_frame(frame(), weight="user"), "'user' is object, not numbers"),
        (lambda: of_arrays(X, Y, W - 1), "client 0, train: weight -1.0 of example 0 is negative"),
        (
            lambda: FederatedDataset.from_client_arrays([(X, Y, W, X, Y, W), (X, Y, X, Y)], 2),
            "client 1 has 4 arrays, but client 0 has 6",
        ),
        (lambda: FederatedDataset.from_client_arrays([(X, Y, W)], 2), "a weight may follow each y"),
        (lambda: of_tf_data(X, Y, W, in_test=False), "Only the training or only the test examples"),
        (lambda: of_tf_data(X, Y, W, W), "Examples must be (x, y), (x, y, weight)"),
    ],
)
def test_impossible_weights_are_refused(make, message):
    with np.errstate(all="ignore"), pytest.raises(ExamplesError) as caught:
        make()
    assert message in str(caught.value)
