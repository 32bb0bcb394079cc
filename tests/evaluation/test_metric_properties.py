"""Tests all metrics of random clients, and what reports make of them, against other libraries.

Clients have no, one, few or many examples, of one class or of several, with and without weight, and
logits of any scale. References are scikit-learn's, SciPy's, NumPy's and Keras' numbers for the rows
that count.
"""

import collections
import functools
import warnings

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special
from sklearn import metrics as sklearn

from tests.marks import slow
from tff_pfl.evaluation import ClientMetrics, MetricName, gains, gains_of_clients, summarize
from tff_pfl.local import Examples, metric_sums
from tff_pfl.models import TASKS, Model, keras_metrics

CAPACITY, CLASSES, LABELS, LENGTH = 30, 4, 3, 2
SIZES = (0, 1, 2, 5, CAPACITY)
NAN, kind = float("nan"), tf.keras.metrics


def classification(y, z):
    loss = -special.log_softmax(z, 1)[np.arange(len(y)), y].mean()
    own = z[np.arange(len(y)), y][:, np.newaxis]
    found = {"loss": loss, "accuracy": np.mean(z.argmax(1) == y)}
    return found | {"top_2_accuracy": np.mean((z > own).sum(1) < 2)}


def cross_entropy(y, z):
    return np.mean(np.logaddexp(0, z) - y * z)


def area(y, z):
    return sklearn.roc_auc_score(y, z) if len(np.unique(y)) == 2 else NAN


def share_in_one_bin(y, z):
    """Returns the share of pairs that `area` orders by means and variances; others are exact.

    Of 2,000 bins, each is 2.2 % of its logits wide, and 1.6e-7 around 0.
    """
    positive, negative = z[y == 1][:, np.newaxis], z[y == 0]
    width = np.maximum(0.022 * np.maximum(abs(positive), abs(negative)), 2e-7)
    return np.mean(abs(positive - negative) < width) if len(np.unique(y)) == 2 else NAN


def of_counts(y, z, **options):
    names = {"precision": sklearn.precision_score, "recall": sklearn.recall_score}
    return {
        name: function(y, z > 0, zero_division=np.nan, **options)
        for name, function in (names | {"f1": sklearn.f1_score}).items()
    }


def binary(y, z):
    found = {"loss": cross_entropy(y, z), "accuracy": np.mean((z > 0) == y), "auc": area(y, z)}
    return found | of_counts(y, z) | {"auc error": share_in_one_bin(y, z)}


def multi_label(y, z):
    areas, errors = (
        np.nanmean([function(y[:, i], z[:, i]) for i in range(LABELS)])
        for function in (area, share_in_one_bin)
    )
    found = {"loss": cross_entropy(y, z), "accuracy": np.mean((z > 0) == y)}
    counts = of_counts(y, z, average="micro")
    macro = [of_counts(y[:, i], z[:, i])["f1"] for i in range(LABELS)]
    means = {"auc": areas, "auc error": errors, "f1_macro": np.nanmean(macro)}
    return found | means | counts | {"f1_micro": counts.pop("f1")}


def regression(y, z):
    parts = [
        sklearn.r2_score(y[:, i], z[:, i]) for i in range(LABELS) if len(np.unique(y[:, i])) > 1
    ]
    found = {"mse": np.mean((y - z) ** 2), "mae": np.mean(np.abs(y - z))}
    return found | {"loss": found["mse"], "r2": np.mean(parts) if parts else NAN}


def sequence(y, z):
    y, z = y[y > 0], z[y > 0]
    found = classification(y, z)
    found.pop("top_2_accuracy")
    return found | {"perplexity": np.exp(min(found["loss"], 1e3))}


REFERENCES = {
    "classification": classification,
    "binary": binary,
    "multi_label": multi_label,
    "regression": regression,
    "sequence": sequence,
}
OUTPUTS = {"classification": (CLASSES,), "binary": (1,), "multi_label": (LABELS,)}
OUTPUTS |= {"regression": (LABELS,), "sequence": (LENGTH, CLASSES)}

