"""Tests that mistakes in a study's settings are found before any training."""

import importlib
import json
import shutil

import pytest

from tests.own_modules import own_modules
from tests.runs import run_main, train_run, write_study
from tff_pfl.config import ConfigError, read_config
from tff_pfl.experiment import resolved
from tff_pfl.studies import Study, Tuning, Variant, check_settings, grid
from tff_pfl.studies.check import first_problem

DITTO = "configs/digits.py:ditto"


def study_of(settings, config=DITTO, **others):
    variants = {
        "FedAvg": Variant("configs/digits.py:fedavg"),
        "The other": Variant(config, settings),
    }
    return Study("Two", variants, settings={"rounds": 3}, **others)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("settings", "config", "message"),
    [
        ({"roundz": 3}, DITTO, "Unknown config key 'roundz'"),
        ({"privacy.epsilon": 1.0}, "configs/digits.py:fedpg", "config.privacy: "),
    ],
)
def test_mistake_is_reported_with_its_run(settings, config, message, tmp_path):
    problem = first_problem(list(study_of(settings, config).runs()), tmp_path)
    assert problem.startswith(f"{tmp_path}/The_other/seed0 would fail: ") and message in problem


def test_correct_settings_have_no_problem(tmp_path):
    assert first_problem(list(study_of({"algorithm.lambda_": 0.5}).runs()), tmp_path) is None


def test_config_of_each_trial_is_read(tmp_path):
    """Builds the first trial, and only reads the config of the second."""
    validation = {"data.fractions": (0.6, 0.2, 0.2)}
    tuning = Tuning(grid({"local.learning_rate": (0.1, -0.1)}), validation, rounds=(2,))
    study = study_of({}, tuning=tuning)
    runs = [
        run for trial in study.trials("FedAvg") for run in study.tuning_runs("FedAvg", trial, 2)
    ]
    folder = tmp_path / "tuning/FedAvg/learning_rate_-0.1/seed0"
    assert first_problem(runs, tmp_path).startswith(f"{folder} would fail: ")


def test_metric_must_be_measured_by_the_method(tmp_path):
    """Finds the mistake before trials are trained, which would be lost."""
    fedper = {"FedPer": Variant("configs/digits.py:fedper"), "FedAvg": Variant(DITTO)}
    runs = list(Study("Two", fedper, settings={"rounds": 3}).runs())
    problem = first_problem(runs, tmp_path, dict.fromkeys(fedper, "global/accuracy"))
    assert problem == (
        "Trials of 'FedPer' cannot be compared by tuning's metric='global/accuracy', but this "
        "algorithm has no global model. Choose 'personalized/accuracy'."
    )
    # The metric compares only trials of FedAvg.
    assert first_problem(runs, tmp_path, {"FedAvg": "global/accuracy"}) is None


def test_metric_of_tuning_is_checked(tmp_path):
    validation = {"data.fractions": (0.6, 0.2, 0.2)}
    rates = grid({"local.learning_rate": (0.1, 0.2)})
    tuning = Tuning(rates, validation, metric="global/accuracy")
    study = Study("One", {"FedPer": Variant("configs/digits.py:fedper")}, tuning=tuning)
    with pytest.raises(ConfigError, match="^Trials of 'FedPer' cannot be compared"):
        check_settings(study, tmp_path)


def write_config(folder, flags, **changes):
    """Writes the config of a run with the settings of some flags, and some changes."""
    config = read_config(flags)
    config.update(changes)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(resolved(config)))
    (folder / "metrics.csv").write_text("round\n1\n")


def test_runs_of_a_changed_config_are_refused(tmp_path):
    """Refuses to compare them with runs of the new config."""
    study = study_of({}, seeds=(0, 1))
    for run in study.runs():
        changes = {"rounds": 9} if run.seed else {}  # a run may be continued
        if (run.label, run.seed) == ("The other", 1):
            changes = {"local": {"learning_rate": 0.7}}
        write_config(tmp_path / run.folder, run.flags, **changes)
    expected = r"has now:\n  local.learning_rate: 0.7 then, 0.1 now\nDelete the folder, undo"
    with pytest.raises(ConfigError, match=f"The_other/seed1 was run with other .*{expected}"):
        check_settings(study, tmp_path)
    write_config(tmp_path / "copy", next(study.runs()).flags)
    (tmp_path / "copy" / "config.json").rename(tmp_path / "The_other" / "seed1" / "config.json")
    assert first_problem(list(study.runs())[2:3], tmp_path) is None  # a run of fedavg
    assert "algorithm" in first_problem(list(study.runs())[3:], tmp_path)


