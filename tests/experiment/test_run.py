"""Tests that a run answers the same for an experiment of a config and one stated in Python."""

import dataclasses

import pandas as pd
import pytest

import tff_pfl
from tests.federation import assert_equal
from tests.runs import tiny_config
from tff_pfl.config import build_dataset, build_local, build_model, run_of
from tff_pfl.experiment import Run
from tff_pfl.models import ModelSaver


@pytest.fixture(scope="module")
def runs(finished_run):
    """Returns the run of a config, and the same run of an experiment stated in Python."""
    config, folder = tiny_config(), finished_run()
    dataset = build_dataset(config)
    ditto = tff_pfl.make("ditto", build_model(config, dataset), build_local(config))
    in_python = tff_pfl.Experiment(ditto, dataset, rounds=2, clients_per_round=2)
    return run_of(folder), Run(folder, in_python)


def test_results_and_titles_are_equal(runs):
    of_config, in_python = runs
    assert of_config.result == in_python.result
    assert in_python.result.final.round_num == 2
    assert of_config.experiment.title == in_python.experiment.title == "ditto on digits"
    assert "round 2" in in_python._repr_html_()
    assert Run("nowhere", in_python.experiment).result is None


def test_settings_in_python_have_the_keys_of_configs(runs):
    of_config, in_python = (run.experiment.settings for run in runs)
    for key in ("seed", "rounds", "clients_per_round", "checkpoint_every", "evaluation"):
        assert in_python[key] == of_config[key]
    assert in_python["algorithm"]["name"] == of_config["algorithm"]["name"] == "ditto"


def test_evaluations_are_equal(runs):
    changes = {"generalization": "last", "clients": 3}
    first, second = (run.evaluate(**changes, predictions=True) for run in runs)
    assert first.to_json() == second.to_json()
    assert first.options["clients"] == 3 and len(first.clients.client_ids) == 3
    for found in (first.columns(), first.predictions.columns()):
        assert found


def test_predictions_are_equal(runs):
    first, second = (run.predictions() for run in runs)
    pd.testing.assert_frame_equal(first, second)
    assert set(first["client_id"]) == set(range(4))


def test_exported_models_are_equal(runs, tmp_path, monkeypatch):
    saved = []
    monkeypatch.setattr(ModelSaver, "save", lambda _, weights, path: saved.append(weights))
    exported = [run.export(tmp_path / str(i), [3, 0]) for i, run in enumerate(runs)]
    assert exported[0] == exported[1] == ("ditto on digits", 2, ["global", "client_3", "client_0"])
    assert_equal(saved[:3], saved[3:])


def test_run_of_another_experiment_is_refused(runs):
    of_config, _ = runs
    experiment = dataclasses.replace(of_config.experiment, seed=1)
    with pytest.raises(tff_pfl.experiment.OutputDirectoryError, match="rounds"):
        Run(of_config.folder, experiment).check()
    of_config.check()
