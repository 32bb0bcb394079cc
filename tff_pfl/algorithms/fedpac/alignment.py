"""FedPAC's term of the body, which pulls features to the global centre of their class."""

from typing import NamedTuple

import tensorflow as tf


class Centres(NamedTuple):
    """The global centres of features.

    Attributes:
        values: float32 `[c, d]`, the centre of each class; 0 if it is unknown.
        known: float32 `[c]`, 1 for a class that has a centre, else 0.
    """

    values: tf.Tensor
    known: tf.Tensor


def pull(centres: Centres, strength: float):
    """Returns the term `strength / d ||f(x) - c_y||^2` of `LocalTraining.train`, `[batch]`.

    Args:
        centres: `c_y`; features of a class without a centre are not pulled.
        strength: 0 or more.
    """

    def term(forward, batch):
        apart = forward.features - tf.gather(centres.values, batch.labels)
        distance = tf.reduce_mean(tf.square(apart), axis=-1)
        return strength * tf.gather(centres.known, batch.labels) * distance

    return term
