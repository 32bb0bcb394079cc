"""Tests that the round loop refuses to resume other runs, before it writes."""

import dataclasses
import os
import shutil

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.experiment.killed import run
from tests.federation import tiny_algorithm, tiny_experiment
from tff_pfl import runtime
from tff_pfl.clients import ForeignStateError, Participation
from tff_pfl.data import FederatedDataset, Partition
from tff_pfl.experiment import NobodyReportedError, OutputDirectoryError, train
from tff_pfl.experiment import checkpoint as checkpoints


def fedavg(**changes):
    return dataclasses.replace(tiny_algorithm("fedavg"), **changes)


def other_partition(dataset):
    train_rows = tuple(reversed(dataset.partition.train))
    partition = Partition(train_rows, dataset.partition.validation, dataset.partition.test)
    return FederatedDataset(dataset.x, dataset.y, 3, partition)


@pytest.fixture(scope="module")
def trained(dataset, tmp_path_factory):
    """Returns the folder of a run of two rounds of FedAvg."""
    path = tmp_path_factory.mktemp("trained")
    run(path, dataset, "fedavg", rounds=2)
    return path


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rounds": 1}, "has done 2 rounds already, but rounds=1"),
        ({"dataset": other_partition}, r"the fingerprint of its data .* \(partition.npz\): "),
        (
            {"participation": Participation(over_selection=1.5)},
            "participation.over_selection: 1.0 then, 1.5 now",
        ),
        ({"format": 7}, "the format of its checkpoint: 6 then, 7 now"),
        ({"checkpoint": None}, "Cannot resume the run in .*: its checkpoint is missing"),
        (
            {"algorithm": tiny_algorithm("fedavg").with_declared_noise(1.0)},
            "noise_multiplier: None then, 1.0 now",
        ),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_run_is_not_resumed_with_other_values(
    dataset, trained, tmp_path, monkeypatch, changes, message
):
    path = tmp_path / "run"
    shutil.copytree(trained, path)
    if "checkpoint" in changes:
        (path / "checkpoint" / "data.mdb").unlink()
    monkeypatch.setattr(checkpoints, "FORMAT", changes.get("format", checkpoints.FORMAT))
    before = {file: file.read_bytes() for file in path.glob("*.*") if file.is_file()}
    options = {k: v for k, v in changes.items() if k not in ("dataset", "format", "checkpoint")}
    found = changes.get("dataset", lambda data: data)(dataset)
    with pytest.raises(OutputDirectoryError, match=message):
        run(path, found, **{"algorithm": "fedavg", "rounds": 3, **options})
    assert {file: file.read_bytes() for file in before} == before


@pytest.mark.thorough
def test_checkpoint_of_another_algorithm_is_refused(dataset, tmp_path):
    run(tmp_path, dataset, rounds=1)
    with pytest.raises(ForeignStateError):
        run(tmp_path, dataset, "fedavg", rounds=2)


@pytest.mark.thorough
def test_settings_of_an_experiment_are_those_of_its_run(dataset, tmp_path):
    experiment = tiny_experiment(dataset, "fedavg", rounds=1)
    train(experiment, tmp_path)
    with pytest.raises(OutputDirectoryError, match="already contains a run.*resume=True"):
        train(experiment, tmp_path)
    with pytest.raises(OutputDirectoryError, match="other settings:\n  seed: 3 then, 4 now\n"):
        train(dataclasses.replace(experiment, seed=4), tmp_path, resume=True)
    longer = dataclasses.replace(experiment, rounds=2)
    assert train(longer, tmp_path, resume=True).result.final.round_num == 2


@pytest.mark.thorough
def test_run_of_its_own_folder_stays_the_same_run_when_it_is_resumed_there(
    dataset, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    experiment = tiny_experiment(dataset, "fedavg", rounds=1)
    first = train(experiment)
    assert train(experiment, first.folder, resume=True).folder == os.path.abspath(first.folder)
    assert train(experiment).folder == first.folder
    assert capsys.readouterr().out.count("the run was finished before") == 2


@pytest.mark.thorough
def test_finished_run_that_is_shown_again_records_no_versions(dataset, tmp_path, capsys):
    experiment = tiny_experiment(dataset, "fedavg", rounds=1)
    train(experiment, tmp_path)
    recorded = tmp_path / "versions.json"
    others = recorded.read_text().replace(np.__version__, "1.0")
    recorded.write_text(others)
    train(experiment, tmp_path, resume=True)
    assert recorded.read_text() == others
    assert "the run continues" not in capsys.readouterr().out


def test_stock_runtime_refuses_a_round_without_clients(dataset, tmp_path):
    with (
        tff.framework.get_context_stack().install(runtime.create_cpp_context()),
        pytest.raises(NobodyReportedError, match="Nobody reported in round 1.*--runtime=graph"),
    ):
        run(tmp_path, dataset, participation=Participation(dropout=(1.0,)))
