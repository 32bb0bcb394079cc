"""Runs the round loop, also until it is killed, and reads the tables of runs."""

import csv

import numpy as np
import pytest

from tests.federation import random_examples, tiny_experiment
from tff_pfl.data import FederatedDataset, Partition
from tff_pfl.experiment import Result, RunDirectory, train


class Killed(BaseException):
    """An exception that stands in for a kill in the middle of a run."""


def tiny_dataset() -> FederatedDataset:
    """Makes five clients with five to nine examples, which are also their test examples."""
    data = [random_examples(5 + i, seed=i) for i in range(5)]
    return FederatedDataset.from_client_arrays([(d.x, d.y, d.x, d.y) for d in data], 3)


def run(
    path, dataset, algorithm="ditto", *, release_managers=(), of_new_clients=None, **fields
) -> Result:
    """Trains a `tiny_experiment`, or resumes its run; returns the result.

    The checkpoint tells whether the run may be resumed, because the folder has no settings.
    `of_new_clients` replaces the evaluation of new clients.
    """
    experiment = tiny_experiment(dataset, algorithm, **fields)
    if of_new_clients is not None:
        experiment.__dict__["new_clients_evaluation"] = of_new_clients
    directory = RunDirectory(path, resume=True)
    return train(experiment, directory, release_managers=release_managers).result


def run_until(target, attribute, call, path, dataset, error=Killed, **options):
    """Trains the same run, and raises an error at a call of an attribute, counted from 1."""
    original, calls = getattr(target, attribute), []

    def wrapped(*args, **kwargs):
        calls.append(args)
        if len(calls) == call:
            raise error
        return original(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, attribute, wrapped)
        with pytest.raises(error):
            run(path, dataset, **options)


def numbers_of(path):
    """Returns the contents of the files of a run that depend only on its config."""
    tables = [*(path / "clients").iterdir(), *path.glob("new_clients.csv")]
    return {file.name: file.read_bytes() for file in [path / "metrics.csv", *tables]}


def contents_of(path):
    """Returns the contents of all files in a directory and its folders."""
    return {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}


def rows_of(path, name="metrics.csv"):
    """Returns the rows of a table of a run."""
    with open(path / name, newline="") as file:
        return list(csv.DictReader(file))


def with_validation(dataset):
    """Moves some training examples of all clients except the last to validation."""
    parts = [np.split(rows, [3]) for rows in dataset.partition.train]
    train_rows, validation = zip(*parts, strict=True)
    validation = (*validation[:-1], np.empty(0, np.int64))
    partition = Partition(train_rows, validation, dataset.partition.test)
    return FederatedDataset(dataset.x, dataset.y, 3, partition)
