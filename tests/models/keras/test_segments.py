"""Tests rematerialisation: gradients that compute intermediate values again."""

import functools
import re

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.federation import (
    EXAMPLES_TYPE,
    IMAGE_SHAPE,
    NUM_CLASSES,
    assert_close,
    assert_equal,
    local_sgd,
    make_clients,
)
from tests.marks import slow
from tests.models.keras.test_adapter import Subclassed, deferred, layers, sequential
from tff_pfl import models
from tff_pfl.algorithms import build_fedavg
from tff_pfl.local import Batch
from tff_pfl.models import from_keras
from tff_pfl.models.keras.segments import recomputed, split
from tff_pfl.runtime import create_graph_context

RNG = np.random.default_rng(0)


def residual():
    """Builds two residual blocks, with cuts after the stem, each block and each activation."""
    inputs = tf.keras.Input((4,))
    x = layers.Dense(8, "tanh", name="stem")(inputs)
    for block in ("first", "second"):
        y = layers.Dense(8, name=f"{block}_a")(x)
        y = layers.Dropout(0.5)(y)
        y = layers.Dense(8, name=f"{block}_b")(layers.Activation("tanh")(y))
        x = layers.Activation("tanh")(layers.Add()([x, y]))
    return tf.keras.Model(inputs, layers.Dense(3, name="head")(x))


two_masks = sequential(
    lambda: layers.Dense(5, "tanh"),
    lambda: layers.Dropout(0.5),
    lambda: layers.Dense(6, "tanh"),
    lambda: layers.Dropout(0.3),
)


def two_inputs():
    """Has named inputs, a TensorFlow operation, and a layer before and after each cut."""
    left, right = tf.keras.Input((2,), name="second"), tf.keras.Input((2,), name="first")
    shared, square = layers.Dense(4, "tanh", name="shared"), layers.Dense(4, name="square")
    x = square(layers.Add()([shared(left), shared(right)]))
    x = square(tf.sin(x))
    inputs = {"left": left, "right": right}
    return tf.keras.Model(inputs, layers.Dense(3, name="head")(x))


@functools.cache
def model_of(keras_model_fn, **options):
    def halves(x):
        return {"left": x[:, :2], "right": x[:, 2:]}

    preprocess = halves if keras_model_fn is two_inputs else None
    return from_keras(keras_model_fn, input_shape=(4,), preprocess=preprocess, **options)


def batch():
    x = tf.constant(RNG.normal(size=(5, 4)), tf.float32)
    return Batch(x, tf.constant([0, 1, 2, 2, 1]), tf.ones([5]), tf.constant([1, 2]))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("keras_model_fn", "segments"),
    [slow(residual, 3), slow(residual, 100), slow(two_masks, 2), (two_inputs, 100), (deferred, 2)],
)
def test_segments_keep_gradients_and_features(keras_model_fn, segments):
    """Draws the same dropout masks."""
    expected, model = model_of(keras_model_fn), model_of(keras_model_fn, segments=segments)
    assert model.layers == expected.layers
    weights, b = expected.init(0), batch()
    assert_equal(model.init(0), weights)
    actual = model.gradient(weights, b)
    assert_close(actual, expected.gradient(weights, b), 1e-6)
    compiled = tf.function(lambda weights: model.gradient(weights, b), autograph=False)
    assert_close(compiled(weights), actual, 1e-6)
    for options in ({"training": True, "seed": b.seed}, {"training": False}):
        features = expected.features(weights, b.x, **options)
        assert_close(model.features(weights, b.x, **options), features, 1e-6)


def test_split_cuts_between_layers():
    model = residual()
    parts = split(model, 3)
    x = tf.random.normal([2, 4])
    outputs = x
    for part in parts:
        outputs = part(outputs)
    assert_equal(outputs, model(x))
    layers_of_parts = [{layer.name for layer in part.layers if layer.weights} for part in parts]
    assert layers_of_parts == [{"stem", "first_a", "first_b"}, {"second_a", "second_b"}, {"head"}]
    # Cuts are after the stem, and in each block after the sum and its activation.
    assert len(split(model, 100)) == 1 + 1 + 2 * 2


def test_recomputed_gradient_matches_the_formula():
    """Checks that the gradient of `a x^2` is `x^2` for `a` and `2 a x` for `x`."""

    def apply(weights, x, *, training, seed):
        assert (training, seed) == (True, None)
        return weights["f"]["a"] * x**2

    weights, x = {"f": {"a": tf.constant(3.0)}, "unused": {"b": tf.ones([2])}}, tf.constant([2.0])
    with tf.GradientTape() as tape:
        tape.watch((weights, x))
        y = 5 * recomputed(apply, ("f",))(weights, x, training=True)
    gradient_of_weights, gradient_of_x = tape.gradient(y, (weights, x))
    assert (y, gradient_of_weights["f"]["a"], gradient_of_x) == (60.0, 20.0, 60.0)
    assert gradient_of_weights["unused"]["b"] is None


