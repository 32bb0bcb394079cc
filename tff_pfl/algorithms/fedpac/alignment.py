"""FedPAC's loss of the body, which pulls features to the global centre of their class."""

import dataclasses
from typing import NamedTuple

import tensorflow as tf

from tff_pfl.models import Model, Weights, linear


class Centres(NamedTuple):
    """The global centres of features.

    Attributes:
        values: float32 `[c, d]`, the centre of each class; 0 if it is unknown.
        known: float32 `[c]`, 1 for a class that has a centre, else 0.
    """

    values: tf.Tensor
    known: tf.Tensor


def aligned(model: Model, head: Weights, centres: Centres, strength: float) -> Model:
    """Adds `strength / d ||f(x) - c_y||^2` to a model's loss; the new model outputs features.

    Args:
        model: A model with features `f(x)` of `d` numbers.
        head: The weights of its last layer, which are constant.
        centres: `c_y`; features of a class without a centre are not pulled.
        strength: 0 or more.
    """
    assert model.features is not None  # see `linear_head_shape`
    (head,) = head.values()

    task = model.task.of(lambda features: linear(head, features))

    def example_loss(y, features):
        apart = tf.reduce_mean(tf.square(features - tf.gather(centres.values, y)), axis=-1)
        pull = strength * tf.gather(centres.known, y) * apart
        return task.example_loss(y, features) + pull

    return dataclasses.replace(
        model,
        apply=model.features,
        task=task.with_loss(example_loss),
        made_of=model.made_of or model,
    )
