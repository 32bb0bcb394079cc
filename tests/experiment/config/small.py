"""A config of a small run, for tests."""

import ml_collections

from tff_pfl.experiment import default_config


def small(algorithm="fedavg", **data) -> ml_collections.ConfigDict:
    config = default_config(algorithm)
    config.data.num_clients = 6
    config.clients_per_round = 3
    config.model.options.hidden = (4,)
    config.data.update(data)
    return config
