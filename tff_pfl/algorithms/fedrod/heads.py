"""FedRoD's heads: personal ones, added to the generic one, and the balanced loss of the latter."""

import dataclasses
import functools
from collections.abc import Sequence

import tensorflow as tf

from tff_pfl.local import Examples, trees
from tff_pfl.models import Hypernetwork, Model, Partition, Weights, linear_head_shape, partition

SMALLEST_SHARE = 1e-12  # of a class in a prior: of one that a client lacks, there is no logarithm


@dataclasses.dataclass(frozen=True)
class PersonalHeads:
    """The model with personal heads `H`, of the structure of its last layer.

    They are made of what a client trains, `own`: that is `H` itself, or the weights `nu` of a
    hypernetwork, `H = h(pi; nu)`.

    Attributes:
        model: The model, of weights `W`, whose last layer is dense without activation, and has a
            logit for each class.
        hidden: The widths of the hypernetwork's hidden layers; `None` without one.
    """

    model: Model
    hidden: Sequence[int] | None = None

    def __post_init__(self):
        _ = self.num_classes  # refuses a model without a linear head

    @functools.cached_property
    def parts(self) -> Partition:
        """The body, and the head."""
        return partition(self.model)

    @functools.cached_property
    def num_classes(self) -> int:
        """The number of outputs of a head."""
        return linear_head_shape(self.model, "fedrod")[1]

    @functools.cached_property
    def hypernetwork(self) -> Hypernetwork | None:
        """From `pi` to a head."""
        if self.hidden is None:
            return None
        target = self.parts.personal_model(self.model, {})
        return Hypernetwork(target, self.num_classes, tuple(self.hidden), relu_features=True)

    def add(self, weights: Weights, own: Weights, prior: tf.Tensor) -> Weights:
        """`W` with the head `G + H`.

        Args:
            weights: `W`, of body and generic head `G`.
            own: What `H` is made of.
            prior: float32 `[classes]`, `pi`.
        """
        body, head = self.parts.split(weights)
        if self.hypernetwork is not None:
            own = trees.row(self.hypernetwork.generate(own, prior[tf.newaxis]), 0)
        return self.parts.merge(body, trees.add(head, own))

    def personal_model(self, weights: Weights, prior: tf.Tensor) -> Model:
        """The model with the head `G + H` as a function of `own`, all the rest being constant."""
        return dataclasses.replace(
            self.model,
            apply=lambda own, x, **options: self.model.apply(
                self.add(weights, own, prior), x, **options
            ),
            made_of=self.model.made_of or self.model,
        )


def class_shares(examples: Examples, num_classes: int) -> tf.Tensor:
    """`pi`, the share of each class among a client's examples, float32 `[num_classes]`."""
    is_example = tf.range(tf.shape(examples.y)[0]) < examples.size
    rows = tf.where(is_example[:, tf.newaxis], tf.one_hot(examples.y, num_classes), 0.0)
    return tf.reduce_sum(rows, axis=0) / tf.maximum(tf.cast(examples.size, tf.float32), 1.0)


def balanced_model(model: Model, prior: tf.Tensor) -> Model:
    """The model with the loss of balanced softmax, which is that of `logits + log pi`."""
    log_prior = tf.math.log(tf.maximum(prior, SMALLEST_SHARE))
    return dataclasses.replace(
        model,
        example_loss=lambda y, logits: model.example_loss(y, logits + log_prior),
        made_of=model.made_of or model,
    )