POSITIVES, BOTH = (lambda y, p: y.any()), (lambda y, p: 0 < y.mean() < 1)
KERAS = {
    kind.AUC: BOTH,
    functools.partial(kind.AUC, curve="PR", name="pr"): POSITIVES,
    kind.Precision: lambda y, p: (p > 0.5).any(),
    kind.Recall: POSITIVES,
    functools.partial(kind.F1Score, "micro", 0.5): lambda y, p: y.any() or (p > 0.5).any(),
    functools.partial(kind.SensitivityAtSpecificity, 0.5): BOTH,
    functools.partial(kind.SpecificityAtSensitivity, 0.5): BOTH,
    functools.partial(kind.PrecisionAtRecall, 0.5): POSITIVES,
    functools.partial(kind.RecallAtPrecision, 0.5): POSITIVES,
}
KERAS |= dict.fromkeys(
    [
        kind.TruePositives,
        kind.FalseNegatives,
        kind.BinaryAccuracy,
        kind.Hinge,
        kind.MeanSquaredError,
        kind.RootMeanSquaredError,
        kind.KLDivergence,
    ],
    lambda y, p: True,
)


def keras(y, z):
    """Returns the numbers of Keras itself, NaN where a metric is undefined."""
    y, p, found = y.astype(np.float32), tf.sigmoid(z).numpy(), {}
    for name, (make, is_defined) in zip(keras_names(), KERAS.items(), strict=True):
        metric = make()
        metric.update_state(y[:, np.newaxis], p[:, np.newaxis])
        found[name] = float(metric.result()) if is_defined(y, p) else NAN
    return found


@functools.cache
def keras_names():
    return tuple(keras_metrics(KERAS))


@functools.cache
def task_of(name):
    if name == "keras":
        return TASKS["binary"]().with_metrics(keras_metrics(KERAS, predictions=tf.sigmoid))
    return TASKS[name](top=(2,)) if name == "classification" else TASKS[name]()


@functools.cache
def model_of(name):
    """Returns a model whose inputs are its outputs, and a function of padded rows to sums."""

    def init(seed):
        return collections.OrderedDict(a=collections.OrderedDict(scale=tf.ones([])))

    def apply(weights, x, **_):
        return x * weights["a"]["scale"]

    model = Model(init, apply, task_of(name), num_classes=CLASSES)

    def sums(x, y, size):
        return metric_sums(model, init(0), Examples(x, y, size), batch_size=7)

    return model, tf.function(sums), tf.function(model.finalized)


def drawn_clients(name, seed, sizes, scales):
    """Draws the labels and two models' outputs of each client."""
    rng, clients = np.random.default_rng(seed), []
    for size, scale in zip(sizes, scales, strict=True):
        shape = (size, *OUTPUTS.get(name, (1,)))
        y = rng.integers(0, 2, shape)
        if name == "classification":
            y = rng.integers(0, CLASSES, size)
        elif name == "regression":
            y = 10.0**scale * rng.normal(size=shape)
        elif name == "sequence":
            y = rng.integers(0, CLASSES, shape[:2])
        elif name in ("binary", "keras"):
            y = y[:, 0]
        if rng.random() < 0.4:  # one class, no positives, equal targets, or no tokens
            y = 0 * y + (rng.random() < 0.3)
        offset = rng.choice([0, 0, -5, 60])
        outputs = [offset + 10.0**scale * rng.normal(size=shape) for _ in range(2)]
        if name == "regression":
            y = y.astype(np.float32)
        clients.append((y, *(z.astype(np.float32) for z in outputs)))
    return clients


def sums_of(name, y, z):
    """Returns the sums of a client whose padding holds NaN and labels 1."""
    rows = np.full([CAPACITY, *z.shape[1:]], np.nan, np.float32)
    labels = np.ones([CAPACITY, *y.shape[1:]], np.float32 if y.dtype.kind == "f" else np.int32)
    rows[: len(z)], labels[: len(y)] = z, y
    return model_of(name)[1](*map(tf.constant, (rows, labels, len(y))))


def reference(name, y, z):
    z = z.astype(np.float64)
    if not len(y) or (name == "sequence" and not y.any()):
        return collections.defaultdict(lambda: NAN)
    flat = z[:, 0] if name in ("binary", "keras") else z
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return keras(y, flat.astype(np.float32)) if name == "keras" else REFERENCES[name](y, flat)