def test_changed_config_of_chosen_settings_is_refused(tmp_path):
    tuning = Tuning(grid({"local.learning_rate": (0.1, 0.2)}), {"data.fractions": (0.6, 0.2, 0.2)})
    study = study_of({}, tuning=tuning)
    (run,) = study.runs({"FedAvg": {"local.learning_rate": 0.2}})
    (trial,) = study.tuning_runs("FedAvg", {"local.learning_rate": 0.1}, 3)
    recorded = {run.folder: run.flags, trial.folder: trial.flags}
    (tmp_path / "study.json").write_text(json.dumps({"flags": recorded}))
    for changed in (run, trial):
        write_config(tmp_path / changed.folder, changed.flags, local={"batch_size": 99})
        message = rf"{changed.folder} .*\n  local.batch_size: 99 then, \d+ now"
        with pytest.raises(ConfigError, match=message):
            check_settings(study, tmp_path)
        shutil.rmtree(tmp_path / changed.folder)


def test_begun_run_needs_its_config(tmp_path):
    run = next(study_of({}).runs())
    write_config(tmp_path / run.folder, run.flags)
    run = run._replace(flags=("--config=configs/digits.py:fedavgg",))
    assert "FedAvg/seed0 would fail: " in first_problem([run], tmp_path)


def test_config_file_must_exist(tmp_path):
    with pytest.raises(FileNotFoundError, match="The config of 'The other', .* does not exist"):
        check_settings(study_of({}, f"{tmp_path}/config.py"), tmp_path)


def test_modules_of_the_same_name_are_refused(tmp_path):
    """Imports one of them only, as one process can."""
    variants = {}
    for name in ("one", "another"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "twice_named.py").write_text("ROUNDS = 3\n")
        (folder / "config.py").write_text(
            "import tff_pfl\n"
            "import twice_named\n"
            "def get_config():\n"
            "    return tff_pfl.default_config('fedavg')\n"
        )
        variants[name] = Variant(f"{folder}/config.py")
    message = f"{tmp_path}/another and {tmp_path}/one both have a module 'twice_named'"
    with own_modules(tmp_path), pytest.raises(ConfigError, match=message):
        check_settings(Study("Two", variants), tmp_path / "out")


CONFIG = """
from tff_pfl.config import default_config
def get_config():
    config = default_config("pulled", imports=("pulled_method",))
    config.update(rounds=1, clients_per_round=2, data={"num_clients": 4}, local={"epochs": 1})
    return config
"""
METHOD = """
import helper_of_method
import tff_pfl
@tff_pfl.ALGORITHMS.register("pulled")
def pulled(model, local):
    return tff_pfl.ALGORITHMS["fedprox"](model, local, mu=helper_of_method.MU)
"""


@pytest.mark.thorough
def test_run_of_edited_code_is_refused_but_not_that_of_an_edited_comment(tmp_path):
    (tmp_path / "config.py").write_text(CONFIG)
    (tmp_path / "pulled_method.py").write_text(METHOD)
    (run,) = Study("One", {"Pulled": Variant(f"{tmp_path}/config.py")}).runs()

    def problem_of(helper, train=False):
        (tmp_path / "helper_of_method.py").write_text(helper)
        importlib.invalidate_caches()
        with own_modules(tmp_path):
            if train:
                train_run(tmp_path / run.folder, read_config(run.flags))
            return first_problem([run], tmp_path)

    assert problem_of("MU = 0.5", train=True) is None
    assert problem_of("MU = 0.5  # the paper's") is None
    problem = problem_of("MU = 0.25")
    assert "was run with other code" in problem and "code of helper_of_method " in problem
    assert "the fingerprint of its method, options" in problem
    shutil.rmtree(tmp_path / run.folder / "checkpoint")
    assert "has no checkpoint of a run" in problem_of("MU = 0.5  # the paper's")
    assert problem_of("MU = 0.5") is None


def test_program_reports_a_mistake_before_training(tmp_path):
    file = write_study(tmp_path, DITTO, {"roundz": 3})
    ended = run_main("sweep.py", f"--study={file}", f"--output_dir={tmp_path / 'out'}")
    assert ended.returncode == 1 and not (tmp_path / "out").exists()
    assert ended.stderr.startswith(
        f"error: {tmp_path}/out/a/seed0 would fail: Unknown config key 'roundz'."
    )
