"""Runs of the round loop, some of them killed in the middle, and the tables that they leave."""

import csv

import numpy as np
import pytest

from tests.federation import tiny_model, tiny_process
from tff_pfl.algorithms import build_ditto
from tff_pfl.data import FederatedDataset, Partition
from tff_pfl.experiment import RunDirectory, train


class Killed(BaseException):
    """Stands in for a process that ends in the middle of a run."""


def run(path, dataset, process=None, rounds=6, model=None, **options):
    """Trains Ditto, or another process, or goes on with it."""
    arguments = {"clients_per_round": 2, "seed": 3, "evaluate_every": 2, **options}
    process, model = process or tiny_process(build_ditto), model or tiny_model()
    with RunDirectory(path, {"rounds": rounds}, resume=True) as directory:
        return train(process, model, dataset, directory, rounds=rounds, **arguments)


def run_until(target, attribute, call, path, dataset, error=Killed, **options):
    """The same run, which ends when an attribute is called so many times, counted from 1."""
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
    """The contents of all files of a run that are functions of its config."""
    tables = [*(path / "clients").iterdir(), *path.glob("new_clients.csv")]
    return {file.name: file.read_bytes() for file in [path / "metrics.csv", *tables]}


def contents_of(path):
    """The contents of all files in a directory and its folders."""
    return {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}


def rows_of(path, name="metrics.csv"):
    """The rows of a table of a run."""
    with open(path / name, newline="") as file:
        return list(csv.DictReader(file))


def with_validation(dataset):
    """The same clients, all but one of which validate on some of what they trained on."""
    parts = [np.split(rows, [3]) for rows in dataset.partition.train]
    train_rows, validation = zip(*parts, strict=True)
    validation = (*validation[:-1], np.empty(0, np.int64))
    partition = Partition(train_rows, validation, dataset.partition.test)
    return FederatedDataset(dataset.x, dataset.y, 3, partition)