def value(mean):
    return float(mean.total) / float(mean.count) if mean.count else NAN


def check_equal(metric, found, reference, where):
    expected = reference[metric]
    if expected > 1e30:  # float32 of the exponential of a large loss
        assert found > 1e30, where
        return
    tolerance = 1e-4 + np.nan_to_num(reference.get(f"{metric} error", 0.0))
    assert found == pytest.approx(expected, rel=1e-3, abs=tolerance, nan_ok=True), (
        f"{metric} of {where}: {found}, not {expected}"
    )


def check_clients(name, seed, sizes, scales):
    clients = drawn_clients(name, seed, sizes, scales)
    model, _, finalized = model_of(name)
    sums = [[sums_of(name, y, z) for z in of_models] for y, *of_models in clients]
    values = [[finalized(it) for it in of_client] for of_client in sums]
    names = keras_names() if name == "keras" else ["loss", *model.task.metrics]
    for (y, *of_models), found in zip(clients, values, strict=True):
        for z, own in zip(of_models, found, strict=True):
            expected = reference(name, y, z)
            for metric in names:
                check_equal(metric, value(own[metric]), expected, f"{seed} {sizes}")
    first = [of_client[0] for of_client in sums]
    added = functools.reduce(lambda a, b: tf.nest.map_structure(tf.add, a, b), first)
    y, z = (np.concatenate([client[i] for client in clients]) for i in (0, 1))
    pool = reference(name, y, z)
    for metric, mean in finalized(added).items():
        if metric in names:
            check_equal(metric, value(mean), pool, "the pool")
    check_reports(model, sizes, values, names)


def check_reports(model, sizes, values, names):
    """Compares statistics and gains with NumPy."""
    runs = []
    for index in (0, 1):
        found, undefined = {}, {}
        for metric in names:
            name = MetricName("personalized", "local_test", metric)
            means = [of_client[index][metric] for of_client in values]
            found[name] = np.array([value(mean) for mean in means])
            undefined[name] = np.array([float(mean.count) == 0 for mean in means])
        run = ClientMetrics(np.arange(len(sizes)), np.array(sizes), found, undefined=undefined)
        runs.append(run.of_task(model.task)._replace(population=sum(size > 0 for size in sizes)))
    statistics, changes = summarize(runs[0]), gains_of_clients(*runs)
    groups = gains(*runs, np.ones(len(sizes), bool)).get("all", {})
    for name, own in runs[0].values.items():
        counted = own[~np.isnan(own)]
        mean = np.mean(counted) if len(counted) else NAN
        assert statistics[name._replace(statistic="mean")] == pytest.approx(mean, nan_ok=True)
        margin = statistics[name._replace(statistic="mean_margin")]
        is_finite = len(counted) > 0 and np.isfinite(counted).all()
        assert margin == (0.0 if is_finite else pytest.approx(NAN, nan_ok=True))
        sign, is_defined = model.task.quantities[name.quantity].better, ~np.isnan(own)
        is_defined &= ~np.isnan(runs[1].values[name])
        if np.isinf([own, runs[1].values[name]]).any():  # the perplexity of a large loss
            continue
        expected = np.where(is_defined, sign * (own - runs[1].values[name]), NAN)
        np.testing.assert_allclose(changes[name], expected, rtol=1e-9, atol=1e-9)
        if is_defined.any():
            assert groups[name].num_clients == is_defined.sum()
            assert groups[name].share_hurt == np.mean(changes[name][is_defined] < 0)


CLIENTS = st.lists(st.tuples(st.sampled_from(SIZES), st.floats(-5, 3)), min_size=1, max_size=5)


@pytest.mark.thorough_but_one
@pytest.mark.parametrize(
    ("name", "number"),
    [("regression", 4), ("sequence", 4), *(slow(name, 100) for name in (*REFERENCES, "keras"))],
)
def test_metrics_of_random_clients(name, number):
    @settings(max_examples=number, deadline=None, derandomize=True, database=None)
    @given(st.integers(0, 2**30), CLIENTS)
    def check(seed, clients):
        check_clients(name, seed, *zip(*clients, strict=True))

    check()
