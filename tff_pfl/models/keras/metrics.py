"""Makes metrics of Keras metrics."""

import functools
from collections.abc import Callable, Iterable, Mapping

import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.arguments.names import check_names
from tff_pfl.models.task import Metric

_KERAS = tf.keras.metrics
_ROUNDING = 1e-6  # relative, of sums in float32
_LESS_IS_BETTER = (
    _KERAS.BinaryCrossentropy,
    _KERAS.CategoricalCrossentropy,
    _KERAS.CategoricalHinge,
    _KERAS.FalseNegatives,
    _KERAS.FalsePositives,
    _KERAS.Hinge,
    _KERAS.KLDivergence,
    _KERAS.LogCoshError,
    _KERAS.MeanAbsoluteError,
    _KERAS.MeanAbsolutePercentageError,
    _KERAS.MeanRelativeError,
    _KERAS.MeanSquaredError,
    _KERAS.MeanSquaredLogarithmicError,
    _KERAS.Poisson,
    _KERAS.RootMeanSquaredError,
    _KERAS.SparseCategoricalCrossentropy,
    _KERAS.SquaredHinge,
)
_MORE_IS_BETTER = (
    _KERAS.AUC,
    _KERAS.Accuracy,
    _KERAS.BinaryAccuracy,
    _KERAS.CategoricalAccuracy,
    _KERAS.CosineSimilarity,
    _KERAS.FBetaScore,
    _KERAS.IoU,
    _KERAS.MeanIoU,
    _KERAS.Precision,
    _KERAS.PrecisionAtRecall,
    _KERAS.R2Score,
    _KERAS.Recall,
    _KERAS.RecallAtPrecision,
    _KERAS.SensitivityAtSpecificity,
    _KERAS.SparseCategoricalAccuracy,
    _KERAS.SparseTopKCategoricalAccuracy,
    _KERAS.SpecificityAtSensitivity,
    _KERAS.TopKCategoricalAccuracy,
    _KERAS.TrueNegatives,
    _KERAS.TruePositives,
)
_OF_COUNTS = (
    _KERAS.AUC,
    _KERAS.FBetaScore,
    _KERAS.Precision,
    _KERAS.PrecisionAtRecall,
    _KERAS.Recall,
    _KERAS.RecallAtPrecision,
    _KERAS.SensitivityAtSpecificity,
    _KERAS.SpecificityAtSensitivity,
)


def keras_metrics(
    metrics: Iterable[Callable[[], tf.keras.metrics.Metric] | tf.keras.metrics.Metric],
    *,
    predictions: Callable = tf.identity,
    directions: Mapping[str, int] | None = None,
) -> dict[str, Metric]:
    """Makes metrics of Keras metrics, by their names.

    Example:
        >>> metrics = tff_pfl.keras_metrics(
        ...     [tf.keras.metrics.AUC(curve="PR", name="pr_auc")], predictions=tf.sigmoid
        ... )
        >>> task = tff_pfl.TASKS["binary"]().with_metrics(metrics)
        >>> sorted(task.metrics)
        ['accuracy', 'auc', 'f1', 'pr_auc', 'precision', 'recall']

    In a task of tokens, such as `sequence`, each token that counts is a row. Where Keras gives 0
    because a metric is undefined, such as precision without predicted positives or the area under
    the curve of one class, these metrics are NaN, as those of the tasks are. A metric of a vector,
    such as the F1 score without an average, needs names of the numbers:
    `dataclasses.replace(metric, parts=...)`.

    Args:
        metrics: Keras metrics, or functions without arguments that make them, such as their
            classes. Their variables must be sums that start at 0.
        predictions: Makes the predictions that the metrics take of the model's outputs.
        directions: 1 if more of a metric is better or -1 if less is, by the metric's name. Default:
            by Keras' class, or by the name for classes that are not known; see `Metric`.

    Raises:
        ValueError: A metric's variables do not start at 0, or a name is unknown.
    """
    made, lazy, directions = {}, set(), {**(directions or {})}
    for metric in metrics:
        if isinstance(metric, tf.keras.metrics.Metric):
            metric = _again(metric)
        with tf.Graph().as_default():
            example = metric()
        made[example.name] = metric
        if isinstance(example, _LESS_IS_BETTER + _MORE_IS_BETTER):
            known = -1 if isinstance(example, _LESS_IS_BETTER) else 1
            directions.setdefault(example.name, known)
        if isinstance(example, _KERAS.FBetaScore | _KERAS.R2Score):
            lazy.add(example.name)
    check_names("metric of directions", directions, made)
    return {
        name: _keras_metric(name, make, predictions, directions.get(name), name in lazy)
        for name, make in made.items()
    }


def _again(metric):
    kind, config = type(metric), metric.get_config()
    return lambda: kind.from_config(config)


