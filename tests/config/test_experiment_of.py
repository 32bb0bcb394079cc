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


def test_no_number_of_clients_means_all_that_train():
    config = tiny_config("fedavg", clients_per_round=None, new_clients={"number": 1})
    experiment = experiment_of(config)
    assert experiment.cohort_size == experiment.members.num_clients == 3
    assert experiment.settings == resolved(config)
    assert experiment.settings["clients_per_round"] is None
