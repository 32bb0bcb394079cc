"""Tests the files of a run, and the order in which it computes and writes."""

import asyncio
import contextlib
import dataclasses
import threading

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.experiment.killed import numbers_of, rows_of, run
from tests.federation import assert_equal, tiny_algorithm, tiny_model
from tests.runs import wait_until
from tff_pfl.clients import ClientStateStore
from tff_pfl.data import FederatedDataset, Partition
from tff_pfl.evaluation import Evaluation
from tff_pfl.experiment import read_summary
from tff_pfl.experiment.background import Background
from tff_pfl.experiment.metrics_log import PART_SECONDS, WHOLE_SECONDS
from tff_pfl.templates import ClientOutput, Exchange, Personalization, PersonalizedProcess


@pytest.mark.thorough
def test_run_measures_seconds_apart_from_metrics(uninterrupted):
    path, result = uninterrupted
    rows, timings = rows_of(path), rows_of(path, "timings.csv")
    assert float(rows[-1]["train/loss"]) < float(rows[0]["train/loss"])
    assert not rows[0].keys() & {*WHOLE_SECONDS, *PART_SECONDS}
    whole = [float(row[name] or 0) for row in timings for name in WHOLE_SECONDS]
    assert result.seconds == pytest.approx(sum(whole))
    for seconds in timings:
        whole, parts = seconds["round_seconds"], [seconds[name] for name in PART_SECONDS]
        select, compute, write, update = (float(part or 0) for part in parts)
        assert select + max(compute, write) + update <= float(whole) + 1e-6
        assert compute > 0 and write >= 0


def test_run_writes_partition_and_tensorboard(uninterrupted, dataset):
    path, _ = uninterrupted
    assert_equal(Partition.load(path / "partition.npz").train, dataset.partition.train)
    assert list((path / "tensorboard").iterdir())
    assert not (path / "snapshots").exists()  # Ditto takes no snapshots


def test_summary_has_the_result(uninterrupted):
    path, result = uninterrupted
    assert result.final.round_num == int(result.server_state.round_num) == 6
    assert result.best_on_test.mean("accuracy") >= result.final.mean("accuracy")
    assert result.best_on_validation is None  # validation examples were not evaluated
    assert result.late_mean.rounds == (6,)
    summary = read_summary(path)
    assert summary.seconds == pytest.approx(result.seconds, abs=1e-3)
    assert summary == result._replace(seconds=summary.seconds, server_state=None)


def test_evaluate_every_zero_evaluates_only_the_last_round(dataset, tmp_path):
    numbers = {"clients_per_round": np.int64(2), "seed": np.int32(3)}
    result = run(tmp_path, dataset, rounds=2, evaluation=Evaluation(every=np.int8(0)), **numbers)
    assert result.final == result.best_on_test
    assert [path.name for path in (tmp_path / "clients").iterdir()] == ["round_000002.csv"]


def test_round_is_written_while_the_next_is_computed(dataset, tmp_path, monkeypatch):
    computed, written = [], []
    commit, compute = ClientStateStore.commit, PersonalizedProcess.next.fget

    def commit_when_computing(*args):
        written.append(threading.current_thread())
        wait_until(lambda: len(computed) >= min(len(written) + 1, 3))
        commit(*args)

    def next_and_tell(process):
        computed.append(threading.current_thread())
        return compute(process)

    monkeypatch.setattr(ClientStateStore, "commit", commit_when_computing)
    monkeypatch.setattr(PersonalizedProcess, "next", property(next_and_tell))
    run(tmp_path, dataset, rounds=3)
    assert len(written) == 3 and not set(written) & set(computed)


@pytest.mark.thorough
def test_background_writing_does_not_change_numbers(uninterrupted, dataset, tmp_path, monkeypatch):
    @contextlib.contextmanager
    def first(self, work):
        work()
        yield

    monkeypatch.setattr(Background, "doing", first)
    run(tmp_path, dataset, checkpoint_every=3)
    assert numbers_of(tmp_path) == numbers_of(uninterrupted[0])


