"""Tests the workers of Dask: what they must have, and what becomes of those that end."""

import os
import signal
import types

import pytest

from tff_pfl.cluster import ClusterError, worker_setup, workers
from tff_pfl.cluster.workers import Wanted
from tff_pfl.studies import open_engine
from tff_pfl.studies.engines import Died


def results_of(function, calls, jobs=1, client=None, shared="."):
    """Returns the results of calls, and the keys of those that started."""
    started = []
    with open_engine(jobs, client=client, shared=shared) as engine:
        results = dict(engine(function, calls, started.append))
    return results, sorted(started)


def test_workers_return_the_results_of_all_calls(dask_client, tmp_path):
    calls = {"a": (1, 2), "b": (3, 4)}
    expected = {"a": 1, "b": 81}, ["a", "b"]
    assert results_of(pow, calls) == expected
    results, _ = results_of(pow, calls, client=dask_client, shared=tmp_path / "new")
    assert results == expected[0]
    assert list((tmp_path / "new").iterdir()) == []  # the mark is gone


def test_error_of_a_call_is_raised(dask_client, tmp_path):
    with pytest.raises(ZeroDivisionError):
        results_of(pow, {"a": (0, -1)}, client=dask_client, shared=tmp_path)


def worker(threads=1):
    """Returns what `Wanted` sees of a worker."""
    return types.SimpleNamespace(
        address="tcp://host:1", state=types.SimpleNamespace(nthreads=threads)
    )


@pytest.mark.parametrize(
    ("found", "mark", "versions", "message"),
    [
        (worker(threads=8), "mark", {}, "has 8 threads, .* Start it with --nthreads=1"),
        (worker(), "absent", {}, "does not see .*, which it must share with this program"),
        (worker(), "mark", {"numpy": "9"}, "has numpy .*, but this program 9, and numbers may"),
    ],
)
def test_worker_that_does_not_fit_is_refused(tmp_path, found, mark, versions, message):
    (tmp_path / "mark").touch()
    Wanted(str(tmp_path / "mark"), {}).check(worker())
    with pytest.raises(ClusterError, match=f"^The worker tcp://host:1 {message}"):
        Wanted(str(tmp_path / mark), versions).check(found)


def test_scheduler_that_does_not_answer_is_reported(monkeypatch, tmp_path):
    monkeypatch.setattr(workers, "_SECONDS", 0.2)
    with (
        pytest.raises(ClusterError, match="No Dask scheduler answers at 127.0.0.1:9 "),
        open_engine(scheduler="127.0.0.1:9"),
    ):
        pass
    with (
        pytest.raises(ClusterError, match="^tls://127.0.0.1:9 needs certificates: set DASK_"),
        open_engine(scheduler="tls://127.0.0.1:9"),
    ):
        pass
    file = tmp_path / "scheduler.json"
    with (
        pytest.raises(ClusterError, match=f"There is no {file}. dask scheduler"),
        open_engine(scheduler_file=str(file)),
    ):
        pass


def test_worker_has_a_gpu_of_its_own(monkeypatch):
    monkeypatch.setattr(os, "setsid", lambda: None)
    chosen = []
    for number in range(3):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b")
        worker_setup.dask_setup(types.SimpleNamespace(name=number))
        chosen.append(os.environ["CUDA_VISIBLE_DEVICES"])
    assert chosen == ["GPU-a", "GPU-b", "GPU-a"]


def kill_once(folder):
    """Kills its process at the first call; then returns the process's id."""
    try:
        os.mkdir(folder)
    except FileExistsError:
        return os.getpid()
    os.kill(os.getpid(), signal.SIGKILL)


def kill(_):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.thorough
def test_call_of_a_killed_process_is_made_again(tmp_path):
    calls = {"a": (tmp_path / "once",), "b": (tmp_path,)}
    results, started = results_of(kill_once, calls, jobs=2, shared=tmp_path)
    assert set(started) == {"a", "b"} and os.getpid() not in results.values()
    results, _ = results_of(kill, {"a": (0,)}, jobs=2, shared=tmp_path)
    assert isinstance(results["a"], Died) and "killed 4 times" in results["a"].reason
