"""The benchmark's output, and that its contenders do the same work; no time is judged."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys

import pytest

from tff_pfl import benchmarks

ROOT = pathlib.Path(__file__).parents[2]


def run(*arguments):
    environment = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
    return subprocess.run(
        [sys.executable, ROOT / "programs" / "benchmark.py", *arguments],
        capture_output=True,
        text=True,
        env=environment | {"PYTHONPATH": str(ROOT)},
    )


def test_it_prints_json_lines_and_nothing_else():
    ended = run("--clients=2", "--examples_per_client=6", "--rounds=2")
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    machine, *records = map(json.loads, ended.stdout.splitlines())
    assert list(machine["machine"]) == ["cpus", "memory_gib", "tensorflow", "tff"]
    for name, workload in benchmarks.WORKLOADS.items():
        *measured, ratios = [record for record in records if record["workload"] == name]
        assert [record["contender"] for record in measured] == list(workload.contenders)
        for record in measured:
            seconds = record["seconds_per_round"]
            assert 0 < seconds["min"] <= seconds["median"] <= seconds["max"]
            assert record["ms_per_client"] == pytest.approx(500 * seconds["median"], rel=1e-2)
            assert (record["clients"], record["examples_per_client"]) == (2, 6)
            assert (record["rounds"], record["epochs"]) == (2, workload.epochs)
            assert record["batch_size"] == workload.batch_size
        first, second = (record["seconds_per_round"]["median"] for record in measured[:2])
        ratio = ratios["ratios_of_medians"]["tff_pfl_cpp_runtime/bare_tensorflow"]
        assert ratio == pytest.approx(second / first, rel=1e-2)


def test_an_unknown_workload_is_answered_with_the_nearest():
    ended = run("--workloads=linaer")
    assert ended.returncode != 0
    assert "Did you mean 'linear'?" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("name", benchmarks.WORKLOADS)
def test_contenders_do_the_same_work(name):
    # With one batch an epoch its order does not matter: any other number of steps, other step or
    # other average would show in the losses of the next round.
    workload = dataclasses.replace(
        benchmarks.WORKLOADS[name], clients=3, examples_per_client=4, epochs=2, batch_size=4
    )
    data = workload.data()
    runs = [build(workload, *data) for build in benchmarks.CONTENDERS.values()]
    rounds = [[run() for run in runs] for _ in range(3)]
    for losses in rounds:
        assert losses == pytest.approx([losses[0]] * len(runs), rel=1e-4)
    assert rounds[2][0] < rounds[0][0]


def test_other_work_is_refused():
    workload = dataclasses.replace(benchmarks.WORKLOADS["linear"], clients=2)
    losses = {}
    for epochs in (1, 3):
        workload = dataclasses.replace(workload, epochs=epochs)
        losses[epochs] = benchmarks.bare_tensorflow(workload, *workload.data())()
    with pytest.raises(benchmarks.DifferentWorkError, match=str(losses[3])):
        benchmarks.check_same_work(losses)
