"""Tests `==` of tensors in blocks that TFF traces."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.federation import (
    EXAMPLES_TYPE,
    assert_close,
    last,
    local_sgd,
    make_clients,
    run_rounds,
    tiny_model,
)
from tests.marks import together
from tff_pfl.aggregators import StackRuleFactory
from tff_pfl.algorithms import make
from tff_pfl.deployment import compose_global_evaluation
from tff_pfl.local import evaluate
from tff_pfl.templates import compose
from tff_pfl.testing import EagerProcess
from tff_pfl.tracing import errors
from tff_pfl.tracing.equality import elementwise_equality
from tff_pfl.tracing.trace import trace

pytestmark = pytest.mark.usefixtures("clients_in_a_loop")

VECTOR = tff.types.TensorType(np.int32, [3])


def in_a_function(x):
    return tf.function(lambda y: y == 2)(x)


def in_a_loop(x):
    return tf.while_loop(
        lambda i, found: i < 3, lambda i, found: (i + 1, found | (x == i)), (0, x == 5)
    )[1]


def by_objects(x):
    """Compares structures and lists of tensors, as libraries do."""
    gradient = tf.gradients(tf.cast(x, tf.float32), [x])
    return tf.nest.map_structure(lambda a, b: a == b, {"a": x}, {"a": x})["a"] & (
        gradient == [None]
    )


@together(
    ("compared", "expected"),
    [
        (lambda x: x == 2, [False, True, False]),
        (lambda x: x != 2, [True, False, True]),
        (lambda x: x == x[::-1], [False, True, False]),
        (lambda x: np.int32(2) == x, [False, True, False]),
        (lambda x: tf.constant(x is not None and x != None), True),  # noqa: E711
        (in_a_function, [False, True, False]),
        (in_a_loop, [True, True, False]),
        (by_objects, [True, True, True]),
    ],
)
def test_comparison_equals_that_of_eager_mode(compared, expected):
    traced = trace("A block", compared, VECTOR)
    np.testing.assert_array_equal(traced(np.int32([1, 2, 9])), expected)


def test_python_branch_on_a_tensor_is_refused():
    with pytest.raises(errors.BlockTracingError, match="symbolic `tf.Tensor` as a Python `bool`"):
        trace("A block", lambda x: x if x == 2 else -x, tff.types.to_type(np.int32))


def test_tensorflow_is_unchanged_elsewhere():
    @tff.tensorflow.computation(np.int32)
    def compared(x):
        return tf.constant(x == 2)

    with elementwise_equality():
        assert not compared(2)  # it was traced before the `with`
    with pytest.raises(KeyError), elementwise_equality():
        raise KeyError
    again = tff.tensorflow.computation(lambda x: tf.constant(x == 2), np.int32)
    assert not again(2)
    x = tf.constant([1, 2])
    np.testing.assert_array_equal(x == 2, [False, True])
    np.testing.assert_array_equal(x != 2, [True, False])
    assert not tf.Tensor.__eq__(x, None)


def test_error_names_the_line_of_the_comparison():
    with pytest.raises(errors.BlockTracingError, match=r"test_equality\.py, line"):
        trace("A block", lambda x: x == tf.constant([1, 2]), VECTOR)


def test_aggregation_rules_and_initial_weights_can_compare():
    def rule(stack):
        chosen = tf.where(stack.weight[:, tf.newaxis] == 2.0, stack.value, 0.0)
        return tf.reduce_sum(chosen, axis=0), {}

    pair = tff.types.TensorType(np.float32, [2])
    process = StackRuleFactory(rule).create(pair, tff.types.to_type(np.float32))
    uploads = np.float32([[1, 1], [5, 5]])
    found = process.next(process.initialize(), list(uploads), list(np.float32([2, 1])))
    np.testing.assert_array_equal(found.result, [1, 1])
    zero = {"w": np.zeros(3, np.float32)}
    init = lambda seed: {"layer": {"w": tf.cast(zero["w"] == tf.zeros([3]), tf.float32)}}  # noqa: E731
    model = dataclasses.replace(tiny_model(), init=init)
    assert str(model.weights_type) == "<layer=<w=float32[3]>>"


def masked_loss(y, outputs):
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, outputs)
    return tf.where(y == 0, 0.0, losses)


@pytest.mark.thorough
def test_methods_and_models_that_compare_train_as_in_eager_mode():
    """Covers comparisons in a schedule and in a loss."""
    local = dataclasses.replace(local_sgd(), schedule=lambda t: tf.where(t == 1, 0.5, 1.0))
    model = dataclasses.replace(tiny_model(), task=tiny_model().task.with_loss(masked_loss))
    algorithm = make("fedavg", model, local)
    process = compose(algorithm, EXAMPLES_TYPE)
    clients, cohorts = make_clients(process, (4, 6)), [(0, 1), (0,)]
    found, expected = (
        last(run_rounds(either, clients, cohorts))[0].algorithm
        for either in (process, EagerProcess(algorithm))
    )
    assert_close(found, expected)
    evaluation = compose_global_evaluation(model, process.client_type.data)
    state = evaluation.set_model_weights(evaluation.initialize(), found.weights)
    metrics = evaluation.next(state, [client.data for client in clients]).metrics
    losses = [evaluate(model, expected.weights, client.data)["loss"] for client in clients]
    mean = sum(loss.total for loss in losses) / sum(loss.count for loss in losses)
    assert_close(metrics["client_work"]["eval"]["current_round_metrics"]["loss"], mean)
