"""Trains on handwritten digits of 8x8 pixels: 20 clients with skewed classes, some seconds.

No paper has this protocol: it is for trying things. `--config=configs/digits.py:ALGORITHM`.
"""

from tff_pfl.config import default_config


def get_config(algorithm: str = "ditto"):
    """Returns the config for an algorithm; `ditto` has both a global and a personalized model."""
    config = default_config(algorithm)
    config.rounds = 30
    config.clients_per_round = 10
    config.data.name = "digits"
    config.data.num_clients = 20
    config.data.partitioner = "dirichlet"
    config.data.dirichlet.alpha = 0.3
    config.data.dirichlet.min_examples = 20
    config.model.name = "mlp"
    config.model.options.hidden = (64,)
    config.local.learning_rate = 0.1
    config.local.epochs = 5
    config.local.batch_size = 10
    config.evaluation.every = 10
    return config
