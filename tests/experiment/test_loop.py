import asyncio
import contextlib
import csv
import threading

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.federation import (
    EXAMPLES_TYPE,
    assert_equal,
    local_sgd,
    random_examples,
    tiny_model,
    tiny_process,
)
from tff_pfl.algorithms import build_ditto, build_fedavg
from tff_pfl.clients import ClientStateStore, CohortIterator
from tff_pfl.data import FederatedDataset, Partition
from tff_pfl.evaluation import EvaluationOptions
from tff_pfl.experiment import (
    OutputDirectoryError,
    RunDirectory,
    read_summary,
    table,
    train,
)
from tff_pfl.experiment.meanwhile import Meanwhile
from tff_pfl.experiment.metrics_log import PART_SECONDS, MetricsLog
from tff_pfl.experiment.results import NUM_CLIENTS_NEVER_SELECTED
from tff_pfl.templates import Algorithm, ClientOutput, Exchange, Personalization, compose

MODEL = tiny_model()


class Killed(BaseException):
    """Stands in for a process that ends in the middle of a run."""


@pytest.fixture(scope="module")
def dataset():
    data = [random_examples(5 + i, seed=i) for i in range(5)]
    return FederatedDataset.from_client_arrays([(d.x, d.y, d.x, d.y) for d in data], 3)


def run(path, dataset, process=None, rounds=6, model=MODEL, **options):
    process = process or tiny_process(build_ditto)
    arguments = {"clients_per_round": 2, "seed": 3, "evaluate_every": 2, **options}
    with RunDirectory(path, {"rounds": rounds}, resume=True) as directory:
        return train(process, model, dataset, directory, rounds=rounds, **arguments)


def test_numbers_of_numpy(dataset, tmp_path):
    numbers = {"clients_per_round": np.int64(2), "seed": np.int32(3)}
    assert run(tmp_path, dataset, rounds=1, **numbers).final.round_num == 1


def read(path, name="metrics.csv"):
    with open(path / name) as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, dataset):
    path = tmp_path_factory.mktemp("run")
    return path, run(path, dataset)


def test_what_a_run_leaves(uninterrupted, dataset):
    path, result = uninterrupted
    rows = read(path)
    assert [row["round"] for row in rows] == list("123456")
    assert float(rows[-1]["train/loss"]) < float(rows[0]["train/loss"])
    evaluated = [row["round"] for row in rows if row["personalized/local_test/accuracy_mean"]]
    assert evaluated == list("246")
    assert "round_seconds" not in rows[0]
    for seconds in read(path, "timings.csv"):
        whole, parts = seconds["round_seconds"], [seconds[name] for name in PART_SECONDS]
        select, compute, write, update = (float(part or 0) for part in parts)
        assert select + max(compute, write) + update <= float(whole) + 1e-6
        assert compute > 0 and write >= 0
    clients = read(path, "clients/round_000006.csv")
    assert [row["client_id"] for row in clients] == list("01234")
    accuracies = [float(row["personalized/local_test/accuracy"]) for row in clients]
    assert np.mean(accuracies) == pytest.approx(result.final.mean("accuracy"))
    saved = Partition.load(path / "partition.npz", labels=dataset.y)
    assert_equal(saved.train, dataset.partition.train)
    assert list((path / "tensorboard").iterdir())
    assert not (path / "snapshots").exists()  # Ditto has nothing to show


def test_final_and_best(uninterrupted):
    _, result = uninterrupted
    assert result.final.round_num == 6
    assert result.best_on_test.mean("accuracy") >= result.final.mean("accuracy")
    assert result.best_on_validation is None  # nothing was measured on validation examples
    assert result.late_mean.rounds == (6,)
    assert int(result.server_state.round_num) == 6


def test_summary_and_table(uninterrupted, tmp_path):
    path, result = uninterrupted
    assert read_summary(tmp_path) is None
    summary = read_summary(path)
    assert (summary.final, summary.late_mean) == (result.final, result.late_mean)
    text = table(summary)
    assert text.startswith("training, ")
    accuracy = result.final.mean("accuracy", "global")
    (row,) = [r for r in text.split("\nbest on")[0].splitlines() if "global/local_test" in r]
    assert f"{accuracy:.4f}" in row


@pytest.mark.parametrize("checkpoint_every", [1, 4])
@pytest.mark.parametrize("moment", ["train", "release", "commit"])
def test_a_killed_run_goes_on_with_the_same_numbers(
    uninterrupted, dataset, tmp_path, monkeypatch, checkpoint_every, moment
):
    path, expected = uninterrupted
    calls = 0

    def killed_at(original, call):
        def wrapped(*args, **kwargs):
            nonlocal calls
            calls += 1
            if calls == call:
                raise Killed
            return original(*args, **kwargs)

        return wrapped

    with monkeypatch.context() as patch:
        target, call = {
            "train": ((CohortIterator, "update"), 5),
            "release": ((MetricsLog, "release"), 5),
            "commit": ((ClientStateStore, "commit"), 2 if checkpoint_every == 4 else 5),
        }[moment]
        patch.setattr(*target, killed_at(getattr(*target), call))
        with pytest.raises(Killed):
            run(tmp_path, dataset, checkpoint_every=checkpoint_every)
    result = run(tmp_path, dataset, checkpoint_every=checkpoint_every)
    assert (tmp_path / "metrics.csv").read_bytes() == (path / "metrics.csv").read_bytes()
    name = "clients/round_000006.csv"
    assert (tmp_path / name).read_bytes() == (path / name).read_bytes()
    assert_equal(result.server_state, expected.server_state)
    assert result.best_on_test == expected.best_on_test


