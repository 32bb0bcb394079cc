"""Tests the shipped tasks on linear models against NumPy and scikit-learn."""

import collections
import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from sklearn import metrics as sklearn

from tests.marks import together
from tff_pfl.local import Examples, evaluate, exact_gradient, metric_sums
from tff_pfl.models import TASKS, Metric, Model, Task

RNG = np.random.default_rng(0)
ROWS, DIM = 23, 3
X = RNG.normal(size=(ROWS, DIM)).astype(np.float32)


def linear(task, num_outputs, shape=()):
    """Returns a model `x @ kernel`, whose outputs have a shape for each example."""

    def init(seed):
        kernel = tf.random.stateless_normal([DIM, num_outputs], [seed, 1])
        return collections.OrderedDict(head=collections.OrderedDict(kernel=kernel))

    def apply(weights, x, *, training, seed):
        return tf.reshape(x @ weights["head"]["kernel"], [-1, *(shape or (num_outputs,))])

    return Model(init, apply, task)


def measured(model, x, y, size=None, batch_size=4):
    """Returns the metrics of a client with padding, whose labels and inputs hold NaN."""
    examples = padded(x, y, len(x) if size is None else size)
    sums = metric_sums(model, model.init(0), examples, batch_size=batch_size)
    found = model.finalized(sums)
    return {name: float(mean.total / mean.count) for name, mean in found.items()}


def padded(x, y, size):
    def more(rows):
        filler = np.full((3, *rows.shape[1:]), np.nan if rows.dtype.kind == "f" else 1)
        return tf.constant(np.concatenate([rows[:size], filler.astype(rows.dtype)]))

    return Examples(more(x), tf.nest.map_structure(more, y), tf.constant(size))


def outputs(model, x):
    return model.apply(model.init(0), x, training=False, seed=None).numpy()


def test_regression_against_numpy_and_scikit_learn():
    model = linear(TASKS["regression"](), 2)
    y = (100 + RNG.normal(size=(ROWS, 2))).astype(np.float32)
    found, z = measured(model, X, y), outputs(model, X)
    assert found["loss"] == found["mse"] == pytest.approx(np.mean((y - z) ** 2), rel=1e-5)
    assert found["mae"] == pytest.approx(np.mean(np.abs(y - z)), rel=1e-5)
    assert found["r2"] == pytest.approx(sklearn.r2_score(y, z), rel=1e-4)
    gradient = exact_gradient(model, model.init(0), padded(X, y, ROWS), batch_size=4).gradient
    expected = X.T @ (z - y) / ROWS  # the mean over two numbers cancels the factor 2
    np.testing.assert_allclose(gradient["head"]["kernel"], expected, rtol=1e-4)


def test_binary_against_scikit_learn():
    model = linear(TASKS["binary"](), 1)
    z = outputs(model, X)[:, 0]
    y = (z + RNG.normal(size=ROWS) > 0).astype(np.int32)
    found, p = measured(model, X, y), 1 / (1 + np.exp(-z.astype(np.float64)))
    assert found["loss"] == pytest.approx(sklearn.log_loss(y, p), rel=1e-5)
    assert found["accuracy"] == pytest.approx(sklearn.accuracy_score(y, z > 0))
    assert found["auc"] == pytest.approx(sklearn.roc_auc_score(y, z), abs=1e-6)
    assert found["precision"] == pytest.approx(sklearn.precision_score(y, z > 0))
    assert found["recall"] == pytest.approx(sklearn.recall_score(y, z > 0))
    assert found["f1"] == pytest.approx(sklearn.f1_score(y, z > 0))
    gradient = exact_gradient(model, model.init(0), padded(X, y, ROWS), batch_size=4).gradient
    np.testing.assert_allclose(gradient["head"]["kernel"][:, 0], X.T @ (p - y) / ROWS, rtol=1e-4)


# The mean and the spread of logits, and the largest mean and single errors of 20 examples.
SCALES = [
    *(((0, spread), 1e-4, 1e-3) for spread in (1e-4, 0.01, 1, 100)),
    ((-5, 1), 1e-3, 1e-2),
    ((60, 1), 1e-2, 3e-2),
    ((-5, 0.01), 3e-2, 8e-2),
    ((0, 1e-9), 5e-2, 0.1),
    ((1e4, 50), 1.2e-2, 0.04),  # beyond 8,192
    ((-1e4, 1e4), 1e-3, 1e-2),
    ((1e12, 2e10), 3e-2, 0.06),
    ((0, 1e30), 2e-2, 0.1),
]


