"""Learning rate schedules by name: a factor for each round.

Each registered function has the signature `(*, <options with defaults>) -> Schedule`. A `Schedule`
is `(round: float32 scalar, from 0) -> float32 scalar`, the factor of the initial learning rate.
Exponential decay, `LocalTraining.learning_rate_decay`, is multiplied with it.
"""

import math
from collections.abc import Callable

import tensorflow as tf

from tff_pfl.arguments.ranges import above, between, takes, whole
from tff_pfl.arguments.registry import Registry

SCHEDULES = Registry("schedule")

Schedule = Callable[[tf.Tensor], tf.Tensor]


@SCHEDULES.register("constant")
def constant() -> Schedule:
    """Returns a schedule with a factor of 1 in all rounds."""
    return tf.ones_like


@SCHEDULES.register("cosine")
@takes(rounds=whole(1), least=between(0, 1))
def cosine(*, rounds: int = 100, least: float = 0.0) -> Schedule:
    """Returns a schedule that falls from 1 to `least` along half a cosine.

    It is the schedule of Loshchilov and Hutter, "SGDR", ICLR 2017, without restarts.

    Args:
        rounds: The number of rounds after which the factor stays at `least`, usually
            `config.rounds`.
        least: The last factor. Fine-tuning uses the rate of the last round. If this is close to 0,
            set `config.evaluation.fine_tune_learning_rate`.
    """

    def factor(round_num):
        share = tf.minimum(round_num / rounds, 1.0)
        return least + (1.0 - least) * 0.5 * (1.0 + tf.cos(math.pi * share))

    return factor


@SCHEDULES.register("step")
@takes(every=whole(1), factor=above(0))
def step(*, every: int = 30, factor: float = 0.1) -> Schedule:
    """Returns a schedule that multiplies the rate by `factor` once per `every` rounds."""
    # Graphs turn a division by a constant into a product, so that 41 / 41 may be less than 1.
    return lambda round_num: tf.cast(factor, tf.float32) ** tf.floor((round_num + 0.5) / every)
