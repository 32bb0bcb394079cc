"""Runs the round loop, also until it is killed, and reads the tables of runs."""

import csv

import numpy as np
import pytest

from tests.federation import tiny_model, tiny_process
from tff_pfl.algorithms import build_ditto
from tff_pfl.data import FederatedDataset, Partition
from tff_pfl.experiment import RunDirectory, train


class Killed(BaseException):
    """An exception that stands in for a kill in the middle of a run."""


def run(path, dataset, process=None, rounds=6, model=None, **options):
    """Trains Ditto or another process, or resumes its run."""
    arguments = {"clients_per_round": 2, "seed": 3, "evaluate_every": 2, **options}
    process, model = process or tiny_process(build_ditto), model or tiny_model()
    with RunDirectory(path, {"rounds": rounds}, resume=True) as directory:
        return train(process, model, dataset, directory, rounds=rounds, **arguments)


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
