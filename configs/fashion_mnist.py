"""Trains on Fashion-MNIST: 50 clients with few classes each, a minute for most methods.

No paper has this protocol: it compares all methods on images that are harder than digits.
`--config=configs/fashion_mnist.py:ALGORITHM`.
"""

from tff_pfl.config import default_config


def get_config(algorithm: str = "ditto"):
    """Returns the config for an algorithm; `ditto` has both a global and a personalized model."""
    config = default_config(algorithm)
    config.rounds = 50
    config.clients_per_round = 10
    config.data.name = "fashion_mnist"
    config.data.num_clients = 50
    config.data.partitioner = "dirichlet"
    config.data.dirichlet.alpha = 0.1
    config.data.dirichlet.min_examples = 20
    config.model.name = "mlp"
    config.local.learning_rate = 0.05
    config.local.epochs = 1
    config.local.batch_size = 50
    config.evaluation.every = 10
    return config