@pytest.mark.thorough
def test_segments_keep_second_order_gradients():
    """Computes products of the Hessian and a vector, as second-order methods do."""

    def product(model):
        weights, b = model.init(0), examples
        with tf.GradientTape() as tape:
            tape.watch(weights)
            gradient, _ = model.gradient(weights, b)
            along_ones = tf.add_n([tf.reduce_sum(g) for g in tf.nest.flatten(gradient)])
        return tape.gradient(along_ones, weights)

    examples = batch()
    expected, model = model_of(residual), model_of(residual, segments=3)
    assert np.abs(product(expected)["stem"]["kernel"]).max() > 0.01
    assert_close(product(model), product(expected), 1e-5)


@pytest.mark.parametrize("outer", [tf.Graph, lambda: tf.__internal__.FuncGraph("outer")])
def test_values_are_recomputed_only_after_the_upstream_gradient(outer):
    """Checks dependencies, without which values would be computed early and kept."""

    def apply(weights, x, **_):
        return tf.sin(tf.exp(weights["f"]["a"] * x))

    with outer().as_default() as graph:
        weights, x = {"f": {"a": tf.ones([2])}}, tf.ones([2])
        with tf.GradientTape() as tape:
            tape.watch(weights)
            y = tf.tan(recomputed(apply, ("f",))(weights, x))
        gradient = tape.gradient(y, weights)["f"]["a"]
        assert gradient is not None
        first, second = [op for op in graph.get_operations() if op.type == "Exp"]
        (tan,) = [op for op in graph.get_operations() if op.type == "Tan"]
    assert depends(tan, first) and not depends(first, tan)
    gradients_of_tan = [c for c in tan.inputs[0].consumers() if c is not tan]
    assert any(depends(second, op) for op in gradients_of_tan)


def depends(operation, on) -> bool:
    waiting, seen = [operation], set()
    while waiting:
        current = waiting.pop()
        if current is on:
            return True
        if current not in seen:
            seen.add(current)
            waiting += [tensor.op for tensor in current.inputs]
    return False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "compute_type"),
    [
        ({"vectorize": "never"}, "bfloat16"),
        ({"vectorize": "always"}, "bfloat16"),
        ({"vectorize": "always", "jit_compile": True}, "float32"),
    ],
)
def test_segments_keep_a_round_in_the_executor(options, compute_type):
    """Keeps weights in float32 for each compute type."""
    weights = []
    for segments in (3, 1):
        how = {"segments": segments, "compute_type": compute_type}
        model = models.build("mlp", IMAGE_SHAPE, NUM_CLASSES, hidden=(5, 4), **how)
        process = build_fedavg(model, EXAMPLES_TYPE, local_sgd(epochs=2), seed=1)
        with tff.framework.get_context_stack().install(create_graph_context(**options)):
            output = process.next(process.initialize(), make_clients(process, [5, 5]))
        weights.append(process.global_weights(output.state))
    assert {weight.dtype.name for weight in tf.nest.flatten(weights)} == {"float32"}
    assert_close(*weights, 1e-6)


masked = sequential(
    layers.Masking,
    lambda: layers.Dense(4),
    layers.GlobalAveragePooling1D,  # It ignores masked steps.
    lambda: layers.Dense(4, "tanh"),
    shape=(3, 2),
)


@pytest.mark.thorough
def test_split_keeps_keras_masks():
    """Cuts after the mean over the sequence, which has no mask."""
    sequence = tf.constant([[[1.0, 2.0], [0.0, 0.0], [0.0, 0.0]]])
    whole, model = (from_keras(masked, input_shape=(3, 2), segments=n) for n in (1, 100))
    assert len(split(masked(), 100)) > 1
    weights = whole.init(0)
    assert_equal(model.apply(weights, sequence), whole.apply(weights, sequence))


@pytest.mark.thorough
def test_segments_accept_boolean_inputs():
    whole, model = (model_of(two_masks, segments=n) for n in (1, 2))
    weights, b = whole.init(0), batch()
    b = b._replace(x=b.x > 0)
    assert_close(model.gradient(weights, b), whole.gradient(weights, b), 1e-6)


class Doubled(tf.keras.Model):
    """A functional model that overrides `call`."""

    def call(self, x, training=None):
        return 2 * super().call(x, training)


def doubled():
    x = tf.keras.Input((4,))
    return Doubled(x, layers.Dense(3, name="head")(layers.Dense(5)(x)), name="doubled")


def test_split_refuses_other_models():
    for keras_model_fn, name in ((Subclassed, "mine"), (doubled, "doubled")):
        message = f"Keras model {name!r} cannot be cut into segments=2. Use a functional"
        with pytest.raises(ValueError, match=re.escape(message)):
            from_keras(keras_model_fn, input_shape=(4,), segments=2)
