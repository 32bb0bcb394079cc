"""A round of federated training on clients with different numbers of examples."""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests.runtime.conformance.cases import at_clients, at_server
from tff_pfl import local
from tff_pfl.local import Examples

MODEL = tff.types.to_type({"kernel": (np.float32, (3, 2)), "bias": (np.float32, (2,))})
EXAMPLES = local.examples_type((3,), np.float32)
CLIENT = tff.types.to_type({"id": np.int32, "data": EXAMPLES})


def client(number, size, rows=None):
    rng = np.random.default_rng(number)
    rows = size if rows is None else rows
    x, y = rng.normal(size=(rows, 3)).astype(np.float32), rng.integers(2, size=rows)
    x[size:] = np.nan  # padding
    return {"id": np.int32(number), "data": Examples(x, y.astype(np.int32), np.int32(size))}


COHORT = [client(i, *sizes) for i, sizes in enumerate([(7,), (40, 60), (0,), (16,), (17,)])]
WEIGHTS = {"kernel": np.full([3, 2], 0.1, np.float32), "bias": np.zeros([2], np.float32)}


@tff.tensorflow.computation(MODEL, CLIENT)
def train(weights, client):
    """Trains by SGD in random batches; returns the weights, their change, and a loss."""

    def step(carry, batch):
        weights, total = carry
        with tf.GradientTape() as tape:
            tape.watch(weights)
            logits = batch.x @ weights["kernel"] + weights["bias"]
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(batch.y, logits)
            loss = tf.reduce_sum(batch.weight * losses)
        gradient = tape.gradient(loss, weights)
        weights = tf.nest.map_structure(lambda w, g: w - 0.01 * g, weights, gradient)
        return weights, total + loss

    seed = tf.stack([client["id"], 5])
    options = {"epochs": 2, "batch_size": 10, "seed": seed}
    trained, total = local.scan_batches(step, (weights, 0.0), client["data"], **options)
    change = tf.nest.map_structure(tf.subtract, trained, weights)
    return {"change": change, "kernel": trained["kernel"], "loss": total}


@tff.tensorflow.computation(train.type_signature.result["change"], np.int32)
def weighted(change, size):
    return tf.nest.map_structure(lambda x: tf.cast(size, tf.float32) * x, change)


@tff.tensorflow.computation(MODEL["kernel"], np.float32)
def moved(kernel, loss):
    return kernel + loss


@tff.federated_computation(at_server(MODEL), at_clients(CLIENT))
def one_round(weights, clients):
    """Trains all clients, then once more from the sum of changes."""
    sizes = tff.federated_map(
        tff.tensorflow.computation(lambda client: client["data"].size, CLIENT), clients
    )
    trained = tff.federated_map(train, (tff.federated_broadcast(weights), clients))
    total = tff.federated_sum(tff.federated_map(weighted, (trained["change"], sizes)))
    again = tff.federated_map(train, (tff.federated_broadcast(total), clients))
    loss = tff.federated_broadcast(tff.federated_sum(again["loss"]))
    late = tff.federated_map(moved, (trained["kernel"], loss))  # the first loop's, after the second
    return trained["kernel"], tff.federated_sum(trained["loss"]), total, again["loss"], late
