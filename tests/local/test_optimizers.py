"""Tests that optimizers by name equal `tff.learning.optimizers`, including defaults."""

import inspect

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.arguments.ranges import RangeError
from tff_pfl.local import OPTIMIZERS

BUILDERS = {
    name: getattr(tff.learning.optimizers, f"build_{name}")
    for name in ("adagrad", "adam", "adamw", "rmsprop", "yogi")
}
WEIGHTS = tf.constant([1.0, -2.0])
GRADIENTS = tf.constant([[0.5, 3.0], [2.0, -1.0]])


def two_steps(optimizer):
    state = optimizer.initialize(tf.TensorSpec([2]))
    weights = WEIGHTS
    for gradient in GRADIENTS:
        state, weights = optimizer.next(state, weights, gradient)
    return weights


def test_optimizers_and_options_equal_tffs():
    assert set(OPTIMIZERS) == {"sgd", *BUILDERS}
    for name, build in BUILDERS.items():
        parameters = inspect.signature(build).parameters
        expected = {key: p.default for key, p in parameters.items() if key != "learning_rate"}
        assert OPTIMIZERS.options(name) == expected
        found = two_steps(OPTIMIZERS[name](0.1, **dict.fromkeys(expected, 0.3)))
        np.testing.assert_array_equal(found, two_steps(build(0.1, **dict.fromkeys(expected, 0.3))))


def test_sgd_matches_numpy_with_and_without_momentum():
    first, second = GRADIENTS
    expected = WEIGHTS - 0.1 * (first + second)
    np.testing.assert_allclose(two_steps(OPTIMIZERS["sgd"](0.1)), expected)
    expected = WEIGHTS - 0.1 * (first + (0.5 * first + second))
    np.testing.assert_allclose(two_steps(OPTIMIZERS["sgd"](0.1, momentum=0.5)), expected)
    state = OPTIMIZERS["sgd"](0.1).initialize(tf.TensorSpec([2]))
    assert state.keys() == {"learning_rate"}
    with pytest.raises(RangeError, match="momentum must be"):
        OPTIMIZERS["sgd"](0.1, momentum=1.0)
