"""Tests `tff_pfl.numerics.host`."""

import tensorflow as tf

from tff_pfl.numerics.host import SCOPE, on_host


@on_host()
def halved(x):
    _, x = tf.while_loop(lambda i, _: i < 3, lambda i, x: (i + 1, x / 2), (tf.constant(0), x))
    return x


def test_operations_are_placed_on_the_cpu_of_their_machine():
    """Places them under the device of a server, and leaves the others there."""

    @tf.function(autograph=False)
    def server(x):
        with tf.device("/job:worker/task:1/device:GPU:0"):
            return tf.exp(halved(tf.square(x)))

    definition = server.get_concrete_function(tf.TensorSpec([])).graph.as_graph_def()
    devices = {node.op: node.device for node in definition.node}
    assert devices["Square"] == devices["Exp"] == "/job:worker/task:1/device:GPU:0"
    inside = [node for node in definition.node if node.name.startswith(f"{SCOPE}/")]
    inside += [node for function in definition.library.function for node in function.node_def]
    assert {"StatelessWhile", "RealDiv"} <= {node.op for node in inside}
    assert {node.device for node in inside} == {"/job:worker/task:1/device:CPU:0"}