@pytest.mark.thorough_but_one
@pytest.mark.parametrize("name", ["binary", "multi_label"])
@pytest.mark.parametrize(("scale", "mean_error", "largest_error"), SCALES)
def test_area_under_the_curve_at_any_scale(name, scale, mean_error, largest_error):
    auc = TASKS[name](bins=8000).metrics["auc"]
    rng = np.random.default_rng(0)
    for number, factor in ((20, 1.0), (1000, 0.15)):
        compute = tf.function(lambda y, z, n=number: auc.finalize(auc.sums(y, z, tf.ones(n))))
        errors = []
        for _ in range(20):
            y = rng.integers(0, 2, number)
            y[:2] = 0, 1
            z = (scale[0] + scale[1] * (y + rng.normal(size=number))).astype(np.float32)
            found = compute(tf.constant(y[:, np.newaxis]), tf.constant(z[:, np.newaxis]))
            errors.append(float(found) - sklearn.roc_auc_score(y, z))
        assert np.mean(np.abs(errors)) < factor * mean_error
        assert np.max(np.abs(errors)) < factor * largest_error


def test_area_is_exact_across_the_edges_of_outer_bins():
    auc = TASKS["binary"]().metrics["auc"]
    z = tf.constant([-np.inf, -1e5, -8200, -8192, 0, 8192, 8200, 1e30, np.inf], tf.float32)
    for negatives in range(1, 9):
        y = tf.constant(np.arange(9) >= negatives)[:, tf.newaxis]
        assert float(auc.finalize(auc.sums(y, z[:, tf.newaxis], tf.ones(9)))) == 1, negatives


def test_area_of_equal_and_of_infinite_logits():
    auc = TASKS["binary"]().metrics["auc"]
    y = tf.constant([[0.0], [1.0], [0.0], [1.0], [1.0]])
    z = tf.constant([[0.37]] * 4 + [[np.inf]])
    assert float(auc.finalize(auc.sums(y, z, tf.ones(5)))) == pytest.approx(2 / 3)


@together("logit", [-3000.0, -60.0, 0.5, 60.0, 8000.0])
def test_area_of_two_close_logits_is_exact(logit):
    auc, z = TASKS["binary"]().metrics["auc"], tf.constant([[logit], [logit * (1 + 1e-6)]])
    for y in ([[0.0], [1.0]], [[1.0], [0.0]]):
        found = float(auc.finalize(auc.sums(tf.constant(y), z, tf.ones(2))))
        assert found == pytest.approx(float((y[1] > y[0]) == (logit > 0)), abs=1e-3)


def test_labels_that_do_not_fit_are_refused():
    """Without a check, the loss of labels -1 falls without bound."""
    binary, classes = TASKS["binary"](), TASKS["classification"]()
    binary.check_data(np.array([0.0, 1.0]), None, "own")
    with pytest.raises(ValueError, match="labels of 'own' do not fit.*0 or 1, found -1"):
        binary.check_data(np.array([1, -1]), None, "own")
    with pytest.raises(ValueError, match="needs class labels, but 'own' has num_classes=None"):
        classes.check_data(np.array([0, 1]), None, "own")
    for y, message in (
        (np.eye(3)[[0, 2, 1]], r"are one-hot. Pass y.argmax\(axis=1\)."),
        (np.array([[0], [2]]), r"have the shape \(2, 1\). Pass y\[:, 0\].astype\(int\)."),
        (np.array([0.0, 2.0], np.float32), r"are float32. Pass y.astype\(int\)."),
        (np.array([0.5, 2.0]), "has num_classes=None"),
        (np.array([[0.5], [2.0]]), "has num_classes=None"),
    ):
        with pytest.raises(
            ValueError, match=f"'classification' needs class labels, but .*{message}"
        ):
            classes.check_data(y, None, "own")
    with pytest.raises(ValueError, match=r"got the shapes \(5,\) and \(4, 7\)"):
        y, logits = np.ones([2, 5], np.int32), tf.zeros([2, 4, 7])
        TASKS["sequence"]().example_loss(tf.constant(y), logits)


