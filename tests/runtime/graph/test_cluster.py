"""Tests that clients on two workers give the same results as on one device."""

import csv
import subprocess

import numpy as np
import pytest

from tests.runtime.graph.subprocesses import run_script, saved_by_script

pytestmark = pytest.mark.slow

# Separate namespaces: of the network, since TensorFlow's servers are open to everybody, and of
# processes, which all end with the first process.
_UNSHARED = ("unshare", "--map-root-user", "--net", "--pid", "--fork", "--kill-child")
WORKERS = [f"/job:worker/replica:0/task:{index}/device:CPU:0" for index in (0, 1)]


@pytest.fixture(scope="module")
def unshared():
    """Options of scripts that start workers and end them."""
    try:
        subprocess.run([*_UNSHARED, "true"], check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        reason = getattr(error, "stderr", "").strip() or error
        pytest.skip(f"A network namespace for the cluster is not permitted here: {reason}")
    return {"wrapper": _UNSHARED, "env": {"CUDA_VISIBLE_DEVICES": ""}}


@pytest.fixture(scope="module")
def saved(tmp_path_factory, unshared):
    """The results that the script saves."""
    return saved_by_script("cluster", tmp_path_factory=tmp_path_factory, **unshared)


def test_workers_lend_their_devices(saved):
    assert saved["workers"] == WORKERS


# TensorFlow neither sends data sets between machines nor defines their functions on two machines.
RAISE_ON_TWO_MACHINES = {
    "select_that_returns_sequences",
    "sequence_identity-list",
    "sequence_identity-dataset",
    "sequence_reduce_at_clients",
    "sequence_map_at_clients",
    "aggregate_of_sequences",
}


def test_two_workers_give_the_stated_results(saved):
    assert {case.partition(":")[0] for case in saved["wrong"]} == RAISE_ON_TWO_MACHINES


def test_operations_run_on_the_requested_devices(saved):
    local = "/job:coordinator/replica:0/task:0/device:CPU:0"
    assert saved["executed_on"] == {
        devices: {"Lgamma": clients, "Digamma": clients[:1], "Erfinv": clients[:1]}
        for devices, clients in (
            (tuple(WORKERS), WORKERS),
            (tuple(WORKERS[1:]), WORKERS[1:]),
            (("CPU:0", WORKERS[1]), [local, WORKERS[1]]),
        )
    }


@pytest.mark.parametrize("moment", ["dies in a call", "died before a call"])
def test_dead_worker_raises_within_seconds(saved, moment):
    assert saved["count"] == 3
    kind, message, seconds = saved[moment]
    assert kind == "WorkerDiedError"
    assert message.startswith("The worker at 127.0.0.1:2302 does not answer; the devices are ")
    assert all(worker in message for worker in WORKERS)
    assert seconds < 10


def test_run_continues_without_a_dead_worker(tmp_path, unshared):
    run_script("lost_worker", tmp_path, **unshared)
    errors = (tmp_path / "errors.txt").read_text()
    assert "127.0.0.1:2302 does not answer" in errors
    assert (
        "Restarting with: --resume --nooverwrite --restarts=0 --workers=127.0.0.1:2301\n" in errors
    )
    found, expected = (
        list(csv.DictReader((tmp_path / run / "metrics.csv").open())) for run in ("lost", "one")
    )
    assert len(found) == 5
    for row, other in zip(found, expected, strict=True):
        for name, value in other.items():
            np.testing.assert_allclose(float(row[name] or 0), float(value or 0), rtol=1e-4)