def test_a_round_is_written_while_the_next_is_computed(dataset, tmp_path, monkeypatch):
    process, written = tiny_process(build_ditto), []
    commit, compute = ClientStateStore.commit, type(process).next.fget
    computing = threading.Event()

    def commit_when_computing(*args):
        is_last = threading.current_thread() is threading.main_thread()
        assert is_last or computing.wait(60)
        written.append(is_last)
        commit(*args)

    def next_and_tell(process):
        computing.set()
        return compute(process)

    monkeypatch.setattr(ClientStateStore, "commit", commit_when_computing)
    monkeypatch.setattr(type(process), "next", property(next_and_tell))
    run(tmp_path, dataset, process, rounds=3)
    assert written == [False, False, True]


def test_numbers_are_those_of_a_run_that_writes_before_it_goes_on(dataset, tmp_path, monkeypatch):
    @contextlib.contextmanager
    def first(self, work):
        work()
        yield

    run(tmp_path / "meanwhile", dataset, rounds=8, checkpoint_every=3)
    monkeypatch.setattr(Meanwhile, "running", first)
    run(tmp_path / "first", dataset, rounds=8)
    for name in ("metrics.csv", "clients/round_000008.csv"):
        paths = [tmp_path / of / name for of in ("meanwhile", "first")]
        assert paths[0].read_bytes() == paths[1].read_bytes()


def test_what_cannot_be_written_ends_the_run_and_the_last_commit_stays(
    uninterrupted, dataset, tmp_path, monkeypatch
):
    commit, calls = ClientStateStore.commit, []

    def fail_third(*args):
        calls.append(args)
        if len(calls) == 3:
            raise OSError("no space left")
        commit(*args)

    with monkeypatch.context() as patch:
        patch.setattr(ClientStateStore, "commit", fail_third)
        with pytest.raises(OSError, match="no space left"):
            run(tmp_path, dataset)
    assert len(calls) == 3  # nothing is committed after what has failed
    run(tmp_path, dataset)
    path, _ = uninterrupted
    assert (tmp_path / "metrics.csv").read_bytes() == (path / "metrics.csv").read_bytes()


def test_an_interrupted_round_leaves_the_ones_before_it_committed(dataset, tmp_path, monkeypatch):
    update, calls = CohortIterator.update, []

    def interrupted(*args):
        calls.append(args)
        if len(calls) == 4:
            raise KeyboardInterrupt
        update(*args)

    with monkeypatch.context() as patch:
        patch.setattr(CohortIterator, "update", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, dataset)
    with pytest.raises(OutputDirectoryError, match="has done 3 rounds already"):
        run(tmp_path, dataset, rounds=1)


def test_a_finished_run_can_be_made_longer(uninterrupted, dataset, tmp_path):
    path, expected = uninterrupted
    run(tmp_path, dataset, rounds=4)
    result = run(tmp_path, dataset, rounds=6)
    assert (tmp_path / "metrics.csv").read_bytes() == (path / "metrics.csv").read_bytes()
    assert_equal(result.server_state, expected.server_state)


def test_where_it_once_ended_is_not_among_the_late_rounds(dataset, tmp_path):
    late = {"evaluate": EvaluationOptions(late_share=0.5)}
    for rounds in (1, 3, 5):  # which are not evaluated regularly
        run(tmp_path, dataset, rounds=rounds, **late)
    result = run(tmp_path, dataset, rounds=6, **late)
    assert result.late_mean.rounds == (4, 6)
    assert result.best_on_test.round_num % 2 == 0


def test_a_run_stopped_between_evaluations_can_be_ended_there(dataset, tmp_path, monkeypatch):
    from tff_pfl.experiment import loop

    release = loop.MetricsLog.release

    async def killed_after_three(self, value, key):
        if key == 4:
            raise Killed
        await release(self, value, key)

    with monkeypatch.context() as patch:
        patch.setattr(loop.MetricsLog, "release", killed_after_three)
        with pytest.raises(Killed):
            run(tmp_path / "stopped", dataset, rounds=6)
    stopped = run(tmp_path / "stopped", dataset, rounds=3)
    straight = run(tmp_path / "straight", dataset, rounds=3)
    assert stopped.final == straight.final
    assert stopped.final.round_num == 3
    metrics = [(tmp_path / name / "metrics.csv").read_bytes() for name in ("stopped", "straight")]
    assert metrics[0] == metrics[1]


