"""Tests runs in folders that are named by what the runs are."""

import dataclasses
import os
import pathlib

import pytest

import tff_pfl
from tests.experiment.killed import numbers_of
from tests.federation import random_examples, tiny_algorithm
from tff_pfl.analysis import comparison
from tff_pfl.data import FederatedDataset
from tff_pfl.evaluation import Evaluation

pytestmark = pytest.mark.usefixtures("clients_in_a_loop")
OPTIONS = {"rounds": 2, "clients_per_round": 2, "evaluation": Evaluation(every=1)}


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def dataset():
    pairs = [random_examples(size, seed=size) for size in (6, 7, 8, 9)]
    return FederatedDataset.from_client_arrays([(e.x, e.y, e.x, e.y) for e in pairs], 3)


def compare(dataset, lambda_=1.0, **options):
    ditto = tiny_algorithm("ditto", lambda_=lambda_)
    methods = {"Local": tiny_algorithm("local"), "Ditto, pulled": ditto}
    return tff_pfl.compare(dataset, methods, **OPTIONS | options)


@pytest.mark.thorough
def test_edits_are_new_runs_in_folders_of_their_own(dataset, monkeypatch):
    trained = []

    def train(experiment, *args, **options):
        trained.append(experiment.label)
        return tff_pfl.train(experiment, *args, **options)

    monkeypatch.setattr(comparison, "train", train)
    before = compare(dataset)
    after = compare(dataset, lambda_=0.1)
    assert trained == ["Local, seed 0", "Ditto, pulled, seed 0", "Ditto, pulled, seed 0"]
    again = compare(dataset)
    assert len(trained) == 3 and again.table().equals(before.table())
    assert not after.table().equals(before.table())
    assert tff_pfl.Comparison("runs/compare").table().equals(before.table())
    # The runs of other rounds, even fewer, are others.
    compare(dataset, lambda_=0.1, rounds=1)
    assert len(trained) == 5 and len(list(pathlib.Path("runs/compare").glob("*/seed0-*"))) == 5


def test_experiment_is_trained_once_in_a_folder_of_its_own(dataset, capsys):
    experiment = tff_pfl.Experiment(tiny_algorithm("local"), dataset, **OPTIONS)
    run = tff_pfl.train(experiment)
    (folder,) = pathlib.Path("runs").iterdir()
    assert os.path.samefile(run.folder, folder) and folder.name.startswith("local_on_")
    before = numbers_of(folder)
    assert tff_pfl.train(experiment).result == run.result
    assert numbers_of(folder) == before
    assert "was finished before" in capsys.readouterr().out
    tff_pfl.train(dataclasses.replace(experiment, rounds=1), verbose=False)
    assert len(list(pathlib.Path("runs").iterdir())) == 2
