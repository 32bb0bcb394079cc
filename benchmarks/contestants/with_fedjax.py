"""Runs rounds of fedjax's FedAvg and APFL, with its default backend for clients."""

import common
import fedjax
import haiku as hk
import jax
import optax
from fedjax.algorithms import apfl, fed_avg


def network(batch):
    """Returns the logits of PGFed's CNN."""
    return hk.Sequential(
        [
            hk.Conv2D(32, 5, padding="VALID"),
            jax.nn.relu,
            hk.MaxPool(2, 2, padding="VALID"),
            hk.Conv2D(64, 5, padding="VALID"),
            jax.nn.relu,
            hk.MaxPool(2, 2, padding="VALID"),
            hk.Flatten(),
            hk.Linear(512),
            jax.nn.relu,
            hk.Linear(common.NUM_CLASSES),
        ]
    )(batch["x"])


def loss(batch, logits):
    """Returns the loss of each example."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"])


def main():
    turns, work = common.Turns(), common.arguments()
    x, y = common.data(work)
    x = common.scaled(x)
    clients = {
        f"{client:03}".encode(): {"x": x[client], "y": y[client]} for client in range(len(y))
    }
    sampler = fedjax.client_samplers.UniformGetClientSampler(
        fedjax.InMemoryFederatedData(clients), work.clients_per_round, work.seed
    )
    batch = {"x": x[0, : work.batch_size], "y": y[0, : work.batch_size]}
    model = fedjax.create_model_from_haiku(hk.transform(network), batch, loss, {})
    parts = (
        fedjax.model_grad(model),
        fedjax.optimizers.sgd(work.learning_rate),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(work.batch_size, work.epochs),
    )
    if work.method == "apfl":
        algorithm = apfl.adaptive_personalized_federated_learning(*parts, client_coefficient=0.5)
    else:
        algorithm = fed_avg.federated_averaging(*parts)
    params = model.init(jax.random.PRNGKey(work.seed))
    state = algorithm.init(params)

    def one_round():
        nonlocal state
        state, _ = algorithm.apply(state, sampler.sample())
        jax.block_until_ready(state)

    num_weights = sum(weight.size for weight in jax.tree_util.tree_leaves(params))
    turns.ready(num_weights, "fedjax", "jax", "jaxlib", "dm-haiku")
    turns.take(one_round)


if __name__ == "__main__":
    main()
