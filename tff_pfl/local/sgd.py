"""Local training: `LocalSGD` of the specification, with any `tff.learning` optimizer."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.local import trees
from tff_pfl.local.batches import scan_batches
from tff_pfl.local.examples import Examples
from tff_pfl.models.model import Model, Totals


class TrainResult(NamedTuple):
    """What local training leaves.

    Attributes:
        weights: The trained weights.
        totals: Sums of the loss and the model's metrics over all examples visited, measured on
            each batch before its step; see `tff_pfl.models.Totals`.
    """

    weights: Any
    totals: Totals


@dataclasses.dataclass(frozen=True)
class LocalSGD:
    """`epochs` passes of mini-batch descent along `grad loss(w; batch) + reg(w) + wd * w`.

    The optimizer starts anew at every call. Round `t` uses the learning rate
    `eta * learning_rate_decay**t`.

    Attributes:
        optimizer: Any `tff.learning.optimizers` optimizer.
        epochs: Passes over the client's examples.
        batch_size: Examples a step; the last batch of a pass may be partial.
        learning_rate_decay: Factor per round; 1 keeps the rate.
        weight_decay: `wd` above.
        drop_remainder: Whether partial batches are left out.
    """

    optimizer: tff.learning.optimizers.Optimizer
    epochs: int = 1
    batch_size: int = 50
    learning_rate_decay: float = 1.0
    weight_decay: float = 0.0
    drop_remainder: bool = False

    def train(
        self,
        model: Model,
        weights: Any,
        examples: Examples,
        context,
        *,
        reg: Callable[[Any], Any] | None = None,
        epochs: int | None = None,
    ) -> TrainResult:
        """Trains `weights` on a client's examples.

        Args:
            model: The model whose loss is minimised.
            weights: Where training starts.
            examples: The client's examples.
            context: A `ClientContext`: its seed orders the batches, its round sets the rate.
            reg: The gradient of a regularizer, from the current weights, in their structure.
            epochs: Overrides `self.epochs`.
        """
        optimizer_state = self._initial_state(weights, context.round_num)

        def step(carry, batch):
            weights, optimizer_state, totals = carry
            gradient, batch_totals = model.gradient(weights, batch)
            if reg is not None:
                gradient = trees.add(gradient, reg(weights))
            if self.weight_decay:
                gradient = trees.add(gradient, trees.scale(weights, self.weight_decay))
            optimizer_state, weights = self.optimizer.next(optimizer_state, weights, gradient)
            return weights, optimizer_state, trees.add(totals, batch_totals)

        weights, _, totals = scan_batches(
            step,
            (weights, optimizer_state, model.zero_totals()),
            examples,
            epochs=self.epochs if epochs is None else epochs,
            batch_size=self.batch_size,
            seed=context.seed,
            drop_remainder=self.drop_remainder,
        )
        return TrainResult(weights, totals)

    def learning_rate(self, round_num) -> tf.Tensor:
        """The learning rate of a round, a float32 scalar."""
        state = self._initial_state(tf.constant(0.0), round_num)
        return tf.cast(self.optimizer.get_hparams(state)["learning_rate"], tf.float32)

    def _initial_state(self, weights, round_num):
        specs = tf.nest.map_structure(lambda w: tf.TensorSpec(w.shape, w.dtype), weights)
        state = self.optimizer.initialize(specs)
        rate = self.optimizer.get_hparams(state)["learning_rate"]
        factor = tf.cast(self.learning_rate_decay, tf.float32) ** tf.cast(round_num, tf.float32)
        return self.optimizer.set_hparams(state, {"learning_rate": rate * factor})
