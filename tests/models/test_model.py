"""Tests `tff_pfl.models.model` on a linear model of one weight matrix."""

import collections
import copy
import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tests.federation import local_sgd
from tests.marks import together
from tests.models.keras.test_adapter import layers, sequential
from tests.quadratics import quadratic_model
from tff_pfl import algorithms
from tff_pfl.arguments.kinds import KindError
from tff_pfl.local import Batch, ClientContext, examples_type, trees
from tff_pfl.models import TASKS, Mean, Metric, Model, from_keras, merged, prefixed
from tff_pfl.models.tasks import correct, sparse_cross_entropy
from tff_pfl.tracing.errors import BlockTracingError

RNG = np.random.default_rng(0)
KERNEL = RNG.normal(size=(3, 4)).astype(np.float32)
X = RNG.normal(size=(5, 3)).astype(np.float32)
Y = np.array([0, 3, 1, 2, 2], np.int32)


def init(seed):
    kernel = tf.random.stateless_normal([3, 4], [seed, 0])
    return collections.OrderedDict(
        linear=collections.OrderedDict(kernel=kernel),
        unused=collections.OrderedDict(w=tf.ones([2])),
    )


MODEL = Model(
    init=init,
    apply=lambda weights, x, training, seed: x @ weights["linear"]["kernel"],
    task=TASKS["classification"](),
)


def make_batch(weight, x=X, y=Y):
    return Batch(tf.constant(x), tf.constant(y), tf.constant(weight), tf.zeros([2], tf.int32))


def weights():
    return {"linear": {"kernel": tf.constant(KERNEL)}, "unused": {"w": tf.ones([2])}}