def _keras_metric(name, make, predictions, direction, is_lazy) -> Metric:
    """Returns a metric of the sums of its Keras variables, after the sum of the weights."""

    @functools.cache
    def functions(labels):
        def adapted():
            metric = make()
            if labels:
                metric.build([None, labels], [None, labels])
            return _undefined_as_nan(_taking_weights(metric))

        return tff.learning.metrics.create_functional_metric_fns(adapted)

    def num_labels(leaf):
        """Returns the number of labels that a metric must know to have variables, else 0."""
        return (leaf.shape[-1] if leaf.shape.rank else 1) if is_lazy else 0

    initialize = functions(int(is_lazy))[0]
    if any(tf.reduce_any(tf.not_equal(start, 0)) for start in tf.nest.flatten(initialize())):
        raise ValueError(
            f"The variables of Keras metric {name!r} do not start at 0, so that they cannot be "
            "added over clients. Write a Metric with sums and finalize."
        )

    def sums(y, outputs, weight):
        found = predictions(outputs)
        if weight.shape.rank == 2:  # of tokens
            y, found, weight = (_joined(leaf) for leaf in (y, found, weight))
        is_row = weight > 0.0
        first = tf.argmax(is_row)

        # Zeros would be no probabilities, and NaN times the weight 0 is NaN.
        def filled(leaf):
            kept = tf.reshape(is_row, [-1] + [1] * (leaf.shape.rank - 1))
            return tf.where(kept, leaf, leaf[first])

        y, found = tf.nest.map_structure(filled, _as_columns(y, found))
        if is_lazy:  # These metrics take no integers, and no class ids.
            is_class = y.shape.rank == 1 and found.shape.rank == 2 and y.dtype.is_integer
            y = tf.one_hot(y, found.shape[-1]) if is_class else tf.cast(y, tf.float32)
        batch = tff.learning.models.BatchOutput(predictions=(found, weight))
        initialize, update, _ = functions(num_labels(found))
        after = update(initialize(), y, batch)
        zero = tf.nest.map_structure(tf.zeros_like, after)
        has_rows = tf.reduce_any(is_row)
        after = tf.nest.map_structure(lambda a, b: tf.where(has_rows, a, b), after, zero)
        return tf.reduce_sum(weight), after

    def of_sums(sums):
        _, _, finalize = functions(num_labels(sums[1][0]))
        found = tf.cast(finalize(sums[1]), tf.float32)  # counts are whole numbers
        return tf.where(sums[0] > 0.0, found, float("nan"))

    return Metric(sums, of_sums, direction, of_tokens=True)


def _joined(leaf):
    """Joins the two leading axes, of examples and of tokens."""
    return tf.reshape(leaf, tf.concat([[-1], tf.shape(leaf)[2:]], 0))


def _as_columns(y, predictions):
    """Gives single numbers a column, without which Keras takes their mean over the batch."""
    shapes = [getattr(it, "shape", None) for it in (y, predictions)]
    if None in shapes or shapes[0].rank != 1 or shapes[1][1:].num_elements() != 1:
        return y, predictions
    return tuple(tf.reshape(it, [-1, 1]) for it in (y, predictions))


def _taking_weights(metric):
    """Returns the metric with `update_state` of pairs of predictions and weights."""
    update = metric.update_state

    def update_state(y_true, y_pred):
        function = update
        while hasattr(function, "__original_wrapped__"):
            function = function.__original_wrapped__
        return function(y_true, y_pred[0], sample_weight=y_pred[1])

    metric.update_state = update_state
    return metric


def _undefined_as_nan(metric):
    """Returns the metric with a `result` that is NaN where the metric is undefined.

    A mean over labels leaves out those for which it is undefined, which Keras counts as 0.
    """
    result = metric.result

    def defined_result():
        share = _defined_share(metric)
        return tf.where(share > 0.0, tf.cast(result(), tf.float32) / share, float("nan"))

    if isinstance(metric, (*_OF_COUNTS, _KERAS.Mean, _KERAS.R2Score)):
        metric.result = defined_result
    return metric


def _defined_share(metric):
    """Returns the share of the labels for which a metric is defined, by their weights.

    Each of several thresholds of precision and recall has its own result, and its own share; so has
    each label without an average.
    """
    if isinstance(metric, _KERAS.Mean):
        return tf.cast(metric.count > 0, tf.float32)
    if isinstance(metric, _KERAS.R2Score):
        spread = metric.squared_sum - tf.math.divide_no_nan(tf.square(metric.sum), metric.count)
        return tf.cast(tf.reduce_all(spread > metric.squared_sum * _ROUNDING), tf.float32)
    if isinstance(metric, _KERAS.Precision):
        counts = metric.true_positives + metric.false_positives
    elif isinstance(metric, _KERAS.FBetaScore):
        counts = metric.true_positives + metric.false_positives + metric.false_negatives
    else:
        counts = metric.true_positives + metric.false_negatives
    if isinstance(metric, (_KERAS.Precision, _KERAS.Recall)):
        return tf.cast((counts[0] if len(metric.thresholds) == 1 else counts) > 0, tf.float32)
    is_defined = counts > 0
    if isinstance(metric, (_KERAS.SensitivityAtSpecificity, _KERAS.SpecificityAtSensitivity)) or (
        isinstance(metric, _KERAS.AUC) and "ROC" in str(metric.curve)
    ):
        negatives = metric.false_positives + metric.true_negatives
        is_defined = tf.logical_and(is_defined, negatives > 0)
    if not isinstance(metric, _KERAS.FBetaScore):
        is_defined = is_defined[0]  # The counts of all thresholds have the same sum.
    share, weights = tf.cast(is_defined, tf.float32), getattr(metric, "label_weights", None)
    if isinstance(metric, _KERAS.FBetaScore) and metric.average is None:
        return share
    if getattr(metric, "average", None) == "weighted":
        return tf.cast(tf.reduce_any(metric.intermediate_weights > 0), tf.float32)
    if weights is not None:
        return tf.reduce_sum(share * weights) / tf.reduce_sum(weights)
    return tf.reduce_mean(share)
