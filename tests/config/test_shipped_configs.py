"""Trains a round of each kind of config that ships and whose data are here, with two clients."""

import numpy as np
import pytest

import tff_pfl
from tff_pfl.arguments.names import TFF_TASKS
from tff_pfl.config import experiment_of, read_config
from tff_pfl.datasets import DataNotFoundError

# With the optimizers and the networks of the configs, one step of two examples takes seconds.
SMALL = (
    "rounds=1",
    "clients_per_round=2",
    "evaluation.clients=2",
    "local.epochs=1",
    "local.steps=1",
    "local.batch_size=2",
)
CONFIGS = (
    "digits:ditto",
    *(f"adapters:{method}" for method in ("fedavg", "fedsa_lora", "ffa_lora", "feddpa", "bitfit")),
    "fashion_mnist:knn_per",
    "fedpg:dir,fmnist,fedpg",
    "fedpg:pat,cifar10,s_fedpg",
    "pgfed:cifar10,25,pgfed",
    "plgu:cifar10,10,plgu_lf",
    "pfedmb:dirichlet,15,pfedmb",
    *(f"tff_baselines:{task},ditto" for task in TFF_TASKS),
)


@pytest.mark.slow  # `make test-trainings`, which continuous integration runs
@pytest.mark.parametrize("config", CONFIGS)
def test_config_trains_a_round(config, tmp_path):
    name, _, choice = config.partition(":")
    flags = [f"--config=configs/{name}.py:{choice}", *(f"--config.{it}" for it in SMALL)]
    try:
        experiment = experiment_of(read_config(flags))
    except DataNotFoundError as error:
        pytest.skip(str(error))
    final = tff_pfl.train(experiment, tmp_path, verbose=False).result.final
    assert np.isfinite(final.mean("loss"))
