"""Mistakes in the settings of a study, found before anything is trained."""

import re

import pytest

from tests.runs import run_main
from tff_pfl.experiment import ConfigError
from tff_pfl.studies import Study, Tuning, Variant, check_settings, grid

DITTO = "configs/digits.py:ditto"


def study_of(settings, config=DITTO, **others):
    variants = {
        "FedAvg": Variant("configs/digits.py:fedavg"),
        "The other": Variant(config, settings),
    }
    return Study("Two", variants, settings={"rounds": 3}, **others)


@pytest.mark.parametrize(
    ("settings", "config", "message"),
    [
        ({"roundz": 3}, DITTO, "Unknown config key 'roundz'. Did you mean 'rounds'?"),
        ({"clients_per_round": 0}, DITTO, "config.clients_per_round must be"),
        ({"algorithm.lambda_": "high"}, DITTO, "lambda_"),
        ({"algorithm.lambda_": -1.0}, DITTO, "config.algorithm.lambda_ must be"),
        ({"data.classes_per_client.classes": 2}, DITTO, "has no effect"),
        ({"model.name": "resnet"}, DITTO, "Unknown model 'resnet'"),
        ({}, "configs/digits.py:dito", "Unknown algorithm 'dito'. Did you mean 'ditto'?"),
    ],
)
def test_a_mistake_is_named_with_its_run(settings, config, message, tmp_path):
    with pytest.raises(ConfigError, match=f"^The_other/seed0 would fail: .*{re.escape(message)}"):
        check_settings(study_of(settings, config), tmp_path)


def test_there_is_none(tmp_path):
    check_settings(study_of({"algorithm.lambda_": 0.5}), tmp_path)


def test_a_trial(tmp_path):
    tuning = Tuning(grid({"local.learning_rate": (0.1, -0.1)}), rounds=(2,))
    with pytest.raises(
        ConfigError, match=r"^tuning/FedAvg/learning_rate_-0.1/seed0 would fail: .*learning_rate"
    ):
        check_settings(study_of({}, tuning=tuning), tmp_path)


def test_what_has_begun_was_looked_at(tmp_path):
    study = study_of({"roundz": 3})
    (tmp_path / "The_other/seed0").mkdir(parents=True)
    check_settings(study, tmp_path)


def test_of_another_folder_the_file_alone_is_looked_for(tmp_path):
    """Its modules may have the names of others; in a process of its own, each run has its own."""
    file = tmp_path / "config.py"
    file.write_text("raise ValueError")
    check_settings(study_of({}, str(file)), tmp_path)
    file.unlink()
    with pytest.raises(FileNotFoundError, match="The config of 'The other', .* is not there"):
        check_settings(study_of({}, str(file)), tmp_path)


def test_the_program_trains_nothing(tmp_path):
    file = tmp_path / "study.py"
    file.write_text(
        "from tff_pfl.studies import Study, Variant\n"
        "def get_study():\n"
        f"    return Study('One', {{'a': Variant('{DITTO}', {{'roundz': 3}})}})\n"
    )
    ended = run_main("sweep.py", f"--study={file}", f"--output_dir={tmp_path / 'out'}")
    assert ended.returncode == 1 and not (tmp_path / "out").exists()
    assert ended.stderr.startswith("error: a/seed0 would fail: Unknown config key 'roundz'.")