def test_multi_label_against_scikit_learn():
    model = linear(TASKS["multi_label"](), 4)
    z = outputs(model, X)
    y = (z + 2 * RNG.normal(size=z.shape) > 0).astype(np.float32)
    y[:, 3], undefined = 0, np.nan  # a label that no example has
    found, right = measured(model, X, y), z > 0
    assert found["auc"] == pytest.approx(sklearn.roc_auc_score(y[:, :3], z[:, :3]), abs=1e-6)
    for name, function, average in (
        ("precision", sklearn.precision_score, "micro"),
        ("recall", sklearn.recall_score, "micro"),
        ("f1_micro", sklearn.f1_score, "micro"),
        ("f1_macro", sklearn.f1_score, "macro"),
    ):
        expected = function(y, right, average=average, zero_division=undefined)
        assert found[name] == pytest.approx(expected, rel=1e-6), name


def assert_counts_tokens(model, y, ids, kept):
    """Compares with scikit-learn on some tokens; returns the metrics and the probabilities."""
    found, z = measured(model, X, y), outputs(model, X)
    p = np.exp(z) / np.exp(z).sum(-1, keepdims=True)
    loss = sklearn.log_loss(ids[kept], p[kept], labels=range(z.shape[-1]))
    assert found["loss"] == pytest.approx(loss, rel=1e-5)
    assert found["accuracy"] == pytest.approx(np.mean(z.argmax(-1)[kept] == ids[kept]))
    return found, p