@pytest.mark.thorough
def test_run_records_measurements_of_aggregators_inside_an_event_loop(dataset, tmp_path, capsys):
    """Checks a round of valid updates, and one without any."""

    def client_work(message, state, examples, context):
        upload = tf.where(context.round_num < 1, [0.5, 0.5], np.inf)
        return ClientOutput(state, upload)

    work = Exchange(
        client_work=client_work,
        aggregator=tff.aggregators.clipping_factory(1.0, tff.aggregators.MeanFactory()),
        finalize=lambda server, mean, round_num: (server, {"mean": mean, "parts": [mean, {}]}),
    )
    algorithm = dataclasses.replace(
        tiny_algorithm("fedavg"),
        server_init=lambda seed: tiny_model().init(0),
        global_weights=None,
        exchanges=[work],
        personalize=Personalization(
            distribute=lambda server: server, client_work=lambda server, *_: server
        ),
    )

    async def program():
        return run(tmp_path, dataset, algorithm, rounds=2)

    asyncio.run(program())
    first, second = rows_of(tmp_path)
    assert first["train/server/mean/1"] == first["train/server/parts/0/1"] == "0.5"
    assert any(name.startswith("train/aggregator/") for name in first)
    assert (first["train/server_kept"], second["train/server_kept"]) == ("0", "1")
    assert "round 2: train: 2 of 2 clients left out" in capsys.readouterr().out


@pytest.mark.thorough
def test_federation_without_test_examples_prints_a_warning(dataset, tmp_path, capsys):
    none = [np.empty(0, np.int64)] * 5
    partition = Partition(dataset.partition.train, none, none)
    run(tmp_path, FederatedDataset(dataset.x, dataset.y, 3, partition), rounds=1)
    assert "warning: no client has test examples" in capsys.readouterr().out


@pytest.mark.thorough
def test_examples_without_weight_print_a_warning(dataset, tmp_path, capsys):
    weights = np.ones(len(dataset.y))
    weights[np.concatenate(dataset.partition.test[:3])] = 0
    weighted = FederatedDataset(dataset.x, dataset.y, 3, dataset.partition, weights=weights)
    run(tmp_path, weighted.of([0, 1, 2]), rounds=2)
    assert capsys.readouterr().out.count("no evaluated example has a weight, or a token that") == 1


class Recording(tff.program.ReleaseManager):
    """A release manager that keeps its values and fails in some rounds."""

    def __init__(self, failing=()):
        self.released = []
        self._failing = failing

    async def release(self, value, key):
        if key in self._failing:
            value.clear()
            raise ConnectionError("the service is away")
        await asyncio.sleep(0)  # needs an event loop, and always the same one
        self.released.append((key, len(value), asyncio.get_running_loop()))


def test_failing_release_manager_does_not_stop_the_run(uninterrupted, dataset, tmp_path, capsys):
    managers = [Recording(failing=(2, 5)), Recording()]
    run(tmp_path, dataset, release_managers=managers)
    assert numbers_of(tmp_path) == numbers_of(uninterrupted[0])
    failing, sound = ([round_num for round_num, *_ in manager.released] for manager in managers)
    assert (failing, sound) == ([1, 3, 4, 6], [1, 2, 3, 4, 5, 6])
    assert len({loop for manager in managers for *_, loop in manager.released}) == 1
    sizes = [size for _, size, _ in managers[1].released]
    assert sizes[1] == sizes[5] > sizes[0] == sizes[4]  # evaluated rounds have more numbers
    printed = capsys.readouterr().out
    message = "Recording has not released its metrics: ConnectionError: the service is away"
    assert [f"round {number}: {message}" in printed for number in range(1, 7)] == [
        number in (2, 5) for number in range(1, 7)
    ]
