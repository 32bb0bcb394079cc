"""Trains on a client's examples with an optimizer of `tff.learning`."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.arguments.digests import described
from tff_pfl.arguments.kinds import KindError
from tff_pfl.arguments.ranges import RangeError, above, above_or_infinite, at_least, whole
from tff_pfl.arguments.settings import setting, settings
from tff_pfl.local import trees
from tff_pfl.local.augmentation import AUGMENTATIONS, Augmentation
from tff_pfl.local.batches import scan_batches
from tff_pfl.local.examples import ClientContext, Examples
from tff_pfl.local.optimizers import check_optimizer
from tff_pfl.local.schedules import SCHEDULES, Schedule
from tff_pfl.models.model import Model, Term, Weights, check_weights
from tff_pfl.models.statistics import with_statistics, without_statistics
from tff_pfl.models.totals import Totals

# Augmentation folds this number into a batch's seed; dropout layers fold in numbers from 1 on.
_AUGMENTATION = 0

_MAKERS = {
    "schedule": ("SCHEDULES", SCHEDULES),
    "augment": ("AUGMENTATIONS", AUGMENTATIONS),
}


class TrainResult(NamedTuple):
    """The result of local training.

    Attributes:
        weights: The trained weights.
        totals: The sums of the loss and the model's metrics over all visited examples, measured on
            each batch before its step (see `tff_pfl.models.Totals`).
        optimizer_state: The optimizer state for the client's state (see
            `LocalTraining.optimizer_state`).
        carry: The carry of `gradient` after the last step.
    """

    weights: Weights
    totals: Totals
    optimizer_state: Any
    carry: Any


@settings
class LocalTraining:
    """Mini-batch descent along `clip(grad loss(w; batch) + reg(w)) + wd * w`.

    The optimizer starts anew in every call unless `persist_optimizer_state` is set. Round `t`, from
    0, has the learning rate `eta learning_rate_decay^t schedule(t) min(1, (t + 1) /
    warm_up_rounds)`.

    Only the forward pass of a step, not its direction, moves the moving statistics of batch
    normalisation.
    """

    optimizer: tff.learning.optimizers.Optimizer = setting(
        "Any optimizer of `tff.learning.optimizers` but Adafactor."
    )
    epochs: int | None = setting(
        "The number of passes over the client's examples; may be None if `steps` are given.",
        whole(0),
        default=1,
        idle={"steps": lambda steps: steps is not None},
    )
    batch_size: int = setting(
        "The number of examples in a step. The last batch of a pass may be partial. A step "
        "computes this many rows even if clients have fewer, unless their type has a fixed number "
        "of rows: choose no more than the next power of two above the largest client.",
        whole(1),
        default=50,
    )
    learning_rate_decay: float = setting(
        "The factor of the learning rate per round; 1 keeps it.", above(0), default=1.0
    )
    weight_decay: float = setting(
        "`wd` above: this times the weights is added to the gradient.", at_least(0), default=0.0
    )
    drop_remainder: bool = setting(
        "Whether partial batches are left out, except a client's only batch.", default=False
    )
    persist_optimizer_state: bool = setting(
        "Whether a client's optimizer continues from its last round, if the algorithm "
        "keeps the optimizer's state. The weights may have changed since then, as in PGFed's code.",
        default=False,
    )
    steps: int | None = setting(
        "The number of steps, in as many passes as needed; None: `epochs` count.",
        whole(1),
        default=None,
    )
    clip_norm: float | None = setting(
        "The maximum norm of gradients, before weight decay; longer ones are scaled down to it.",
        above_or_infinite(0),
        default=None,
    )
    schedule: Schedule | None = setting(
        "A further factor of the learning rate, `(round) -> factor`, float32 scalars, such "
        'as `SCHEDULES["cosine"](rounds=100)`; None: 1 in all rounds.',
        default=None,
    )
    warm_up_rounds: int = setting(
        "The number of initial rounds in which the learning rate rises.", whole(0), default=0
    )
    augment: Augmentation | None = setting(
        "`(images, seed) -> images`, applied to each batch before its step, such as "
        '`AUGMENTATIONS["crop_and_flip"]()`. Exact gradients and evaluations use the original '
        "images.",
        default=None,
    )
    initial_rate: float | None = setting(
        "`eta` above; None: the learning rate of the optimizer.", at_least(0), default=None
    )

    def __post_init__(self):
        """Checks the attributes that are objects or functions."""
        check_optimizer("The optimizer", self.optimizer)
        if self.epochs is None and self.steps is None:
            raise RangeError("epochs and steps are both None. Local training needs one of them.")
        for name, (registry, makers) in _MAKERS.items():
            value = getattr(self, name)
            if value is not None and (not callable(value) or value in makers.values()):
                called = next((n for n in makers if value in (n, makers[n])), next(iter(makers)))
                raise KindError(
                    f"{name}={value!r:.80} must be a function that one of tff_pfl.{registry} "
                    f"returns, such as {registry}[{called!r}](...)."
                )

    def train(
        self,
        model: Model,
        weights: Any,
        examples: Examples,
        context: ClientContext,
        *,
        reg: Callable[[Any], Any] | None = None,
        term: Term | None = None,
        epochs: int | None = None,
        steps: int | None = None,
        optimizer_state: Any = None,
        gradient: Callable[[Any, Any, Any], tuple[Any, Totals, Any]] | None = None,
        carry: Any = (),
        learning_rate: float | None = None,
        project: Callable[[Any], Any] | None = None,
        assign: Callable[[Any, Any, Any], Any] | None = None,
    ) -> TrainResult:
        """Trains `weights` on a client's examples.

        Args:
            model: The model whose loss is minimised.
            weights: The initial weights. With a custom `gradient`, any structure of tensors, such
                as two models that are trained side by side.
            examples: The client's examples.
            context: The context, whose seed orders the batches and whose round sets the rate.
            reg: A function from the current weights to the gradient of a regularizer.
            term: `(forward, batch) -> float32[batch]`, added to the loss of each row before the
                weights of examples and the task's reduction; `forward` is the `Forward` of the
                pass, in which `features` is `None` for a model without. Totals do not contain it.
            epochs: The number of passes, which overrides `self.epochs` and `self.steps`.
            steps: The number of steps, which overrides `self.epochs` and `self.steps`.
            optimizer_state: The state from `self.optimizer_state` or the last call. `()` starts
                anew.
            gradient: `(weights, batch, carry) -> (gradient, totals, carry)`, used instead of the
                gradient of the model's loss. `totals` must have the structure of the model's.
            carry: The carry that `gradient` gets in the first step. Later steps get the carry that
                it returned.
            learning_rate: The initial rate, which overrides the optimizer's and decays over rounds
                in the same way.
            project: A function that maps the weights after each step to the next weights.
            assign: `(weights, batch, carry) -> weights`, with the moving statistics after a step;
                it gets the weights before and the carry after `gradient`. Default: those of `model`
                at `weights`, which must then be weights of the model.

        Raises:
            ValueError: The optimizer's state should persist, but `optimizer_state` is not given.
            KindError: Weights are not float32, or `augment` changes the type of images.
        """
        if term is not None and gradient is not None:
            raise ValueError("Pass either term or gradient, which replaces the loss's gradient.")
        optimizer_state = self.begin(weights, context, optimizer_state, learning_rate)
        assign = assign or (lambda weights, batch, carry: model.assigned(weights, batch))
        if epochs is None and steps is None:
            epochs, steps = (self.epochs, None) if self.steps is None else (None, self.steps)

        no_totals = model.zero_totals()  # A step adds totals as one vector, not one by one.

        def step(scanned, batch):
            weights, optimizer_state, totals, carry = scanned
            batch = self._augmented(batch)
            if gradient is None:
                direction, batch_totals, assigned = model.training_gradient(
                    weights, batch, term=term
                )
            else:
                direction, batch_totals, carry = gradient(weights, batch, carry)
                assigned = assign(weights, batch, carry)
            if reg is not None:
                direction = trees.add(direction, reg(weights))
            weights, optimizer_state = self.step(weights, direction, optimizer_state)
            if project is not None:
                weights = project(weights)
            weights = with_statistics(weights, assigned)
            _check_totals(no_totals, batch_totals)
            totals += tf.stack(tf.nest.flatten(batch_totals))
            return weights, optimizer_state, totals, carry

        weights, optimizer_state, totals, carry = scan_batches(
            step,
            (weights, optimizer_state, tf.stack(tf.nest.flatten(no_totals)), carry),
            examples,
            epochs=epochs,
            steps=steps,
            batch_size=self.batch_size,
            seed=context.seed,
            drop_remainder=self.drop_remainder,
            halves=trees.have_filters(weights),
        )
        totals = tf.nest.pack_sequence_as(no_totals, tf.unstack(totals))
        return TrainResult(weights, totals, self.kept(optimizer_state), carry)

    def optimizer_state(self, weights: Any) -> Any:
        """Returns the optimizer state that a client keeps before its first step, or `()`."""
        return self.kept(self._initial_state(weights))

    def begin(
        self,
        weights: Any,
        context: ClientContext,
        optimizer_state: Any = None,
        learning_rate: float | None = None,
    ) -> Any:
        """Returns the optimizer's state before the first step of a round; see `train`."""
        check_weights(weights)
        if self.persist_optimizer_state and optimizer_state is None:
            raise ValueError(
                "persist_optimizer_state is True, but this algorithm keeps no optimizer's state. "
                "Set it to False."
            )
        if optimizer_state is None or not tf.nest.flatten(optimizer_state):
            optimizer_state = self._initial_state(weights)
        rate = self.learning_rate(context.round_num, learning_rate)
        return self.optimizer.set_hparams(optimizer_state, {"learning_rate": rate})

    def step(self, weights: Any, gradient: Any, optimizer_state: Any) -> tuple[Any, Any]:
        """Makes a step along `direction(weights, gradient)`, and returns weights and state."""
        direction = self.direction(weights, gradient)
        optimizer_state, stepped = self.optimizer.next(optimizer_state, weights, direction)
        return with_statistics(stepped, weights), optimizer_state

    def direction(self, weights: Any, gradient: Any) -> Any:
        """Computes `clip(gradient) + wd * weights`, the direction of the optimizer's step.

        It is 0 for moving statistics.
        """
        gradient = without_statistics(gradient)
        if self.clip_norm is not None:
            gradient = trees.clip(gradient, self.clip_norm)
        if self.weight_decay:
            decay = trees.scale(without_statistics(weights), self.weight_decay)
            gradient = trees.add(gradient, decay)
        return gradient

    def kept(self, optimizer_state: Any) -> Any:
        """Returns the optimizer state that a client keeps after its last step, or `()`."""
        return optimizer_state if self.persist_optimizer_state else ()

    def settings(self) -> dict[str, Any]:
        """Returns the optimizer's name and numbers, and all other attributes, as JSON values."""
        rates = self.optimizer.get_hparams(self._initial_state(tf.constant(0.0)))
        others = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        name = type(others.pop("optimizer")).__name__.strip("_").lower()
        return described({"optimizer": name, **rates, **others})

    def num_steps(self, examples: Examples) -> tf.Tensor:
        """Computes the number of steps of `train` without overrides, an int32 scalar."""
        size = tf.convert_to_tensor(examples.size)
        some = tf.cast(size > 0, tf.int32)
        if self.steps is not None:
            return self.steps * some
        if self.drop_remainder:
            return self.epochs * tf.maximum(size // self.batch_size, some)
        return self.epochs * ((size + self.batch_size - 1) // self.batch_size)

    def at_constant_rate(self, rate: float) -> "LocalTraining":
        """Returns this local training with one learning rate in all rounds."""
        return dataclasses.replace(
            self, initial_rate=rate, learning_rate_decay=1.0, schedule=None, warm_up_rounds=0
        )

    def learning_rate(self, round_num, first: float | None = None) -> tf.Tensor:
        """Computes a round's rate, a float32 scalar; `first` overrides the optimizer's rate."""
        first = self.initial_rate if first is None else first
        if first is None:
            state = self._initial_state(tf.constant(0.0))
            first = self.optimizer.get_hparams(state).get("learning_rate")
        if first is None:
            raise ValueError(
                f"The optimizer {type(self.optimizer).__name__} has no learning rate that a round "
                "could set. Use an optimizer with a learning rate, and learning_rate_decay or a "
                "schedule."
            )
        rate = tf.cast(first, tf.float32)
        round_num = tf.cast(round_num, tf.float32)
        if self.learning_rate_decay != 1.0:
            rate *= tf.cast(self.learning_rate_decay, tf.float32) ** round_num
        if self.schedule is not None:
            rate *= self.schedule_factor(round_num)
        if self.warm_up_rounds:
            rate *= tf.minimum((round_num + 1.0) / self.warm_up_rounds, 1.0)
        return rate

    def schedule_factor(self, round_num: tf.Tensor) -> tf.Tensor:
        """Returns the factor of `schedule` for a round, 1 without; both are float32 scalars."""
        factor = 1.0 if self.schedule is None else self.schedule(round_num)
        return tf.ensure_shape(tf.cast(factor, tf.float32), [])

    def _augmented(self, batch):
        if self.augment is None:
            return batch
        if not tf.is_tensor(batch.x):
            raise KindError(
                f"The augmentation {self.augment!r} needs one array of images, but inputs of type "
                f"{type(batch.x).__name__} have several. Leave the augmentation out."
            )
        seed = tf.random.experimental.stateless_fold_in(batch.seed, _AUGMENTATION)
        images = tf.ensure_shape(self.augment(batch.x, seed), batch.x.shape)
        if images.dtype != batch.x.dtype:  # Evaluations may use another scale than training.
            raise KindError(
                f"The augmentation {self.augment!r} must return images of {batch.x.dtype.name}, as "
                f"it gets them, but returned {images.dtype.name}."
            )
        return batch._replace(x=images)

    def _initial_state(self, weights):
        return self.optimizer.initialize(trees.specs(weights))


def _check_totals(expected: Totals, found: Any) -> None:
    """Raises a `ValueError` unless the totals of a gradient are those of the model."""
    try:
        tf.nest.assert_same_structure(expected, found)
    except (TypeError, ValueError) as error:
        names = ", ".join(map(str, found)) if isinstance(found, Mapping) else found
        raise ValueError(
            f"gradient must return the totals of the model, a Mean for each of "
            f"{', '.join(expected)}, got {names}. Return those of Model.gradient, and further "
            "numbers in the carry."
        ) from error
