"""Tests the experiments of configs as values."""

import dataclasses

import tff_pfl
from tests.runs import tiny_config
from tff_pfl.config import experiment_of
from tff_pfl.experiment.run_directory import resolved


def test_settings_are_those_of_the_config_until_a_part_is_replaced():
    config = tiny_config("fedavg")
    experiment = experiment_of(config)
    assert experiment.settings == resolved(config)
    ditto = tff_pfl.make("ditto", experiment.model, experiment.local)
    replaced = dataclasses.replace(experiment, seed=7, rounds=3, algorithm=ditto).settings
    assert (replaced["seed"], replaced["rounds"], replaced["algorithm"]["name"]) == (7, 3, "ditto")
