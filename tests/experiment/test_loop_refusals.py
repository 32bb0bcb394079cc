"""Tests that the round loop refuses wrong data, processes and numbers before it writes."""

import dataclasses

import pytest
import tensorflow_federated as tff

from tests.experiment.killed import run, with_validation
from tests.federation import EXAMPLES_TYPE, local_sgd, tiny_model, tiny_process
from tff_pfl import algorithms, runtime
from tff_pfl.algorithms import build_ditto, build_fedavg, build_local
from tff_pfl.arguments.kinds import KindError
from tff_pfl.clients import ForeignStateError, Participation
from tff_pfl.data import FederatedDataset, Partition
from tff_pfl.evaluation import EvaluationOptions, sampled_clients
from tff_pfl.experiment import (
    EarlyStop,
    NobodyReportedError,
    OutputDirectoryError,
    RunDirectory,
    train,
)
from tff_pfl.experiment import checkpoint as checkpoints
from tff_pfl.privacy import Accountant, PrivacyLoss
from tff_pfl.templates import compose
from tff_pfl.templates.federation import Federation


def for_six_clients():
    algorithm = algorithms.make("scaffold", tiny_model(), local_sgd(), num_clients=6)
    return compose(algorithm, EXAMPLES_TYPE)


def fedavg(change=lambda algorithm: algorithm):
    """Returns a function that makes a process of FedAvg with a changed algorithm."""

    def made():
        process = tiny_process(build_fedavg)
        return dataclasses.replace(process, algorithm=change(process.algorithm))

    return made


def noisy(noise):
    return fedavg(lambda algorithm: algorithm.with_declared_noise(noise))


def for_four_clients(algorithm):
    return dataclasses.replace(algorithm, made_for=Federation(clients_per_round=4))


FIXED, POISSON = Accountant(5, 2, 0.1), Accountant(5, 2, 0.1, "poisson")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clients_per_round": 6}, "cohort of 6 clients .* federation.* 5"),
        ({"process": for_six_clients}, "made for num_clients=6, .* is 5"),
        ({"model": dataclasses.replace(tiny_model(), num_classes=2)}, "2 logits, .* 3 classes"),
        ({"rounds": 0}, "^rounds must be "),
        (
            {"early_stop": EarlyStop(1)},
            "no client that is evaluated has validation examples. Give",
        ),
        ({"privacy": PrivacyLoss(POISSON, 1.0)}, "(?s)computed for.*poisson.*but the run's"),
        ({"privacy": PrivacyLoss(FIXED, 5.0)}, "the algorithm of the process has none"),
        (
            {"privacy": PrivacyLoss(FIXED, 5.0), "process": noisy(0.1)},
            "noise_multiplier=5.0, but the process has 0.1",
        ),
        (
            {"process": fedavg(for_four_clients)},
            "made for clients_per_round=4, .* here it is 2",
        ),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_impossible_runs_are_refused_before_they_write(dataset, tmp_path, options, message):
    process = options.get("process", fedavg())()
    with pytest.raises(ValueError, match=message):
        run(tmp_path, dataset, **{**options, "process": process})
    assert not (tmp_path / "checkpoint").exists()


def test_impossible_early_stops_are_refused(dataset):
    some = with_validation(dataset)
    drawn = next(s for s in range(99) if sampled_clients(s, 5, 1) == [4])
    bare = dataclasses.replace(
        tiny_model(), task=dataclasses.replace(tiny_model().task, metrics={})
    )
    every, ditto = EvaluationOptions(), tiny_process(build_ditto)
    for metric, process, model, options, message in (
        ("global/loss", tiny_process(build_local), tiny_model(), every, "'personalized/loss'"),
        ("personalized/accuracy", ditto, bare, every, "has no accuracy. Choose 'personalized/l"),
        (
            "personalized/loss",
            ditto,
            tiny_model(),
            EvaluationOptions(clients=1, seed=drawn),
            "no client that is evaluated has validation examples",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            EarlyStop(1, metric=metric).check(process.algorithm, model, some, options)
    with pytest.raises(ValueError, match="needs evaluations, but only the last round is"):
        EarlyStop(1).check_every(0)


def other_partition(dataset):
    train_rows = tuple(reversed(dataset.partition.train))
    partition = Partition(train_rows, dataset.partition.validation, dataset.partition.test)
    return FederatedDataset(dataset.x, dataset.y, 3, partition)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rounds": 1}, "has done 2 rounds already, but rounds=1"),
        ({"dataset": other_partition}, r"the fingerprint of its data .* \(partition.npz\) was"),
        (
            {"dataset": lambda data: FederatedDataset(255 - data.x, data.y, 3, data.partition)},
            "the fingerprint of its inputs",
        ),
        ({"seed": 4}, "its cohorts are drawn with another seed or participation"),
        ({"clients_per_round": 3}, "clients_per_round was 2, now it is 3"),
        ({"format": 4}, "the format of its checkpoint was 3, with this tff_pfl it is 4"),
        ({"checkpoint": None}, "Cannot resume the run in .*: its checkpoint is missing"),
        ({"process": noisy(1.0)}, "noise_multiplier was None, now it is 1.0"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_run_is_not_resumed_with_other_values(dataset, tmp_path, monkeypatch, changes, message):
    run(tmp_path, dataset, tiny_process(build_fedavg), rounds=2)
    if "checkpoint" in changes:
        (tmp_path / "checkpoint" / "data.mdb").unlink()
    monkeypatch.setattr(checkpoints, "FORMAT", changes.get("format", checkpoints.FORMAT))
    before = {file: file.read_bytes() for file in tmp_path.glob("*.*") if file.is_file()}
    options = {k: v for k, v in changes.items() if k not in ("dataset", "format", "checkpoint")}
    options["process"] = changes.get("process", fedavg())()
    found = changes.get("dataset", lambda data: data)(dataset)
    with pytest.raises(OutputDirectoryError, match=message):
        run(tmp_path, found, **{"rounds": 3, **options})
    assert {file: file.read_bytes() for file in before} == before


def test_checkpoint_of_another_algorithm_is_refused(dataset, tmp_path):
    run(tmp_path, dataset, rounds=1)
    with pytest.raises(ForeignStateError):
        run(tmp_path, dataset, tiny_process(build_local), rounds=2)


def test_closed_directory_and_data_of_another_library_are_refused(dataset, tmp_path):
    directory = RunDirectory(tmp_path / "run", {})
    arguments = {"rounds": 1, "clients_per_round": 2}
    with pytest.raises(ValueError, match="run is not open: `with tff_pfl.RunDirectory"):
        train(tiny_process(build_ditto), tiny_model(), dataset, directory, **arguments)
    assert not (tmp_path / "run").exists()
    data = tff.simulation.datasets.TestClientData({"a": {"x": [[1.0]], "y": [0]}})
    with pytest.raises(KindError, match="The data set must be of type FederatedDataset, .*arrays"):
        run(tmp_path, data)


def test_stock_runtime_refuses_a_round_without_clients(dataset, tmp_path, monkeypatch):
    monkeypatch.setattr(runtime, "current_devices", lambda: None)
    with pytest.raises(NobodyReportedError, match="Nobody reported in round 1.*--runtime=graph"):
        run(tmp_path, dataset, participation=Participation(dropout=(1.0,)))