@pytest.mark.parametrize("rows", [[0, 1, 2, 3, 4], [1, 4]])
def test_rows_of_weight_zero_are_ignored(rows):
    weight = np.isin(np.arange(5), rows).astype(np.float32)
    x = np.where(weight[:, None] > 0, X, 1e3).astype(np.float32)
    gradient, totals = MODEL.gradient(weights(), make_batch(weight, x))

    logits = X[rows] @ KERNEL
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    expected = X[rows].T @ (p - np.eye(4)[Y[rows]]) / len(rows)
    np.testing.assert_allclose(gradient["linear"]["kernel"], expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(gradient["unused"]["w"], [0.0, 0.0])
    loss = -np.log(p[np.arange(len(rows)), Y[rows]]).sum()
    np.testing.assert_allclose(totals["loss"].total, loss, rtol=1e-5)
    assert totals["accuracy"].total == np.sum(logits.argmax(axis=1) == Y[rows])
    assert totals["loss"].count == totals["accuracy"].count == len(rows)
    tf.nest.map_structure(
        np.testing.assert_array_equal, MODEL.totals(weights(), make_batch(weight, x)), totals
    )


def test_batch_without_examples_has_gradient_zero():
    gradient, totals = MODEL.gradient(weights(), make_batch(np.zeros(5, np.float32)))
    for value in tf.nest.flatten((gradient, totals)):
        assert not np.any(value)
    tf.nest.assert_same_structure(totals, MODEL.zero_totals())


def test_gradient_of_embeddings_is_a_tensor():
    """Returns no `IndexedSlices`, which clipping, for example, does not accept."""
    network = sequential(lambda: layers.Embedding(6, 3), layers.GlobalAveragePooling1D)
    model = from_keras(network, input_shape=(4,))
    words = tf.constant([[1, 1, 2, 5], [0, 1, 0, 2]])
    batch = Batch(words, tf.constant([0, 1]), tf.ones([2]), tf.constant([1, 2]))
    weights = model.init(0)
    gradient, _ = model.gradient(weights, batch)
    hidden = tf.reduce_mean(tf.gather(weights["embedding"]["embeddings"], words), axis=1)
    head = weights["head"]
    residual = tf.nn.softmax(hidden @ head["kernel"] + head["bias"]) - tf.eye(2, 3)
    gradient_of_hidden = residual / 2 @ tf.transpose(head["kernel"])
    expected = np.zeros([6, 3])
    np.add.at(expected, words.numpy(), gradient_of_hidden[:, tf.newaxis] / 4)
    assert tf.is_tensor(gradient["embedding"]["embeddings"])
    np.testing.assert_allclose(gradient["embedding"]["embeddings"], expected, atol=1e-7)
    longest = 0.1 * float(trees.norm(gradient))
    assert float(trees.norm(trees.clip(gradient, longest))) == pytest.approx(longest)


@pytest.mark.parametrize(
    ("where", "value", "message"),
    [
        ("loss", tf.keras.losses.SparseCategoricalCrossentropy(True), r"'loss' of shape \(\) for"),
        ("accuracy", lambda y, z: correct(y, z)[:, None], r"'accuracy' of shape \(5, 1\)"),
    ],
)
def test_loss_and_metrics_must_be_one_number_per_example(where, value, message):
    if where == "loss":
        task = MODEL.task.with_loss(value)
    else:
        task = MODEL.task.with_metrics({where: Metric(values=value, direction=1)})
    model = dataclasses.replace(MODEL, task=task)
    with pytest.raises(ValueError, match=message):
        model.totals(weights(), make_batch(np.ones(5, np.float32)))


def centered(x):
    return x - tf.reduce_mean(x, axis=0)


class Centered(layers.Layer):
    def call(self, h):
        return centered(h)


def network(*makers):
    def keras_model_fn():
        head = tf.keras.layers.Dense(4, name="head", kernel_initializer="zeros")
        return tf.keras.Sequential([tf.keras.Input((3,)), *(make() for make in makers), head])

    return keras_model_fn


def mean_error(y, z):
    """Broadcasts `[batch]` and `[batch, 1]` to `[batch, batch]` by mistake."""
    return tf.reduce_mean(tf.abs(tf.cast(y, tf.float32) - z[:, :1]), axis=1)


class CenteredWhile(layers.Layer):
    """A layer that centres either in training or in evaluation."""

    def __init__(self, training):
        super().__init__()
        self._while = training

    def call(self, h, training=None):
        return centered(h) if training == self._while else h


def test_dependence_on_other_rows_is_found_in_training_and_evaluation():
    batch = make_batch(np.ones(5, np.float32))
    for when in (True, False):
        model = from_keras(network(lambda when=when: CenteredWhile(when)), input_shape=(3,))
        model.totals(model.init(0), batch, training=not when)
        with pytest.raises(ValueError, match="depends on other rows"):
            model.totals(model.init(0), batch, training=when)


@pytest.mark.thorough
def test_dependence_on_other_rows_is_found_below_many_layers():
    deep = sequential(*[lambda: layers.Dense(16, "relu")] * 9, shape=(3,))
    for scaled in (lambda x: floats(x) / 255, lambda x: floats(x > 127)):
        model = from_keras(deep, input_shape=(3,), preprocess=lambda x: centered(scaled(x)))  # noqa: B023
        batch = make_batch(np.ones(5, np.float32), np.zeros([5, 3], np.uint8))
        with pytest.raises(ValueError, match="depends on other rows"):
            model.totals(model.init(0), batch)


def floats(x):
    return tf.cast(x, tf.float32)


@pytest.mark.parametrize("name", ["fedrep", "pfedmb"])
def test_algorithms_with_derived_models_find_dependence_on_other_rows(name):
    linear_network = sequential(Centered, lambda: layers.Dense(4, name="body"), shape=(3,))
    model = from_keras(linear_network, input_shape=(3,))
    with pytest.raises(BlockTracingError, match="depends on other rows"):
        algorithms.build(name, model, examples_type((3,), np.float32), local_sgd())


def centering(weights, x, **_):
    return centered(x) @ weights["linear"]["kernel"]


WITH_ERROR = MODEL.task.with_metrics({"error": Metric(values=mean_error)})


@together(
    ("name", "make"),
    [
        ("loss", lambda: from_keras(network(), input_shape=(3,), preprocess=centered)),
        ("loss", lambda: dataclasses.replace(MODEL, apply=centering)),
        ("error", lambda: dataclasses.replace(MODEL, task=WITH_ERROR)),
    ],
)
def test_dependence_on_other_rows_is_refused(name, make):
    """Refuses it because padding rows would have an effect."""
    model = make()
    with pytest.raises(ValueError, match=f"^The {name} of an example .* other rows"):
        model.totals(model.init(0), make_batch(np.ones(5, np.float32)))
    totals = model.totals(model.init(0), make_batch([1.0], X[:1], Y[:1]))  # It has one row.
    assert totals["loss"].count == 1


def test_check_of_rows_passes_if_random_inputs_fail():
    def guarded(weights, x, training, seed):
        tf.debugging.assert_greater(x, 2.0)
        return x @ weights["linear"]["kernel"]

    model = dataclasses.replace(MODEL, apply=guarded)
    totals = model.totals(weights(), make_batch(np.ones(5, np.float32), X + 10))
    assert totals["loss"].count == 5


def test_properties_describe_the_weights():
    assert MODEL.layers == ("linear", "unused")
    assert MODEL.num_weights == 14
    assert str(MODEL.weights_type) == "<linear=<kernel=float32[3,4]>,unused=<w=float32[2]>>"
    assert quadratic_model(2, 1).layers == ("layer0", "layer1")


@pytest.mark.parametrize("zeros", [np.zeros, tf.zeros])
def test_large_constants_of_derived_models_are_refused(zeros):
    def with_constant(size):
        constant = zeros([size], "float32")

        def weights_of(kernel):
            added = tf.reduce_sum(tf.identity(constant))
            return MODEL.init(0) | {"linear": {"kernel": kernel + added}}

        return MODEL.in_terms_of(lambda seed: tf.zeros([3, 4]), weights_of)

    assert with_constant(2**23 - 100).num_weights == 12
    with pytest.raises(ValueError, match=r"constants of weights_of have .* at most 33,554,432 "):
        with_constant(2**23 + 1)


def test_weights_must_be_float32():
    """Raises one clear error, since optimizers either raise unclear errors or diverge."""

    def mixed(seed):
        return {"a": {"w": tf.zeros([2])}, "b": {"w": tf.zeros([2], tf.float16)}}

    model, message = dataclasses.replace(MODEL, init=mixed), "but b/w is float16"
    with pytest.raises(KindError, match=message):
        _ = model.weights_type
    with pytest.raises(KindError, match=message):
        local_sgd().train(model, mixed(0), None, ClientContext(0, 0, np.zeros(2, np.int32)))


def test_loss_and_metrics_accept_all_float_and_integer_types():
    for logits_type, label_type in ((tf.float16, tf.int64), (tf.bfloat16, tf.int32)):
        logits, y = tf.constant([[0.0, 1.0], [2.0, 0.0]], logits_type), tf.ones([2], label_type)
        np.testing.assert_array_equal(correct(y, logits), [1.0, 0.0])
        loss = tf.cast(sparse_cross_entropy(y, logits), tf.float32)
        np.testing.assert_allclose(loss, np.log1p(np.exp([-1.0, 2.0])), rtol=0.02)
        model = dataclasses.replace(MODEL, apply=lambda *_, logits=logits, **__: logits)
        totals = model.totals((), Batch(tf.zeros([2, 1]), y, tf.ones([2]), None))
        assert {value.dtype for value in tf.nest.flatten(totals)} == {tf.float32}
        assert totals["accuracy"].total == 1.0


def test_merged_refuses_two_totals_of_the_same_name():
    first, second = {"loss": Mean(1.0, 1.0)}, {"accuracy": Mean(2.0, 1.0)}
    assert merged(first, prefixed("personal", second)) == {
        "loss": Mean(1.0, 1.0),
        "personal_accuracy": Mean(2.0, 1.0),
    }
    with pytest.raises(ValueError, match="both have a metric 'personal_accuracy'"):
        merged({"personal_accuracy": Mean(0.0, 1.0)}, prefixed("personal", second))


CORRECT = Metric(values=correct)


@together(
    ("changes", "error", "message"),
    [
        ({"metrics": {"a/b": CORRECT}}, ValueError, "have 'a/b'. A metric's name may contain"),
        ({"metrics": {"loss": CORRECT}}, ValueError, "have 'loss' twice"),
        ({"metrics": {"ap_mean": CORRECT}}, ValueError, "have 'ap_mean', but reports"),
        ({"metrics": ["accuracy"]}, TypeError, r"must be a mapping .* got \['accuracy'\]"),
        ({"metrics": {"mae": 0.5}}, TypeError, "The metric 'mae' must be of type Metric"),
        ({"example_loss": None}, TypeError, "example_loss of a task must be a function, got None"),
        ({"example_loss": tf.keras.Sequential()}, TypeError, "must be a function, got <keras"),
    ],
)
def test_task_refuses_invalid_metric_names_and_functions(changes, error, message):
    with pytest.raises(error, match=message):
        dataclasses.replace(MODEL.task, **changes)


def test_copy_of_a_model_is_the_model():
    model = from_keras(network(lambda: CenteredWhile(None)), input_shape=(3,))
    assert model.weights_type is not None  # which cannot be copied
    assert copy.deepcopy({"model": model})["model"] is model