@pytest.mark.parametrize("mask", [False, True])
def test_sequence_counts_tokens(mask):
    model = linear(TASKS["sequence"](padding_id=None if mask else 0), 5 * 7, (5, 7))
    ids = RNG.integers(0, 7, (ROWS, 5)).astype(np.int32)
    ids[3] = 0  # a sequence without tokens
    y = {"ids": ids, "mask": (ids > 0).astype(np.uint8)} if mask else ids
    kept = ids > 0
    found, p = assert_counts_tokens(model, y, ids, kept)
    assert found["perplexity"] == pytest.approx(np.exp(found["loss"]), rel=1e-5)
    gradient = exact_gradient(model, model.init(0), padded(X, y, ROWS), batch_size=4).gradient
    residual = np.where(kept[..., np.newaxis], p - np.eye(7)[ids], 0) / kept.sum()
    expected = np.einsum("nd,ntv->dtv", X, residual).reshape(DIM, -1)
    np.testing.assert_allclose(gradient["head"]["kernel"], expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("padding_id", [0, -100])
def test_tags_0_count_where_padding_is_something_else(padding_id):
    """Padding is told by a mask, or by a label without a logit; three quarters of tags are 0."""
    tags = np.where(RNG.random((ROWS, 5)) < 0.75, 0, 1).astype(np.int32)
    kept = np.arange(5) < RNG.integers(1, 6, (ROWS, 1))
    y = np.where(kept, tags, -100).astype(np.int32)
    y = y if padding_id else {"ids": y, "mask": kept}
    model = linear(TASKS["sequence"](padding_id=padding_id, top=(2,)), 5 * 3, (5, 3))
    assert_counts_tokens(model, y, tags, kept)
    gradient = exact_gradient(model, model.init(0), padded(X, y, ROWS), batch_size=4).gradient
    assert np.isfinite(gradient["head"]["kernel"]).all()


def test_autoencoding_scales_bytes():
    model = linear(TASKS["autoencoding"](scale=1 / 255), 2)
    y = RNG.integers(0, 256, (ROWS, 2)).astype(np.uint8)
    expected = np.mean((y / 255 - outputs(model, X)) ** 2)
    assert measured(model, X, y)["loss"] == pytest.approx(expected, rel=1e-5)


def test_top_k_against_scikit_learn():
    model = linear(TASKS["classification"](top=(2,)), 4)
    y = RNG.integers(0, 4, ROWS).astype(np.int32)
    expected = sklearn.top_k_accuracy_score(y, outputs(model, X), k=2, labels=range(4))
    assert measured(model, X, y)["top_2_accuracy"] == pytest.approx(expected)


def assert_of_classes(found, y, predicted, names):
    """Compares the metrics of each class with scikit-learn's, NaN where these are undefined."""
    functions = [sklearn.precision_score, sklearn.recall_score, sklearn.f1_score]
    for name, function in zip(["precision", "recall", "f1"], functions, strict=True):
        options = {"labels": range(len(names)), "average": None, "zero_division": np.nan}
        expected = function(y, predicted, **options)
        of_classes = [found[f"{name}_{it}"] for it in names]
        np.testing.assert_allclose(of_classes, expected, rtol=1e-6, err_msg=name)
    assert found["f1_macro"] == pytest.approx(sklearn.f1_score(y, predicted, average="macro"))


def test_metrics_of_each_class_against_scikit_learn():
    names = ["cat", "dog", "bird", "none"]
    model = linear(TASKS["classification"](classes=names), 4)
    z = outputs(model, X)
    z[:, 3] = -np.inf
    task = model.task.of(lambda outputs: outputs - tf.constant([0.0, 0.0, 0.0, 1e9]))
    y = RNG.integers(0, 2, ROWS).astype(np.int32)  # no bird; "none" is not even predicted
    found = measured(dataclasses.replace(model, task=task), X, y)
    assert np.isnan(found["recall_bird"]) and np.isnan(found["f1_none"])
    assert_of_classes(found, y, z.argmax(-1), names)


def test_diverged_models_are_wrong_for_every_class():
    task = TASKS["classification"](classes=2)
    counts = task.metrics["f1"].sums(tf.constant([0, 1]), tf.fill([2, 2], np.nan), tf.ones([2]))
    assert task.metrics["f1"].finalize(counts).numpy().tolist() == [0, 0]
    with pytest.raises(ValueError, match="names 2 classes, but the model has 3 logits"):
        task.metrics["f1"].sums(tf.constant([0]), tf.zeros([1, 3]), tf.ones([1]))


def test_tags_of_a_sequence_against_scikit_learn():
    model = linear(TASKS["sequence"](top=(2,), classes=4), 5 * 4, (5, 4))
    ids = RNG.integers(0, 4, (ROWS, 5)).astype(np.int32)
    found, z, kept = measured(model, X, ids), outputs(model, X), ids > 0
    top = sklearn.top_k_accuracy_score(ids[kept], z[kept], k=2, labels=range(4))
    assert found["top_2_accuracy"] == pytest.approx(top)
    assert_of_classes(found, ids[kept], z[kept].argmax(-1), range(4))


def test_parts_of_metrics_are_quantities_with_names_of_their_own():
    def sums(y, z, weight):
        return tf.reduce_sum(weight), tf.tensordot(weight, tf.abs(z - y), 1)

    per_axis = Metric(sums, lambda s: s[1] / s[0], direction=-1, parts=("x", "y"))
    task = TASKS["regression"]().with_metrics({"deviation": per_axis})
    assert task.quantities["deviation_y"].better == -1 and "deviation" not in task.quantities
    model, y = linear(task, 2), np.zeros([ROWS, 2], np.float32)
    found, expected = measured(model, X, y), np.abs(outputs(model, X)).mean(0)
    assert [found["deviation_x"], found["deviation_y"]] == pytest.approx(expected, rel=1e-5)
    with pytest.raises(ValueError, match="'mae_y' twice"):
        task.with_metrics({"mae": per_axis, "mae_y": task.metrics["mse"]})
    for parts, message in (((), "one number, but has the shape"), ("xyz", "3 numbers")):
        wrong = task.with_metrics({"deviation": dataclasses.replace(per_axis, parts=parts)})
        with pytest.raises(ValueError, match=message):
            measured(dataclasses.replace(model, task=wrong), X, y)


@pytest.mark.thorough
@pytest.mark.parametrize("size", [0, 1, 5])
def test_undefined_metrics_are_nan(size):
    """Evaluates no example, one, and several of one class or of one target."""
    zeros = np.zeros(ROWS, np.float32)
    found = measured(linear(TASKS["binary"](), 1), X, zeros, size)
    assert np.isnan(found["auc"]) and np.isnan(found["recall"])
    assert np.isnan(found["accuracy"]) == (size == 0)
    found = measured(linear(TASKS["regression"](), 1), X, zeros + 0.1, size)
    assert np.isnan(found["r2"]) and np.isnan(found["mse"]) == (size == 0)
    task = TASKS["sequence"]()
    found = measured(linear(task, 14, (2, 7)), X, np.zeros([ROWS, 2], np.int32), size)
    assert np.isnan(found["perplexity"]) and np.isnan(found["loss"])


def test_main_metric_comes_first():
    task = TASKS["binary"]()
    others = [name for name in task.metrics if name != "auc"]
    led = task.with_main_metric("auc")
    assert list(led.metrics) == ["auc", *others] and dict(led.metrics) == dict(task.metrics)
    with pytest.raises(ValueError, match="Unknown metric 'acc'"):
        task.with_main_metric("acc")


def test_methods_get_the_totals_of_means_only():
    model = linear(TASKS["regression"](), 1)
    totals = evaluate(model, model.init(0), padded(X, X[:, 0], ROWS))
    assert list(totals) == ["loss", "mse", "mae"]


def test_metrics_are_means_or_sums():
    for options in ({}, {"sums": tf.add}, {"values": tf.add, "finalize": tf.add}):
        with pytest.raises(ValueError, match="either values, .* or sums and finalize"):
            Metric(**options)


def absolute(y, z):
    return tf.abs(y - z)


def test_directions_are_stated_or_known_by_the_name_and_else_asked_for():
    task = Task("own", absolute, {"mae": Metric(values=absolute), "auc": Metric(tf.add, tf.add)})
    assert [task.quantities[name].better for name in ("mae", "auc", "loss")] == [-1, 1, -1]
    stated = task.with_metrics({"mae": Metric(values=absolute, direction=1)})
    assert stated.quantities["mae"].better == 1
    with pytest.raises(ValueError, match="'within' does not say whether more of it is better"):
        task.with_metrics({"within": Metric(values=absolute)})


def counted(y, outputs, weight):
    """Returns sums in which each row counts, also padding."""
    del weight
    return tf.reduce_sum(tf.abs(y - outputs[:, 0])), tf.cast(tf.size(y), tf.float32)


def as_matrix(y, outputs, weight):
    """Returns sums over a matrix of all pairs of rows."""
    return tf.reduce_sum(weight * tf.abs(y - outputs)), tf.reduce_sum(weight)


def of_rows(y, outputs, weight):
    """Returns the sums that `counted` and `as_matrix` mean."""
    error = tf.math.multiply_no_nan(tf.abs(y - outputs[:, 0]), weight)
    return tf.reduce_sum(error), tf.reduce_sum(weight)


def with_own_error(sums):
    metric = Metric(sums, lambda pair: pair[0] / pair[1])
    return linear(TASKS["regression"]().with_metrics({"own_mae": metric}), 1)


@pytest.mark.parametrize("sums", [counted, as_matrix])
def test_sums_that_padding_changes_are_refused(sums):
    with pytest.raises(ValueError, match="'own_mae' do not add up .* outputs\\[:, 0\\]"):
        measured(with_own_error(sums), X, X[:, 0])


def test_sums_of_the_rows_that_count_are_a_metric():
    model = with_own_error(of_rows)
    found = measured(model, X, X[:, 0])
    assert found["own_mae"] == pytest.approx(found["mae"], rel=1e-5)


def test_labels_of_another_shape_are_not_compared_crosswise():
    loss = TASKS["regression"]().example_loss
    y = RNG.normal(size=(4, 2, 3)).astype(np.float32)
    with pytest.raises(ValueError, match=r"shape \(2, 3\) .* have the shape \(3, 2\)"):
        loss(tf.constant(y), tf.constant(y.reshape(4, 3, 2)))
    for z in (y.reshape(4, 6), y[..., np.newaxis], y):
        np.testing.assert_array_equal(loss(tf.constant(y), tf.constant(z)), np.zeros(4))


def test_r2_of_targets_that_differ_by_a_millionth():
    y = (1e6 + np.array([[0], [0.5], [1]])).astype(np.float32)
    z = y + np.array([[0.25], [-0.25], [0]], np.float32)
    for count in (1, 1000):
        y, z = np.tile(y, (count, 1)), np.tile(z, (count, 1))
        r2 = TASKS["regression"]().metrics["r2"]
        sums = r2.sums(tf.constant(y), tf.constant(z), tf.ones(len(y)))
        assert float(r2.finalize(sums)) == pytest.approx(sklearn.r2_score(y, z), abs=1e-3)
        sums = r2.sums(tf.constant(0 * y + 0.1), tf.constant(z), tf.ones(len(y)))
        assert np.isnan(r2.finalize(sums))
