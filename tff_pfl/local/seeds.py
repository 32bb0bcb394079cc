"""Seeds of stateless random operations."""

import tensorflow as tf

# The block of fine-tuning, which belongs to no exchange of a round: those count from 0.
FINE_TUNING = -1


def run_seed(seed: int, block: int) -> tf.Tensor:
    """`int32[2]`, a function of (seed of the run, block)."""
    return tf.constant([seed & 0x7FFFFFFF, block], tf.int32)


def client_seed(seed: tf.Tensor, round_num: tf.Tensor, client_id: tf.Tensor) -> tf.Tensor:
    """`int32[2]`, a function of (seed of the run, block, round, client id).

    Args:
        seed: Of `run_seed`.
        round_num: int32 scalar.
        client_id: int32 scalar.
    """
    for value in (round_num, client_id):
        seed = tf.random.experimental.stateless_fold_in(seed, value)
    return seed
