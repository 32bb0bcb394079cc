"""Client work whose duration is its argument."""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff


@tff.tensorflow.computation(np.int64)
def count_to(n):
    return tf.while_loop(lambda i: i < n, lambda i: [i + 1], [tf.constant(0, tf.int64)])[0]


@tff.federated_computation(tff.FederatedType(np.int64, tff.CLIENTS))
def count(n):
    """Counts to the number of each client, and returns the sum."""
    return tff.federated_sum(tff.federated_map(count_to, n))
