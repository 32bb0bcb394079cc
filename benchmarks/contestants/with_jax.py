"""Serves rounds of FedAvg in JAX, written as a user without a framework would.

A client is a `scan` over batches, padded to the batches of the largest client. Methods: `vmap`, all
clients at once; `map`, one client after the other.
"""

from itertools import count

import common
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

tree_map = jax.tree_util.tree_map


def logits(weights, x):
    """Computes the logits of images `uint8[batch, height, width, channels]`."""
    x = x.astype(jnp.float32) / 255
    *hidden, (kernel, bias) = zip(weights[::2], weights[1::2], strict=True)
    layout, pool = ("NHWC", "HWIO", "NHWC"), (1, 2, 2, 1)
    for own_kernel, own_bias in hidden:
        if own_kernel.ndim == 4:
            x = lax.conv_general_dilated(x, own_kernel, (1, 1), "VALID", dimension_numbers=layout)
            x = jax.nn.relu(x + own_bias)
            x = lax.reduce_window(x, -jnp.inf, lax.max, pool, pool, "VALID")
        else:
            x = jax.nn.relu(x.reshape(len(x), -1) @ own_kernel + own_bias)
    return x.reshape(len(x), -1) @ kernel + bias


def loss(weights, x, y, counts):
    """Returns the mean loss of the rows that count, and the sum of their losses."""
    z = logits(weights, x)
    losses = jax.nn.logsumexp(z, -1) - jnp.take_along_axis(z, y[:, None], 1)[:, 0]
    loss_sum = jnp.sum(counts * losses)
    return loss_sum / jnp.maximum(jnp.sum(counts), 1), loss_sum


def build(name, work):
    x, y = common.client_data(work)
    sizes = np.array(list(map(len, y)))
    length = -(-sizes.max() // work.batch_size) * work.batch_size
    filler = [(0, 0), (0, length - sizes.max())]
    x, y = common.padded(x), common.padded(y).astype(np.int32)
    x, y = jnp.asarray(np.pad(x, filler + 3 * [(0, 0)])), jnp.asarray(np.pad(y, filler))
    shares, total = jnp.asarray(sizes / sizes.sum(), jnp.float32), int(sizes.sum())

    def client(server, x, y, size, key):
        def step(weights, rows):
            batch = x[rows], y[rows], (rows < size).astype(jnp.float32)
            slopes, loss_sum = jax.grad(loss, has_aux=True)(weights, *batch)
            return tree_map(lambda w, g: w - work.learning_rate * g, weights, slopes), loss_sum

        def order(key):  # padding rows come last
            return jnp.argsort(jax.random.uniform(key, [length]) + (jnp.arange(length) >= size))

        orders = jax.vmap(order)(jax.random.split(key, work.epochs))
        return lax.scan(step, server, orders.reshape(-1, work.batch_size))

    @jax.jit
    def one_round(server, key):
        inputs = x, y, jnp.asarray(sizes), jax.random.split(key, len(sizes))
        if name == "vmap":
            weights, losses = jax.vmap(client, (None, 0, 0, 0, 0))(server, *inputs)
        else:
            weights, losses = lax.map(lambda own: client(server, *own), inputs)
        server = tree_map(lambda w: jnp.tensordot(shares, w, 1), weights)
        return server, losses.sum() / (total * work.epochs)

    server, rounds = list(map(jnp.asarray, common.initial_weights(work.network))), count()

    def run():
        nonlocal server
        server, mean_loss = one_round(server, jax.random.PRNGKey(next(rounds)))
        return float(mean_loss)

    return run


def main():
    jax.config.update("jax_default_matmul_precision", "highest")  # float32 instead of TF32
    device = jax.devices()[0]
    name = "CPU" if device.platform == "cpu" else device.device_kind
    common.serve(build, {"jax": jax.__version__}, name)


if __name__ == "__main__":
    main()
