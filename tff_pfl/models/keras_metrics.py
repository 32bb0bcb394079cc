"""Makes metrics of Keras metrics."""

from collections.abc import Callable, Iterable

import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl import names
from tff_pfl.models.task import Metric


def keras_metrics(
    metrics: Iterable[Callable[[], tf.keras.metrics.Metric] | tf.keras.metrics.Metric],
    *,
    predictions: Callable = tf.identity,
    less_is_better: Iterable[str] = (),
) -> dict[str, Metric]:
    """Makes metrics of Keras metrics, by their names.

    Example:
        >>> metrics = tff_pfl.keras_metrics(
        ...     [tf.keras.metrics.AUC(curve="PR", name="pr_auc")], predictions=tf.sigmoid
        ... )
        >>> task = tff_pfl.TASKS["binary"]().with_metrics(metrics)
        >>> sorted(task.metrics)
        ['accuracy', 'auc', 'f1', 'pr_auc', 'precision', 'recall']

    Less of a metric is better if its name says so; see `tff_pfl.names.less_is_better`.

    Args:
        metrics: Keras metrics, or functions without arguments that make them, such as their
            classes. Their variables must be sums that start at 0.
        predictions: Makes the predictions that the metrics take of the model's outputs.
        less_is_better: The names of further metrics that improve when they fall.

    Raises:
        ValueError: A metric's variables do not start at 0, or a name is unknown.
    """
    made = {}
    for metric in metrics:
        if isinstance(metric, tf.keras.metrics.Metric):
            metric = _again(metric)
        with tf.Graph().as_default():
            made[metric().name] = metric
    less_is_better = tuple(less_is_better)
    names.check_names("metric of less_is_better", less_is_better, made)
    fall = {name for name in made if name in less_is_better or names.less_is_better(name)}
    return {
        name: _keras_metric(name, make, predictions, -1 if name in fall else 1)
        for name, make in made.items()
    }


def _again(metric):
    kind, config = type(metric), metric.get_config()
    return lambda: kind.from_config(config)


def _keras_metric(name, make, predictions, direction) -> Metric:
    initialize, update, finalize = tff.learning.metrics.create_functional_metric_fns(
        lambda: _taking_weights(make())
    )
    if any(tf.reduce_any(tf.not_equal(start, 0)) for start in tf.nest.flatten(initialize())):
        raise ValueError(
            f"The variables of Keras metric {name!r} do not start at 0, so that they cannot be "
            "added over clients. Write a Metric with sums and finalize."
        )

    def sums(y, outputs, weight):
        def kept(leaf):
            is_row = tf.reshape(weight > 0.0, [-1] + [1] * (leaf.shape.rank - 1))
            return tf.where(is_row, leaf, tf.zeros([], leaf.dtype))

        y, found = tf.nest.map_structure(kept, _as_columns(y, predictions(outputs)))
        batch = tff.learning.models.BatchOutput(predictions=(found, weight))
        return update(initialize(), y, batch)

    return Metric(sums, finalize, direction)


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
