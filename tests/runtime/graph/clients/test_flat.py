"""Tests the rules by which compiled client work computes with flat tensors."""

import collections

import numpy as np
import pytest
import tensorflow as tf

from tff_pfl.runtime.graph.clients import flat, vectorization
from tff_pfl.runtime.graph.operations import operations


@pytest.mark.parametrize(
    ("shape", "joined"),
    [
        ([], []),
        ([3, 2], [6]),
        ([3, 0, 2], [0]),
        ([None, 2, 4], [None, 8]),
        ([None, 0, 4], [None, 0]),
        ([None, None, 4], [None, None, 4]),
        (None, None),
    ],
)
def test_axes_of_known_length_are_joined(shape, joined):
    found = flat.flat_shape(tf.TensorShape(shape))
    assert found.as_list() == joined if joined is not None else found.rank is None


@pytest.mark.parametrize("shape", [[3, 2], [None, 2, 4], [None, 0, 4], []])
def test_shapes_are_restored(shape):
    spec = tf.TensorSpec(shape)

    @tf.function(input_signature=[spec], autograph=False)
    def there_and_back(tensor):
        return flat.in_shape(flat.flat(tensor), spec.shape)

    values = np.arange(np.prod([5 if n is None else n for n in shape], dtype=int), dtype=np.float32)
    values = values.reshape([5 if n is None else n for n in shape])
    np.testing.assert_array_equal(there_and_back(values), values)


def of_weights(weights, rows, images):
    """Uses each kind of operation that has a rule, and a loop around them."""
    batch = tf.cast(tf.gather(images, rows), tf.float32) / 255.0

    def step(i, weights):
        change = tf.where(i > 1, tf.square(weights), -weights) * 0.1
        finite = tf.reduce_all(tf.math.is_finite(change))
        return i + 1, tf.where(finite, weights - change, weights)

    _, trained = tf.while_loop(lambda i, _: i < 3, step, (0, weights))
    return [
        trained,
        tf.reduce_sum(trained),
        tf.reduce_sum(trained, axis=0),  # not of all axes
        tf.reduce_sum(trained, keepdims=True),
        tf.nn.l2_loss(trained),
        tf.reduce_any(tf.math.is_finite(trained)),
        tf.add_n([trained, weights]),
        trained + trained[0],  # two shapes
        batch,
        tf.gather(images, rows, axis=1),
    ]


def alone(*arguments):
    """Returns the results of `of_weights` for a client alone, and their graph."""
    specs = [tf.TensorSpec(x.shape, x.dtype) for x in arguments]
    traced = tf.function(of_weights, autograph=False).get_concrete_function(*specs)
    graphs = []

    @tf.function(autograph=False)
    def call(*tensors):
        function = vectorization.alone(traced, {})
        graphs.append(function.graph)
        return function(*map(flat.flat, tensors))

    return call(*arguments), graphs[0]


@pytest.mark.parametrize("columns", [2, 0])
def test_results_are_those_of_the_function(columns):
    rng = np.random.default_rng(0)
    weights = tf.constant(rng.normal(size=(3, columns)), tf.float32)
    rows, images = tf.constant([2, 0, 1]), tf.cast(rng.integers(256, size=(4, 5, 1, 2)), tf.uint8)
    expected = of_weights(weights, rows, images)
    (*found, failed), _ = alone(weights, rows, images)
    assert int(failed) == 0
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(flat.in_shape(one, other.shape), other, rtol=1e-6)


def test_loop_variables_and_operands_are_flat():
    weights = tf.ones([3, 2])
    rows, images = tf.constant([2, 0, 1]), tf.ones([4, 5, 1, 2], tf.uint8)
    _, graph = alone(weights, rows, images)
    ranks = collections.defaultdict(set)
    for operation in operations(graph):
        ranks[operation.type] |= {tensor.shape.rank for tensor in operation.inputs} - {0}
    kinds = "StatelessWhile", "Square", "IsFinite", "All", "Any", "AddN", "L2Loss", "Mul"
    assert {kind: ranks[kind] for kind in kinds} == dict.fromkeys(kinds, {1})
