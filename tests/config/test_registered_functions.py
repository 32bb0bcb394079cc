"""Tests that wrong results of a user's own functions are refused by name."""

import pytest
import tensorflow as tf

from tests.marks import slow
from tests.runs import tiny_config
from tff_pfl.attacks import ATTACKS
from tff_pfl.compression import COMPRESSORS
from tff_pfl.config import ConfigError, complete, experiment_of
from tff_pfl.config.errors import config_errors
from tff_pfl.config.options import value_of
from tff_pfl.data import PARTITIONERS
from tff_pfl.datasets import DATASETS
from tff_pfl.local import OPTIMIZERS, SCHEDULES
from tff_pfl.templates import AGGREGATORS


@pytest.mark.parametrize(
    ("registry", "key", "function", "message"),
    [
        (OPTIMIZERS, "local.optimizer", lambda rate: None, "config.local: .* Optimizer, got None"),
        slow(
            SCHEDULES,
            "local.schedule.name",
            lambda: lambda round_num: tf.ones([2]),
            "config.local.schedule: Shape must be rank 0",
        ),
        (
            SCHEDULES,
            "local.schedule.name",
            lambda: lambda round_num: -round_num,  # 0 is valid
            "config.local.schedule: 'own' has the factor -1 in round 1 ",
        ),
        (
            PARTITIONERS,
            "data.partitioner",
            lambda labels, num_clients, rng: None,
            "The partitioner 'own' must return the rows of each client, got None",
        ),
        (
            DATASETS,
            "data.name",
            lambda data_dir: None,
            "config.data: .* LabelledImages .* got None",
        ),
        slow(AGGREGATORS, "aggregator.name", lambda: None, "config.aggregator: .* got None"),
        (
            ATTACKS,
            "attack.name",
            lambda algorithm: None,
            "config.attack: The result of the attack 'own' must be of type Algorithm, got None",
        ),
        slow(COMPRESSORS, "compression.name", lambda: None, "config.compression: .* got None"),
    ],
)
def test_wrong_results_are_refused(registry, key, function, message):
    registry.register("own")(function)
    config = tiny_config("fedavg")
    section, _, name = key.rpartition(".")
    value_of(config, section)[name] = "own"
    complete(config)
    with pytest.raises(ConfigError, match=message), config_errors(None):
        _ = experiment_of(config).process
