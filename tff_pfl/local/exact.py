"""Computes exact gradients and metrics over all examples of a client, batch by batch."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from tff_pfl.local import trees
from tff_pfl.local.batches import scan_batches
from tff_pfl.local.examples import Batch, Examples, num_rows
from tff_pfl.models.model import Model, Weights
from tff_pfl.models.totals import Totals


class ExactGradient(NamedTuple):
    """The gradient and the loss of `f_i(w) = (1/n_i) sum_x loss(w; x)` at the same `w`.

    With weights of examples, it is the weighted mean.

    Attributes:
        gradient: `W`.
        totals: The sums of the loss and the model's metrics over all examples.
    """

    gradient: Weights
    totals: Totals

    @property
    def loss(self) -> tf.Tensor:
        """The mean loss; 0 without examples."""
        return self.totals["loss"].mean


def sum_over(
    examples: Examples,
    sums: Callable[[Batch], Any],
    *,
    batch_size: int = 200,
    start: Any = None,
    halves: bool = False,
) -> Any:
    """Adds up the sums of a client's batches, which have its examples in their stored order.

    Example:
        >>> examples = testing.tiny_examples(10)
        >>> float(tff_pfl.sum_over(examples, lambda batch: tf.reduce_sum(batch.weight)))
        10.0

    Args:
        examples: The client's examples.
        sums: A function of a batch that returns sums over its rows, in any structure. Rows of
            weight 0 must not count: multiply each by `model.example_weight(batch)`, or by
            `batch.weight`.
        batch_size: The number of rows in a batch, which does not change the result.
        start: The sums of no examples. Default: zeros of the shapes of `sums`.
        halves: See `scan_batches`.
    """
    if start is None:
        x, y = tf.nest.map_structure(_zero_row, (examples.x, examples.y))
        found = sums(Batch(x, y, tf.zeros([1]), tf.zeros([2], tf.int32)))  # only for its shapes
        start = tf.nest.map_structure(lambda leaf: tf.zeros(leaf.shape, leaf.dtype), found)
    return scan_batches(
        lambda total, batch: trees.add(total, sums(batch)),
        start,
        examples,
        epochs=1,
        batch_size=batch_size,
        seed=None,
        halves=halves,
    )


def exact_gradient(
    model: Model, weights: Any, examples: Examples, *, batch_size: int = 200
) -> ExactGradient:
    """Computes a client's mean training loss and its gradient; `batch_size` has no effect on them.

    Stochastic layers (dropout) are off, so the result is exact and repeatable. For a client without
    examples, gradient and loss are 0.
    """
    model = _of_means(model)
    total = _total_weight(model, examples)

    def sums(batch):
        gradient, totals = model.gradient(weights, batch, training=False)
        share = tf.math.divide_no_nan(totals["loss"].count, total)
        return trees.scale(gradient, share), totals

    start = (trees.zeros_like(weights), model.zero_totals())
    halves = trees.have_filters(weights)
    found = sum_over(examples, sums, batch_size=batch_size, start=start, halves=halves)
    return ExactGradient(*found)


def evaluate(model: Model, weights: Any, examples: Examples, *, batch_size: int = 100) -> Totals:
    """Computes the sums of the loss and of metrics that are means, over all examples.

    Stochastic layers (dropout) are off. See `metric_sums` for all metrics.
    """
    return sum_over(
        examples,
        lambda batch: model.totals(weights, batch),
        batch_size=batch_size,
        start=model.zero_totals(),
        halves=trees.have_filters(weights),
    )


def metric_sums(
    model: Model, weights: Any, examples: Examples, *, batch_size: int = 100
) -> Mapping[str, Any]:
    """Computes the sums of the loss and of all metrics over all examples, without dropout.

    Returns:
        A `Mean` for the loss and for each metric that is a mean over examples, and otherwise the
        structure of the metric's `sums`, by name.
    """
    return sum_over(
        examples,
        lambda batch: model.sums(weights, batch),
        batch_size=batch_size,
        start=zero_sums(model, weights, examples.x, examples.y),
        halves=trees.have_filters(weights),
    )


def zero_sums(model: Model, weights: Any, x: Any, y: Any) -> Mapping[str, Any]:
    """Returns the `metric_sums` of no examples, for rows of the types of `x` and `y`."""
    if model.task.metrics.keys() == model.task.means.keys():
        return model.zero_totals()
    x, y = tf.nest.map_structure(_zero_row, (x, y))
    # Only the shapes of these sums are used.
    sums = model.sums(weights, Batch(x, y, tf.ones([1]), tf.zeros([2], tf.int32)))
    return tf.nest.map_structure(lambda leaf: tf.zeros(leaf.shape, leaf.dtype), sums)


def _zero_row(leaf) -> tf.Tensor:
    return tf.zeros([1, *leaf.shape[1:]], leaf.dtype)


def _of_means(model: Model) -> Model:
    """Returns the model with the mean as the loss of a batch."""
    if model.task.reduction == "mean":
        return model
    task = dataclasses.replace(model.task, reduction="mean")
    return dataclasses.replace(model, task=task, made_of=model.made_of or model)


def _total_weight(model, examples) -> tf.Tensor:
    """Computes the number of examples, or the sum of their weights."""
    if not model.task.has_weights(examples.y):
        return tf.cast(examples.size, tf.float32)
    is_example = tf.range(num_rows(examples)) < examples.size
    return tf.reduce_sum(model.task.weights_of(examples.y, tf.cast(is_example, tf.float32)))
