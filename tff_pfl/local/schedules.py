"""Learning rates over rounds: by name, a factor for each round.

Each is a function `(*, <options with defaults>) -> Schedule`, and a `Schedule` is
`(round: float32 scalar, from 0) -> float32 scalar`, which multiplies the first learning rate.
Exponential decay is `LocalTraining.learning_rate_decay`, and multiplies what is chosen here.
"""

import math
from collections.abc import Callable

import tensorflow as tf

from tff_pfl.ranges import above, between, takes, whole
from tff_pfl.registry import Registry

SCHEDULES = Registry("schedule")

Schedule = Callable[[tf.Tensor], tf.Tensor]


@SCHEDULES.register("constant")
def constant() -> Schedule:
    """Keeps the rate in all rounds."""
    return tf.ones_like


@SCHEDULES.register("cosine")
@takes(rounds=whole(1), least=between(0, 1))
def cosine(*, rounds: int = 100, least: float = 0.0) -> Schedule:
    """Half a cosine from 1 to `least` (Loshchilov and Hutter, "SGDR", ICLR 2017, without restarts).

    Args:
        rounds: When `least` is reached, and kept; mostly `config.rounds`.
        least: The last factor. Fine-tuning has the rate of the last round, almost none for 0: set
            `config.evaluation.fine_tune_learning_rate` then.
    """

    def factor(round_num):
        share = tf.minimum(round_num / rounds, 1.0)
        return least + (1.0 - least) * 0.5 * (1.0 + tf.cos(math.pi * share))

    return factor


@SCHEDULES.register("step")
@takes(every=whole(1), factor=above(0))
def step(*, every: int = 30, factor: float = 0.1) -> Schedule:
    """Multiplies the rate by `factor` after `every` so many rounds."""
    # In a graph a division by a constant is a product, and 41 / 41 may be a little less than 1.
    return lambda round_num: tf.cast(factor, tf.float32) ** tf.floor((round_num + 0.5) / every)
