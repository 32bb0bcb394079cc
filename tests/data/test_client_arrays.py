"""Tests data sets made from the arrays of each client, and the checks of examples."""

import numpy as np
import pytest
import scipy.sparse
import tensorflow as tf

from tests.marks import together
from tff_pfl.data import ExamplesError, FederatedDataset, Partition
from tff_pfl.data.checks import check_examples

BFLOAT16 = tf.bfloat16.as_numpy_dtype
X, Y = np.zeros((2, 3), np.float32), np.array([0, 1])


def test_from_client_arrays_accepts_iterators_empty_clients_and_mixed_label_types():
    clients = [(X, Y.astype(np.uint64), X[:0], []), (X, Y, X[:1], [1])]
    dataset = FederatedDataset.from_client_arrays((client for client in clients), num_classes=2)
    assert dataset.sizes().tolist() == [2, 2] and dataset.sizes("test").tolist() == [0, 1]
    assert dataset.y.dtype == np.int32 and dataset.y.tolist() == [0, 1, 0, 1, 1]


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        ([["dog", "cat"], ["emu"]], ["cat", "dog", "emu"]),
        ([np.array([1, 0]), np.float16([2])], None),
        ([[True, False], [2]], None),
    ],
)
def test_class_labels_of_other_types_become_integers(labels, names):
    x = np.zeros([2, 1])
    clients = [(x, labels[0], x[:0], []), (x[:1], labels[1], x[:0], [])]
    dataset = FederatedDataset.from_client_arrays(clients, num_classes=3)
    assert dataset.y.tolist() == [1, 0, 2] and dataset.y.dtype == np.int32
    assert (dataset.class_names is None) if names is None else (list(dataset.class_names) == names)
    for same in (dataset.map(lambda x: x), dataset.of([1])):
        assert same.class_names is dataset.class_names


def test_numbers_of_classes_must_fit():
    message = r"2 names \(cat, emu\), but num_classes is 3. Pass num_classes=2, or .*NAMES"
    with pytest.raises(ExamplesError, match=message):
        FederatedDataset.from_client_arrays([(X, ["emu", "cat"], X, ["cat", "emu"])], 3)
    check_examples(X, Y, np.int64(2), "here")
    with pytest.raises(ExamplesError, match="here: num_classes must be"):
        check_examples(X, Y, 2.0, "here")


def test_empty_list_takes_shape_and_type_of_other_inputs():
    clients = [([], [], [], []), (X, Y, [], [])]
    dataset = FederatedDataset.from_client_arrays(clients, num_classes=2)
    assert dataset.sizes().tolist() == [0, 2] and dataset.sizes("test").tolist() == [0, 0]
    assert dataset.x.dtype == np.float32 and dataset.image_shape == (3,)
    message = r"client 2, test: inputs .* \(2,\), but inputs of client 1 "
    with pytest.raises(ExamplesError, match=message):
        FederatedDataset.from_client_arrays([*clients, (X, Y, X[:, :2], Y)], num_classes=2)
    assert FederatedDataset.from_client_arrays(clients[:1], num_classes=2).sizes().tolist() == [0]
    with pytest.raises(ExamplesError, match="no clients"):
        FederatedDataset.from_client_arrays([], num_classes=2)


@together(
    ("client", "message"),
    [
        ((X, Y, X, Y + 1), "client 1, test: label 2 of example 1"),
        ((X[:, :2], Y, X, Y), r"client 1, train: inputs are float32 of shape \(2,\)"),
        ((scipy.sparse.csr_matrix(X), Y, X, Y), r"client 1: inputs.* got a csr_matrix.* toarray"),
        ((X, Y), "client 1 must be .x_train, .* found 2 values"),
    ],
)
def test_from_client_arrays_names_the_client(client, message):
    with pytest.raises(ExamplesError, match=message):
        FederatedDataset.from_client_arrays([(X, Y, X, Y), client], num_classes=2)


@together(
    ("x", "y", "message"),
    [
        (np.zeros(3), np.array([0, 2, 3]), r"label 2 of example 1 .* 0..1 \(2 such labels\)"),
        (np.zeros(2), np.array([0.5, 1.0]), "labels must be integers .* float64"),
        (np.zeros(2), np.array([[0], [1]]), r"int64 of shape \(2, 1\). Pass y\[:, 0\]"),
        (np.zeros(2), np.eye(2), r"shape \(2, 2\). Pass y.argmax\(axis=1\) of one-hot"),
        (np.zeros((3, 2)), np.array([0, 1]), r"inputs of shape \(3, 2\) for 2 labels"),
        (np.array(["a", "b"]), np.array([0, 1]), "inputs must be real numbers .*, got <U1"),
        (np.array([[0.0, 1], [2, np.nan]]), np.array([0, 1]), "example 1 is not finite"),
        (np.array([0.0, 1e300]), np.array([0, 1]), "example 1 is not finite as float32"),
        (np.array([np.nan, 0], BFLOAT16), np.array([0, 1]), "example 0 is not finite"),
        (np.ma.masked_array([1.0, 2.0], [0, 1]), np.array([0, 1]), "arrays are masked"),
        (np.eye(2), np.float32(1), "a row for each example, got 1.0"),
    ],
)
def test_check_examples_names_the_problem(x, y, message):
    with pytest.raises(ExamplesError, match="^here: .*" + message):
        check_examples(x, y, 2, "here")


MILLISECONDS = 1.7e12 + np.arange(600) * 1000.0  # ten minutes; float32 steps by 131 s


@together(
    ("x", "y", "message"),
    [
        (MILLISECONDS, np.zeros(600), "has only 5 of the 600 different values of inputs that"),
        ({"t": np.stack([np.arange(600.0), MILLISECONDS], 1)}, np.zeros(600), "'t', column 1, "),
        (np.zeros(600), 1e7 + np.linspace(0, 9, 600), "10 of the 600 different values of labels"),
        (np.zeros(600), 2**30 + np.arange(600), "different values of labels"),
        (np.random.default_rng(0).normal(size=(600, 2)), np.arange(600) / 7, None),
        (2**40 + np.arange(600), np.zeros(600), None),  # Ids stay integers.
        (MILLISECONDS[:0], np.zeros(0), None),
    ],
)
def test_numbers_that_float32_merges_are_warned_of(x, y, message, caplog):
    caplog.clear()
    FederatedDataset(x, y, None, Partition([np.arange(len(y))], [[]], [[]]), "here")
    found = caplog.messages
    assert len(found) == (message is not None) and (not found or message in found[0])
