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
        optimizer_state: For the client's state, see `LocalSGD.optimizer_state`.
        observed: What `observe` made of it in the last step.
    """

    weights: Any
    totals: Totals
    optimizer_state: Any
    observed: Any


@dataclasses.dataclass(frozen=True)
class LocalSGD:
    """`epochs` passes of mini-batch descent along `grad loss(w; batch) + reg(w) + wd * w`.

    The optimizer starts anew at every call unless `persist_optimizer_state`. Round `t` uses the
    learning rate `eta * learning_rate_decay**t`.

    Attributes:
        optimizer: Any `tff.learning.optimizers` optimizer.
        epochs: Passes over the client's examples.
        batch_size: Examples a step; the last batch of a pass may be partial.
        learning_rate_decay: Factor per round; 1 keeps the rate.
        weight_decay: `wd` above.
        drop_remainder: Whether partial batches are left out.
        persist_optimizer_state: Whether a client's optimizer goes on from its last round, where the
            algorithm keeps its state, although the weights may be others by then: as in PGFed's
            code.
    """

    optimizer: tff.learning.optimizers.Optimizer
    epochs: int = 1
    batch_size: int = 50
    learning_rate_decay: float = 1.0
    weight_decay: float = 0.0
    drop_remainder: bool = False
    persist_optimizer_state: bool = False

    def train(
        self,
        model: Model,
        weights: Any,
        examples: Examples,
        context,
        *,
        reg: Callable[[Any], Any] | None = None,
        epochs: int | None = None,
        optimizer_state: Any = None,
        observe: Callable[[Any, Any], Any] | None = None,
        observed: Any = (),
    ) -> TrainResult:
        """Trains `weights` on a client's examples.

        Args:
            model: The model whose loss is minimised.
            weights: Where training starts.
            examples: The client's examples.
            context: A `ClientContext`: its seed orders the batches, its round sets the rate.
            reg: The gradient of a regularizer, from the current weights, in their structure.
            epochs: Overrides `self.epochs`.
            optimizer_state: Of `self.optimizer_state` or the client's last call; `()` starts anew.
            observe: `(observed, weights) -> observed`, before each step.
            observed: What `observe` starts from.

        Raises:
            ValueError: If the optimizer's state is to persist, but is not given.
        """
        if self.persist_optimizer_state and optimizer_state is None:
            raise ValueError("persist_optimizer_state: this algorithm keeps no optimizer's state.")
        if not optimizer_state:
            optimizer_state = self._initial_state(weights)
        rate = self.learning_rate(context.round_num)
        optimizer_state = self.optimizer.set_hparams(optimizer_state, {"learning_rate": rate})

        def step(carry, batch):
            weights, optimizer_state, totals, observed = carry
            if observe is not None:
                observed = observe(observed, weights)
            gradient, batch_totals = model.gradient(weights, batch)
            if reg is not None:
                gradient = trees.add(gradient, reg(weights))
            if self.weight_decay:
                gradient = trees.add(gradient, trees.scale(weights, self.weight_decay))
            optimizer_state, weights = self.optimizer.next(optimizer_state, weights, gradient)
            return weights, optimizer_state, trees.add(totals, batch_totals), observed

        weights, optimizer_state, totals, observed = scan_batches(
            step,
            (weights, optimizer_state, model.zero_totals(), observed),
            examples,
            epochs=self.epochs if epochs is None else epochs,
            batch_size=self.batch_size,
            seed=context.seed,
            drop_remainder=self.drop_remainder,
        )
        kept = optimizer_state if self.persist_optimizer_state else ()
        return TrainResult(weights, totals, kept, observed)

    def optimizer_state(self, weights: Any) -> Any:
        """What a client keeps of its optimizer before its first step; `()` if nothing."""
        return self._initial_state(weights) if self.persist_optimizer_state else ()

    def learning_rate(self, round_num) -> tf.Tensor:
        """The learning rate of a round, a float32 scalar."""
        state = self._initial_state(tf.constant(0.0))
        rate = tf.cast(self.optimizer.get_hparams(state)["learning_rate"], tf.float32)
        factor = tf.cast(self.learning_rate_decay, tf.float32) ** tf.cast(round_num, tf.float32)
        return rate * factor

    def _initial_state(self, weights):
        specs = tf.nest.map_structure(lambda w: tf.TensorSpec(w.shape, w.dtype), weights)
        return self.optimizer.initialize(specs)