def test_aggregators_with_measurements_and_running_event_loops(dataset, tmp_path):
    upload = np.array([0.5, 0.5], np.float32)
    work = Exchange(
        client_work=lambda message, state, examples, context: ClientOutput(state, upload),
        aggregator=tff.aggregators.clipping_factory(1.0, tff.aggregators.MeanFactory()),
        finalize=lambda server, mean, round_num: (server, {"mean": mean, "parts": [mean, {}]}),
    )
    algorithm = Algorithm(
        server_init=lambda seed: MODEL.init(0),
        client_init=lambda client_id, seed: (),
        exchanges=[work],
        personalize=Personalization(
            distribute=lambda server: server, client_work=lambda server, *_: server
        ),
    )
    process = compose(algorithm, EXAMPLES_TYPE)

    async def program():
        return run(tmp_path, dataset, process, rounds=1)

    asyncio.run(program())
    (row,) = read(tmp_path)
    assert row["train/server/mean/1"] == row["train/server/parts/0/1"] == "0.5"
    assert any(name.startswith("train/aggregator/") for name in row)


def test_a_federation_without_test_examples_is_warned_of(dataset, tmp_path, capsys):
    run(tmp_path / "some", dataset, rounds=1)
    assert "examples" not in capsys.readouterr().out
    data = random_examples(5)
    none = [(data.x, data.y, data.x[:0], data.y[:0])] * 2
    run(tmp_path / "none", FederatedDataset.from_client_arrays(none, 3), rounds=1)
    assert "warning: no client has test examples" in capsys.readouterr().out


def test_rounds_without_a_sound_update_are_reported(dataset, tmp_path, capsys):
    process = build_fedavg(MODEL, EXAMPLES_TYPE, local_sgd(learning_rate=3e38), seed=1)
    result = run(tmp_path, dataset, process, rounds=2)
    printed = capsys.readouterr().out
    assert "round 1: train: 2 clients left out, for a result that is not finite" in printed
    assert "round 1: train: the server keeps its state, no sound update came" in printed
    assert [row["train/loss"] for row in read(tmp_path)] == ["nan", "nan"]
    assert np.isfinite(result.final.mean("loss", "global"))


def test_clients_that_never_took_part_are_counted(dataset, tmp_path):
    result = run(tmp_path, dataset, rounds=1)
    assert result.final.metrics[NUM_CLIENTS_NEVER_SELECTED] == 3
    trained = [row["was_selected"] for row in read(tmp_path, "clients/round_000001.csv")]
    assert sorted(trained) == list("00011")


def test_only_the_last_round_is_evaluated_if_none_is_asked_for(dataset, tmp_path):
    result = run(tmp_path, dataset, rounds=3, evaluate_every=0)
    assert result.final == result.best_on_test
    assert len(list((tmp_path / "clients").iterdir())) == 1


class Recording(tff.program.ReleaseManager):
    """Keeps what it gets; fails in some rounds."""

    def __init__(self, failing=()):
        self.released = []
        self._failing = failing

    async def release(self, value, key):
        if key in self._failing:
            value.clear()
            raise ConnectionError("the service is away")
        await asyncio.sleep(0)  # needs an event loop, and always the same one
        self.released.append((key, len(value), asyncio.get_running_loop()))


def test_a_release_manager_that_fails_stops_nothing(uninterrupted, dataset, tmp_path, capsys):
    path, expected = uninterrupted
    managers = [Recording(failing=(2, 5)), Recording()]
    result = run(tmp_path, dataset, release_managers=managers)
    assert (tmp_path / "metrics.csv").read_bytes() == (path / "metrics.csv").read_bytes()
    assert result.best_on_test == expected.best_on_test
    failing, sound = ([round_num for round_num, *_ in manager.released] for manager in managers)
    assert (failing, sound) == ([1, 3, 4, 6], [1, 2, 3, 4, 5, 6])
    assert len({loop for manager in managers for *_, loop in manager.released}) == 1
    sizes = [size for _, size, _ in managers[1].released]
    assert sizes[1] == sizes[5] > sizes[0] == sizes[4]  # those of evaluations are larger
    printed = capsys.readouterr().out
    message = "Recording has not released its metrics: ConnectionError: the service is away"
    assert [f"round {number}: {message}" in printed for number in range(1, 7)] == [
        number in (2, 5) for number in range(1, 7)
    ]


def test_rounds_after_the_checkpoint_are_released_again(dataset, tmp_path, monkeypatch):
    manager = Recording()
    with monkeypatch.context() as patch:
        patch.setattr(ClientStateStore, "commit", lambda *args: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            run(tmp_path, dataset, rounds=4, checkpoint_every=2, release_managers=[manager])
    run(tmp_path, dataset, rounds=4, checkpoint_every=2, release_managers=[manager])
    assert [round_num for round_num, *_ in manager.released] == [1, 2, 1, 2, 3, 4]
