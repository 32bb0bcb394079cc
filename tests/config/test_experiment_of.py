"""Tests the experiments of configs as values."""

import dataclasses

from tests.runs import tiny_config
from tff_pfl.config import experiment_of
from tff_pfl.experiment.run_directory import resolved


def test_settings_are_those_of_the_config_with_the_numbers_that_were_replaced():
    config = tiny_config("fedavg")
    experiment = experiment_of(config)
    assert experiment.settings == resolved(config)
    replaced = dataclasses.replace(experiment, seed=7, rounds=3)
    assert replaced.settings == resolved(config) | {"seed": 7, "rounds": 3}
