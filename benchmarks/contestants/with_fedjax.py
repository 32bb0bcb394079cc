"""Runs rounds of fedjax's FedAvg and APFL, with its default backend for clients.

fedjax fills a client's last batch with further examples of the client.
"""

import common
import fedjax
import haiku as hk
import jax
import optax
from fedjax.algorithms import apfl, fed_avg


def network(name):
    """Returns a function that computes the logits of a batch."""
    *hidden, head = common.NETWORKS[name][1]

    def logits(batch):
        layers = []
        for shape in hidden:
            if len(shape) == 4:
                layers += [hk.Conv2D(shape[-1], shape[0], padding="VALID"), jax.nn.relu]
                layers += [hk.MaxPool(2, 2, padding="VALID")]
            else:
                layers += [hk.Flatten(), hk.Linear(shape[-1]), jax.nn.relu]
        return hk.Sequential([*layers, hk.Flatten(), hk.Linear(head[-1])])(batch["x"])

    return logits


def loss(batch, logits):
    """Returns the loss of each example."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"])


def main():
    turns, work = common.Turns(), common.arguments()
    clients = {
        f"{client:06}".encode(): {"x": common.scaled(x), "y": y}
        for client, (x, y) in enumerate(zip(*common.client_data(work), strict=True))
    }
    sampler = fedjax.client_samplers.UniformGetClientSampler(
        fedjax.InMemoryFederatedData(clients), work.clients_per_round, work.seed
    )
    batch = {name: array[:1] for name, array in clients[b"000000"].items()}
    transformed = hk.transform(network(work.network))
    model = fedjax.create_model_from_haiku(transformed, batch, loss, {})
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
