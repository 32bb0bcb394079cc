"""Tests that a run answers the same for an experiment of a config and one stated in Python.

`test_recipe.py` compares the models that they export.
"""

import dataclasses

import numpy as np
import pytest

import tff_pfl
from tests.runs import tiny_config
from tff_pfl.config import build_dataset, build_local, build_model, run_of
from tff_pfl.experiment import OutputDirectoryError, Run


@pytest.fixture(scope="module")
def runs(finished_run):
    """Returns the run of a config, and the same run of an experiment stated in Python."""
    run = run_of(finished_run())
    algorithm, dataset = run.experiment.algorithm, build_dataset(tiny_config())
    in_python = tff_pfl.Experiment(algorithm, dataset, rounds=2, clients_per_round=2)
    return run, Run(run.folder, in_python)


@pytest.mark.thorough
def test_experiment_of_a_config_has_the_identity_of_one_in_python(runs):
    config, (run, _) = tiny_config(), runs
    dataset = build_dataset(config)
    ditto = tff_pfl.make("ditto", build_model(config, dataset), build_local(config))
    in_python = dataclasses.replace(run.experiment, algorithm=ditto, dataset=dataset)
    Run(run.folder, in_python).check()
    other = dataclasses.replace(in_python, dataset=dataset.of([0, 1, 3, 2]))
    with pytest.raises(OutputDirectoryError, match="the fingerprint of its data .* then"):
        Run(run.folder, other).check()


def test_results_and_titles_are_equal(runs):
    of_config, in_python = runs
    assert of_config.result == in_python.result
    assert in_python.result.final.round_num == 2
    assert of_config.experiment.title == in_python.experiment.title == "ditto on digits"
    assert "round 2" in in_python._repr_html_()
    unfinished = Run("nowhere", in_python.experiment)
    assert unfinished._repr_html_() is None
    with pytest.raises(OutputDirectoryError, match="The run in nowhere is not finished. Continue"):
        _ = unfinished.result


@pytest.mark.thorough
def test_evaluations_and_predictions_are_equal(runs):
    of_config, in_python = runs
    found = of_config.evaluate(clients=3, predictions=True)
    assert found.options["clients"] == len(found.clients.client_ids) == 3
    assert in_python.evaluate(clients=3).to_json() == found.to_json()
    predictions = in_python.predictions(clients=3)
    assert sorted(set(predictions["client_id"])) == found.clients.client_ids.tolist()
    for name, column in found.predictions.columns().items():
        np.testing.assert_array_equal(np.stack(predictions[name]), np.stack(column))
