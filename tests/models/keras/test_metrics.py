"""Tests metrics of Keras against Keras itself and scikit-learn, for clients of every kind."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from sklearn import metrics as sklearn

from tests.marks import slow
from tests.models.test_tasks import RNG, ROWS, X, linear, measured, outputs
from tff_pfl.models import TASKS, Task, keras_metrics
from tff_pfl.models.task import finalized

kind = tf.keras.metrics
Y, SCORES = np.array([0, 0, 1, 1, 0]), np.array([0.1, 0.8, 0.7, 0.9, 0.2], np.float32)


def value(metric, y, scores, weight=None, dtype="f4"):
    """Returns the metric of rows, followed by padding."""
    (made,) = keras_metrics([metric]).values()
    y, scores = (np.concatenate([rows, rows[:2] * 0]) for rows in (np.asarray(y, dtype), scores))
    weight = np.ones(len(y) - 2) if weight is None else np.array(weight)
    weight = tf.constant(np.concatenate([weight, [0, 0]]), tf.float32)
    return made.finalize(made.sums(tf.constant(y), tf.constant(scores), weight))


@pytest.mark.thorough
def test_keras_metrics_ignore_padding_and_take_weights():
    made = keras_metrics(
        [kind.AUC(curve="PR", name="pr_auc"), kind.MeanSquaredError],
        predictions=lambda z: tf.sigmoid(z[:, 0]),
    )
    assert [metric.direction for metric in made.values()] == [1, -1]
    model = linear(TASKS["binary"]().with_metrics(made), 1)
    y = RNG.integers(0, 2, ROWS).astype(np.float32)
    found, p = measured(model, X, y), 1 / (1 + np.exp(-outputs(model, X)[:, 0]))
    reference = kind.AUC(curve="PR")
    reference.update_state(y, p)
    assert found["pr_auc"] == pytest.approx(float(reference.result()), rel=1e-6)
    assert found["mean_squared_error"] == pytest.approx(np.mean((y - p) ** 2), rel=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("metric", "without_positives", "without_negatives"),
    [
        (kind.AUC(), np.nan, np.nan),
        slow(kind.AUC(curve="PR"), np.nan, 1.0),
        slow(kind.Precision(), 0.0, 1.0),
        slow(kind.Precision(thresholds=0.95), np.nan, np.nan),  # without predicted positives
        slow(kind.Recall(), np.nan, 0.6),
        slow(kind.SensitivityAtSpecificity(0.5), np.nan, np.nan),
        slow(kind.PrecisionAtRecall(0.5), np.nan, 1.0),
        slow(kind.F1Score("micro", 0.5), 0.0, 0.75),
        slow(kind.F1Score("micro", 0.95), np.nan, 0.0),
        (kind.F1Score("weighted", 0.5), np.nan, 0.75),
        slow(kind.FalsePositives(), 3.0, 0.0),
        slow(kind.BinaryAccuracy(), 0.4, 0.6),
        (kind.R2Score(), np.nan, np.nan),
    ],
)
def test_undefined_metrics_are_nan_as_in_tasks(metric, without_positives, without_negatives):
    for y, expected in ((0 * Y, without_positives), (0 * Y + 1, without_negatives)):
        found = value(metric, y, SCORES)
        assert float(found) == pytest.approx(expected, abs=1e-6, nan_ok=True)
    found = value(metric, Y, SCORES)
    metric.update_state(Y[:, np.newaxis].astype("f4"), SCORES[:, np.newaxis])
    if not np.isnan(found):
        assert float(found) == pytest.approx(float(metric.result()), abs=1e-6)
    assert np.isnan(value(metric, Y, SCORES, weight=0 * Y))


def test_metrics_that_know_their_labels_late_take_ids_of_classes_and_float64():
    y, scores = np.array([0, 2, 1, 1, 2]), np.eye(3, dtype=np.float32)[[0, 1, 1, 2, 2]]
    found = value(kind.F1Score("macro"), y, scores, dtype="i4")
    expected = sklearn.f1_score(y, scores.argmax(axis=1), average="macro")
    assert float(found) == pytest.approx(expected, rel=1e-6)
    found = value(kind.R2Score(), Y + 0.5, SCORES, dtype="f8")
    assert float(found) == pytest.approx(sklearn.r2_score(Y + 0.5, SCORES), rel=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("weights", [None, [1.0, 3.0, 2.0]])
def test_labels_without_both_values_are_left_out_of_the_mean_area(weights):
    y, scores = np.stack([Y, 0 * Y, 1 - Y], 1), np.stack([SCORES, SCORES, SCORES[::-1]], 1)
    metric = kind.AUC(multi_label=True, num_labels=3, label_weights=weights)
    areas = [sklearn.roc_auc_score(y[:, i], scores[:, i]) for i in (0, 2)]
    expected = np.average(areas, weights=weights and [1.0, 2.0])
    assert float(value(metric, y, scores)) == pytest.approx(expected, abs=1e-6)


def test_f1_of_each_label_is_a_metric_of_parts():
    ((name, metric),) = keras_metrics([kind.F1Score(average=None, threshold=0.5)]).items()
    metric = dataclasses.replace(metric, parts=("a", "b", "never"))
    y, scores = np.stack([Y, 1 - Y, 0 * Y], 1), np.stack([SCORES, SCORES, 0 * SCORES], 1)
    sums = metric.sums(tf.constant(y, tf.float32), tf.constant(scores), tf.ones(len(y)))
    found = [float(mean.total / mean.count) for mean in finalized(name, metric, sums).values()]
    expected = sklearn.f1_score(y, scores > 0.5, average=None, zero_division=np.nan)
    assert metric.quantities(name) == ["f1_score_a", "f1_score_b", "f1_score_never"]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_padding_is_a_real_row():
    """The quotient of zeros that would be padding is NaN, also times the weight 0."""
    y = np.eye(3)[[0, 1, 2, 2]]
    p = RNG.dirichlet(np.ones(3), 4).astype(np.float32)
    expected = sklearn.log_loss(y, p)
    found = value(kind.CategoricalCrossentropy(), y, p)
    assert float(found) == pytest.approx(expected, rel=1e-5)
    found = value(kind.CategoricalCrossentropy(), y, p, weight=[0, 1, 1, 1])
    assert float(found) == pytest.approx(-np.mean(np.log(p[[1, 2, 3], [1, 2, 2]])), rel=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("mask", [False, True])
def test_each_token_that_counts_is_a_row(mask):
    ids = RNG.integers(0, 7, (ROWS, 5)).astype(np.int32)
    ids[3] = 0  # a sequence without tokens
    y = {"ids": ids, "mask": (ids > 0).astype(np.uint8)} if mask else ids
    made = keras_metrics(
        [
            kind.SparseCategoricalAccuracy("keras_accuracy"),
            kind.SparseTopKCategoricalAccuracy(2, "top_2"),
            kind.SparseCategoricalCrossentropy("cross_entropy", from_logits=True),
        ],
    )
    task = TASKS["sequence"](padding_id=None if mask else 0).with_metrics(made)
    model = linear(task, 5 * 7, (5, 7))
    found, kept = measured(model, X, y), ids > 0
    z = outputs(model, X)[kept]
    assert found["keras_accuracy"] == pytest.approx(found["accuracy"], rel=1e-6)
    top_2 = sklearn.top_k_accuracy_score(ids[kept], z, k=2, labels=range(7))
    assert found["top_2"] == pytest.approx(top_2, rel=1e-6)
    assert found["cross_entropy"] == pytest.approx(found["loss"], rel=1e-5)


def test_counts_are_whole_numbers():
    """TFF's tasks of words and characters count tokens in int64."""

    class Count(kind.Metric):
        def __init__(self):
            super().__init__("tokens", tf.int64)
            self.number = self.add_weight("number", initializer="zeros", dtype=tf.int64)

        def update_state(self, y, predictions, sample_weight):
            self.number.assign_add(tf.cast(tf.reduce_sum(sample_weight), tf.int64))

        def result(self):
            return self.number

    def mean_label():
        return kind.MeanMetricWrapper(lambda y, z: y, "share", tf.int64)

    made = keras_metrics([Count, mean_label], directions={"tokens": 1, "share": 1})
    y, z = tf.ones([2, 3], tf.int64), tf.ones([2, 3, 4])
    weight = tf.constant([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    assert made["tokens"].finalize(made["tokens"].sums(y, z, weight)).numpy() == 3.0
    assert np.isnan(made["tokens"].finalize(made["tokens"].sums(y, z, 0 * weight)).numpy())
    assert made["share"].finalize(made["share"].sums(y[:, 0], y[:, 0], weight[:, 0])).numpy() == 1.0


@pytest.mark.thorough
def test_directions_follow_the_class():
    less = (kind.Hinge, kind.SquaredHinge, kind.CategoricalHinge, kind.LogCoshError, kind.Poisson)
    less += (kind.KLDivergence, kind.FalsePositives, kind.FalseNegatives, kind.MeanSquaredError)
    more = (kind.TruePositives, kind.CosineSimilarity, kind.AUC, kind.SparseCategoricalAccuracy)
    for kinds, direction in ((less, -1), (more, 1)):
        for made in kinds:
            ((_, metric),) = keras_metrics([made(name="own")]).items()
            assert metric.direction == direction, made
    made = keras_metrics([kind.Mean("own"), lambda: kind.MeanMetricWrapper(absolute, "mae")])
    with pytest.raises(ValueError, match="'own' does not say .* directions={'own': 1}"):
        Task("own", absolute, made)
    made = keras_metrics([kind.Mean("own")], directions={"own": -1})
    assert Task("own", absolute, made).quantities["own"].better == -1
    with pytest.raises(ValueError, match="Unknown metric of directions 'won'"):
        keras_metrics([kind.Mean("own")], directions={"won": -1})


def absolute(y, z):
    return tf.abs(y - z)
