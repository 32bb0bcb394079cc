"""Derives seeds for stateless random operations."""

import tensorflow as tf

# Each user of random numbers in a round has its own number, its `block`: the exchanges 0, 1 and so
# on, fine-tuning -1, and the server's noise -2 for uploads, -3 for the count of clipped uploads and
# -4 for the shares of branches.
FINE_TUNING, NOISE_OF_UPLOADS, NOISE_OF_COUNTS, NOISE_OF_SHARES = -1, -2, -3, -4


def run_seed(seed: int, block: int) -> tf.Tensor:
    """Returns an `int32[2]` seed, a function of 63 bits of the run's seed and of a block."""
    result = tf.constant([seed & 0x7FFFFFFF, block], tf.int32)
    rest = (seed & 0x7FFFFFFFFFFFFFFF) >> 31
    while rest:
        result = tf.random.experimental.stateless_fold_in(result, rest & 0x7FFFFFFF)
        rest >>= 31
    return result


def client_seed(seed: tf.Tensor, round_num: tf.Tensor, client_id: tf.Tensor) -> tf.Tensor:
    """Returns an `int32[2]` seed, a function of the run's seed, the block, round and client id.

    Args:
        seed: A seed from `run_seed`.
        round_num: int32 scalar.
        client_id: int32 scalar.
    """
    for value in (round_num, client_id):
        seed = tf.random.experimental.stateless_fold_in(seed, value)
    return seed
