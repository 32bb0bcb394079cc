"""Computes exact gradients and metrics over all examples of a client, batch by batch."""

import dataclasses
from collections.abc import Mapping
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


def exact_gradient(
    model: Model, weights: Any, examples: Examples, *, batch_size: int = 200
) -> ExactGradient:
    """Computes a client's mean training loss and its gradient; `batch_size` has no effect on them.

    Stochastic layers (dropout) are off, so the result is exact and repeatable. For a client without
    examples, gradient and loss are 0.
    """
    model = _of_means(model)
    total = _total_weight(model, examples)

    def step(carry, batch):
        gradient, totals = carry
        batch_gradient, batch_totals = model.gradient(weights, batch, training=False)
        share = tf.math.divide_no_nan(batch_totals["loss"].count, total)
        gradient = trees.add(gradient, trees.scale(batch_gradient, share))
        return gradient, trees.add(totals, batch_totals)

    gradient, totals = scan_batches(
        step,
        (trees.zeros_like(weights), model.zero_totals()),
        examples,
        epochs=1,
        batch_size=batch_size,
        seed=None,
        halves=trees.have_filters(weights),
    )
    return ExactGradient(gradient, totals)


def evaluate(model: Model, weights: Any, examples: Examples, *, batch_size: int = 100) -> Totals:
    """Computes the sums of the loss and of metrics that are means, over all examples.

    Stochastic layers (dropout) are off. See `metric_sums` for all metrics.
    """

    def step(totals, batch):
        return trees.add(totals, model.totals(weights, batch))

    return scan_batches(
        step,
        model.zero_totals(),
        examples,
        epochs=1,
        batch_size=batch_size,
        seed=None,
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

    def step(sums, batch):
        return trees.add(sums, model.sums(weights, batch))

    return scan_batches(
        step,
        zero_sums(model, weights, examples.x, examples.y),
        examples,
        epochs=1,
        batch_size=batch_size,
        seed=None,
        halves=trees.have_filters(weights),
    )


def zero_sums(model: Model, weights: Any, x: Any, y: Any) -> Mapping[str, Any]:
    """Returns the `metric_sums` of no examples, for rows of the types of `x` and `y`."""
    if model.task.metrics.keys() == model.task.means.keys():
        return model.zero_totals()
    x, y = tf.nest.map_structure(lambda leaf: tf.zeros([1, *leaf.shape[1:]], leaf.dtype), (x, y))
    # Only the shapes of these sums are used.
    sums = model.sums(weights, Batch(x, y, tf.ones([1]), tf.zeros([2], tf.int32)))
    return tf.nest.map_structure(lambda leaf: tf.zeros(leaf.shape, leaf.dtype), sums)


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
