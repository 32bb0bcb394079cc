"""Tests `federate` of arrays and data frames without splits."""

import numpy as np
import pandas as pd
import pytest

import tff_pfl
from tff_pfl.data import ExamplesError

X = np.random.default_rng(0).normal(size=[60, 3]).astype(np.float32)


def federate(x, y, **options):
    return tff_pfl.federate(
        (x, y), num_clients=4, **{"partitioner": "dirichlet", "seed": 0} | options
    )


def test_whole_numbers_are_classes():
    y = np.arange(60) % 3
    dataset = federate(X, y)
    assert dataset.num_classes == 3 and dataset.class_names is None
    assert dataset.sizes("train").sum() + dataset.sizes("test").sum() == 60
    assert abs(dataset.sizes("train").sum() - 48) <= 4 and not dataset.sizes("validation").any()
    examples = dataset.examples(1)
    rows = [int(np.flatnonzero((x == X).all(axis=1))[0]) for x in examples.x]
    np.testing.assert_array_equal(examples.y, y[rows])


def test_columns_of_a_data_frame_and_classes_of_text():
    frame = pd.DataFrame(X, columns=list("abc")).assign(
        kind=np.array(["x", "w"])[np.arange(60) % 2]
    )
    dataset = federate(frame[["a", "c"]], frame["kind"], fractions=(0.5, 0.25, 0.25))
    np.testing.assert_array_equal(dataset.x, X[:, [0, 2]])
    assert dataset.class_names.tolist() == ["w", "x"]
    np.testing.assert_array_equal(dataset.y, (frame["kind"] == "x").astype(np.int32))
    assert dataset.sizes("validation").any()
    named = federate(frame[["a", "kind", "c"]], "kind", fractions=(0.5, 0.25, 0.25))
    assert named.fingerprint == dataset.fingerprint


def test_other_labels_are_no_classes():
    dataset = federate(X, X[:, :1], partitioner="iid")
    assert dataset.num_classes is None and dataset.y.shape == (60, 1)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((X, np.arange(60) % 3 + 1), "3 whole numbers from 1 to 3"),
        ((X, np.arange(59) % 3), "59"),
        (X, r"must be \(x, y\), inputs and labels"),
        ((X, "kind"), "a row for each example, got 'kind'"),
    ],
)
def test_other_data_are_refused(data, message):
    with pytest.raises(ExamplesError, match=message):
        tff_pfl.federate(data, num_clients=4, partitioner="iid", seed=0)
