"""Seeds of stateless random operations."""

import tensorflow as tf


def client_seed(seed: tuple[int, int], round_num, client_id):
    """`int32[2]`, a function of (run seed, block, round, client id)."""
    folded = tf.constant([seed[0] & 0x7FFFFFFF, seed[1]], tf.int32)
    for value in (round_num, client_id):
        folded = tf.random.experimental.stateless_fold_in(folded, value)
    return folded
