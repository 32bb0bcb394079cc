"""The benchmark's output, and that its contenders do the same work; no time is judged."""

import dataclasses
import json
import pathlib
import subprocess
import sys

import pytest

from tff_pfl import benchmarks

ROOT = pathlib.Path(__file__).parents[2]


def run(*arguments):
    return subprocess.run(
        [sys.executable, ROOT / "programs" / "benchmark.py", *arguments],
        capture_output=True,
        text=True,
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


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--workloads=linaer", "Did you mean 'linear'?"),
        ("--contenders=bare", "Did you mean 'bare_tensorflow'?"),
        ("--rounds=0", "not a positive integer"),
    ],
)
def test_it_refuses(flag, message):
    ended = run(flag)
    assert ended.returncode != 0
    assert message in ended.stderr
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


def test_other_work_is_refused(monkeypatch):
    def fewer_epochs(workload, x, y):
        return benchmarks.bare_tensorflow(dataclasses.replace(workload, epochs=1), x, y)

    monkeypatch.setitem(benchmarks.CONTENDERS, "tff_pfl_cpp_runtime", fewer_epochs)
    workload = dataclasses.replace(
        benchmarks.WORKLOADS["linear"],
        clients=2,
        epochs=3,
        contenders=("bare_tensorflow", "tff_pfl_cpp_runtime"),
    )
    with pytest.raises(benchmarks.DifferentWorkError, match="bare_tensorflow"):
        list(benchmarks.measure("linear", workload, rounds=1, warmup=0))
