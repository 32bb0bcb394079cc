"""Results whose clients were computed in different ways on different devices."""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.runtime.graph import results
from tff_pfl.runtime.graph.values import Clients, Ragged, Shard, Stacked


def test_a_device_may_have_a_loop_and_another_a_stack():
    """As a CPU and a GPU have of convolutions, and results with an open dimension."""
    member = tff.types.TensorType(np.float32, [None, 2])
    rows = tf.reshape(tf.range(12.0), [3, 2, 2])
    looped = Ragged.make(tf.reshape(rows[:1], [-1]), tf.constant([[2, 2]], tf.int64))
    shards = [Shard("CPU:0", 1, (looped,)), Shard("GPU:0", 2, (Stacked(rows[1:]),))]
    for ordered in (shards, shards[::-1]):
        placed = tff.types.FederatedType(member, tff.CLIENTS)
        layout, tensors = results.emit(Clients(member, tuple(ordered)), placed)
        sizes = [shard.size for shard in ordered]
        clients = results.to_python(placed, layout, iter(tensors), sizes, keep_tensors=False)
        expected = rows if ordered is shards else tf.roll(rows, -1, axis=0)
        np.testing.assert_array_equal(clients, expected)
