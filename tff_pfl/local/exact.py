"""Computes exact gradients and metrics over all examples of a client, batch by batch."""

from typing import Any, NamedTuple

import tensorflow as tf

from tff_pfl.local import trees
from tff_pfl.local.batches import scan_batches
from tff_pfl.local.examples import Examples
from tff_pfl.models.model import Model, Totals, Weights


class ExactGradient(NamedTuple):
    """The gradient and the loss of `f_i(w) = (1/n_i) sum_x loss(w; x)` at the same `w`.

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
    size = tf.maximum(tf.cast(examples.size, tf.float32), 1.0)

    def step(carry, batch):
        gradient, totals = carry
        batch_gradient, batch_totals = model.gradient(weights, batch, training=False)
        share = tf.reduce_sum(batch.weight) / size
        gradient = trees.add(gradient, trees.scale(batch_gradient, share))
        return gradient, trees.add(totals, batch_totals)

    gradient, totals = scan_batches(
        step,
        (trees.zeros_like(weights), model.zero_totals()),
        examples,
        epochs=1,
        batch_size=batch_size,
        seed=None,
    )
    return ExactGradient(gradient, totals)


def evaluate(model: Model, weights: Any, examples: Examples, *, batch_size: int = 100) -> Totals:
    """Computes the sums of the loss and the model's metrics over all examples, without dropout."""

    def step(totals, batch):
        return trees.add(totals, model.totals(weights, batch))

    return scan_batches(
        step, model.zero_totals(), examples, epochs=1, batch_size=batch_size, seed=None
    )
