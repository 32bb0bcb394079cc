"""States the method and the data that the other programs use."""

import tff_pfl
from tff_pfl import config as configs


def experiment_of(algorithm: str, num_clients: int, cohort_size: int) -> tff_pfl.Experiment:
    """Returns a method's default experiment on scikit-learn's digits."""
    config = configs.default_config(algorithm)
    config.data.num_clients = num_clients
    config.clients_per_round = cohort_size
    return configs.experiment_of(config)
