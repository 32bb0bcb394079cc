"""Tests trackers where their packages are installed, in their offline modes, and where not."""

import sys

import pytest

import tff_pfl
from tests.experiment.killed import Killed, rows_of
from tests.federation import random_examples, tiny_algorithm
from tests.runs import tiny_config, train_run
from tff_pfl.config import run_program
from tff_pfl.data import FederatedDataset
from tff_pfl.experiment import TRACKERS, TrackerError, tracking
from tff_pfl.experiment.run_files import RunFiles

pytestmark = pytest.mark.usefixtures("clients_in_a_loop")
ACCURACY = "personalized/local_test/accuracy_mean"


def test_missing_package_and_unknown_tracker_are_one_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "wandb", None)
    refused = {"wandb": "pip install tff_pfl[wandb]", "wandbb": "Unknown tracker 'wandbb'"}
    for tracker, message in refused.items():
        assert run_program(tiny_config(), str(tmp_path / "run"), tracker=tracker) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("error: ") and message in line
    assert not (tmp_path / "run").exists()


def test_tracker_of_a_user_receives_each_round_and_ends(tmp_path):
    events = []

    @TRACKERS.register("kept")
    class Kept:
        def __init__(self, directory):
            events.append(directory.settings["seed"])

        def __enter__(self):
            return self

        def __exit__(self, kind, *exc_info):
            events.append(kind)

    with tff_pfl.RunDirectory(tmp_path / "run", {"seed": 3}) as directory:
        with pytest.raises(Killed), tracking(["kept"], directory) as (manager,):
            assert isinstance(manager, Kept)
            raise Killed
        with tracking([], directory) as managers:
            assert not managers
    assert events == [3, Killed]


@pytest.fixture
def mlflow(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlflow").as_uri())
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "digits")
    return pytest.importorskip("mlflow").MlflowClient()


@pytest.mark.slow
def test_mlflow_has_each_round_and_a_resumed_run_continues(mlflow, tmp_path):
    for rounds in (2, 3):
        config = tiny_config(rounds=rounds)
        path = train_run(tmp_path / "mine", config, tracker="mlflow", resume=True)
    experiment = mlflow.get_experiment_by_name("digits")
    (run,) = mlflow.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("mine", "FINISHED")
    assert run.data.params["algorithm.name"] == "ditto"
    losses = {it.step: it.value for it in mlflow.get_metric_history(run.info.run_id, "train/loss")}
    written = RunFiles(path).metrics
    assert losses == dict(zip(written["round"], written["train/loss"], strict=True))


@pytest.mark.slow
def test_wandb_has_each_round(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    logged, log = [], wandb.sdk.wandb_run.Run.log

    def logs(run, data, step=None):
        logged.append((step, data))
        log(run, data, step=step)

    monkeypatch.setattr(wandb.sdk.wandb_run.Run, "log", logs)
    path = train_run(tmp_path / "mine", tiny_config(), tracker="wandb")
    rows = rows_of(path)
    assert [step for step, _ in logged] == [1, 2]
    assert str(logged[-1][1][ACCURACY]) == rows[-1][ACCURACY]
    assert wandb.run is None  # it has ended
    (folder,) = (tmp_path / "wandb").glob("offline-run-*")
    assert list(folder.glob("run-*.wandb"))


@pytest.mark.slow
def test_comparison_tracks_each_run(mlflow, tmp_path):
    examples = random_examples(6)
    clients = [(examples.x, examples.y, examples.x, examples.y)] * 2
    dataset = FederatedDataset.from_client_arrays(clients, 3)
    methods = {"Mine": tiny_algorithm("local")}
    options = {"rounds": 1, "seeds": (0, 1), "folder": tmp_path / "runs", "tracker": "mlflow"}
    tff_pfl.compare(dataset, methods, **options)
    runs = mlflow.search_runs([mlflow.get_experiment_by_name("digits").experiment_id])
    assert sorted(run.info.run_name for run in runs) == ["Mine/seed0", "Mine/seed1"]


def test_tracker_that_does_not_start_is_one_sentence(tmp_path, monkeypatch):
    class Broken:
        @staticmethod
        def init(**options):
            raise OSError("no network")

    monkeypatch.setitem(sys.modules, "wandb", Broken)
    message = "'wandb' does not start: no network"
    directory = tff_pfl.RunDirectory(tmp_path / "run")
    with directory, pytest.raises(TrackerError, match=message):
        TRACKERS["wandb"](directory)
