"""What the round loop refuses: other data, other processes, and numbers that cannot be."""

import concurrent.futures
import dataclasses
import functools
import json

import pytest
import tensorflow_federated as tff

from tests.experiment.test_loop import MODEL, dataset, run  # noqa: F401
from tests.federation import EXAMPLES_TYPE, local_sgd, tiny_process
from tff_pfl import algorithms
from tff_pfl.algorithms import build_ditto, build_local
from tff_pfl.clients import ForeignStateError, Participation
from tff_pfl.data import FederatedDataset, Partition
from tff_pfl.experiment import OutputDirectoryError, RunDirectory, loop
from tff_pfl.experiment.checkpoint import client_states
from tff_pfl.experiment.run_directory import CHECKPOINT
from tff_pfl.kinds import KindError
from tff_pfl.templates import compose


def test_fewer_rounds_than_are_done(dataset, tmp_path):  # noqa: F811
    run(tmp_path, dataset, rounds=2)
    with pytest.raises(OutputDirectoryError, match="has done 2 rounds already, 1 are asked for"):
        run(tmp_path, dataset, rounds=1)


def test_a_run_whose_checkpoint_is_gone_does_not_begin_again(dataset, tmp_path):  # noqa: F811
    run(tmp_path, dataset, rounds=1)
    (tmp_path / "checkpoint" / "data.mdb").unlink()
    before = (tmp_path / "metrics.csv").read_bytes()
    with pytest.raises(OutputDirectoryError, match="cannot go on: its checkpoint is gone"):
        run(tmp_path, dataset, rounds=2)
    assert (tmp_path / "metrics.csv").read_bytes() == before


def test_other_data_are_refused_and_the_partition_is_kept(dataset, tmp_path):  # noqa: F811
    run(tmp_path, dataset, rounds=1)
    before = (tmp_path / "partition.npz").read_bytes()
    train_rows = tuple(reversed(dataset.partition.train))
    partition = Partition(train_rows, dataset.partition.validation, dataset.partition.test)
    other = FederatedDataset(dataset.x, dataset.y, 3, partition)
    with pytest.raises(OutputDirectoryError, match="has other data or another partition"):
        run(tmp_path, other, rounds=2)
    assert (tmp_path / "partition.npz").read_bytes() == before


def test_inputs_that_were_prepared_in_another_way_are_refused(dataset, tmp_path):  # noqa: F811
    run(tmp_path, dataset, rounds=1)
    other = FederatedDataset(255 - dataset.x, dataset.y, 3, dataset.partition)
    with pytest.raises(OutputDirectoryError, match="has other inputs, perhaps the same that were"):
        run(tmp_path, other, rounds=2)
    process = tiny_process(build_ditto)
    with client_states(process, str(tmp_path / CHECKPOINT)) as store:  # as of an earlier version
        progress = json.loads(store.attachment("progress"))
        del progress["inputs"]
        store.commit({"progress": json.dumps(progress).encode()})
    assert run(tmp_path, dataset, rounds=2).final.round_num == 2


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"seed": 4}, "draws its cohorts with another seed, or part"),
        ({"participation": Participation(dropout=(0.5,))}, "another seed, or participation"),
        ({"clients_per_round": 3}, "rounds of 2 clients, but now .* of 3"),
    ],
)
def test_a_run_does_not_go_on_with_other_cohorts(dataset, tmp_path, changed, expected):  # noqa: F811
    run(tmp_path, dataset, rounds=1)
    with pytest.raises(OutputDirectoryError, match=expected):
        run(tmp_path, dataset, rounds=2, **changed)


def test_a_thread_without_a_context(dataset, tmp_path):  # noqa: F811
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        training = thread.submit(run, tmp_path, dataset, rounds=1)
        with pytest.raises(RuntimeError, match="This thread has no context .* in it"):
            training.result()
    assert not (tmp_path / "checkpoint").exists()


def test_an_impossible_cohort_is_refused_before_anything_is_written(dataset, tmp_path):  # noqa: F811
    with pytest.raises(ValueError, match="cohort of 6 clients .* federation of 5"):
        run(tmp_path, dataset, clients_per_round=6)
    assert not (tmp_path / "checkpoint").exists()


@pytest.mark.parametrize(
    ("name", "numbers", "expected"),
    [
        ("scaffold", {"num_clients": 6}, "made for num_clients=6, .* here it is 5"),
        (
            "pgfed",
            {"num_clients": 5, "clients_per_round": 3},
            "made for clients_per_round=3, .* here it is 2",
        ),
        (
            "pgfed",
            {"num_clients": 5, "clients_per_round": 2, "largest_cohort": 1},
            "made for largest_cohort=1, but there are 2 clients a round",
        ),
    ],
)
def test_an_algorithm_of_another_federation(dataset, tmp_path, name, numbers, expected):  # noqa: F811
    algorithm = algorithms.make(name, MODEL, local_sgd(), **numbers)
    with pytest.raises(ValueError, match=expected):
        run(tmp_path, dataset, compose(algorithm, EXAMPLES_TYPE))
    assert not (tmp_path / "checkpoint").exists()


def test_a_model_of_fewer_classes_is_refused_before_anything_is_written(dataset, tmp_path):  # noqa: F811
    model = dataclasses.replace(MODEL, num_classes=2)
    with pytest.raises(ValueError, match="2 logits, but the data have 3 classes"):
        run(tmp_path, dataset, model=model)
    assert not (tmp_path / "checkpoint").exists()


def test_a_directory_that_was_not_entered(dataset, tmp_path):  # noqa: F811
    """Or was left: nothing would be written, or by two at a time."""
    directory = RunDirectory(tmp_path / "run", {})
    train = functools.partial(loop.train, tiny_process(build_ditto), MODEL, dataset)
    with pytest.raises(ValueError, match="run is not open: `with tff_pfl.RunDirectory"):
        train(directory, rounds=1, clients_per_round=2)
    assert not (tmp_path / "run").exists()
    with directory:
        train(directory, rounds=1, clients_per_round=2)
    with pytest.raises(ValueError, match="run is not open"):
        train(directory, rounds=2, clients_per_round=2)


def test_data_of_another_library(tmp_path):
    data = tff.simulation.datasets.TestClientData({"a": {"x": [[1.0]], "y": [0]}})
    with pytest.raises(KindError, match="The data set must be of type FederatedDataset, .*arrays"):
        run(tmp_path, data)


@pytest.mark.parametrize("number", ["rounds", "checkpoint_every", "evaluate_every", "seed"])
def test_numbers_out_of_range(dataset, tmp_path, number):  # noqa: F811
    with pytest.raises(ValueError, match=f"^{number} must be "):
        run(tmp_path, dataset, **{number: 0 if number in ("rounds", "checkpoint_every") else -1})
    assert not (tmp_path / "checkpoint").exists()


def test_a_checkpoint_of_another_algorithm_is_foreign(dataset, tmp_path):  # noqa: F811
    run(tmp_path, dataset, rounds=1)
    process = tiny_process(build_local)
    with pytest.raises(ForeignStateError):
        run(tmp_path, dataset, process, rounds=2)
