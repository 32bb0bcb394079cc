"""Tests the records of benchmarks and the equal work of contenders, but not the times."""

import dataclasses
import json
import re
import sys
import time

import numpy as np
import pytest

from benchmarks import contenders, fixed_cost, lanes, measurements, rates, timing
from benchmarks.workloads import (
    MANY_CLIENTS,
    RATED,
    UNEQUAL_WORKLOADS,
    WORKLOADS,
)
from tests.runs import assert_refused, run_main, run_python
from tff_pfl.algorithms import ALGORITHMS

PROGRAM = "benchmarks/benchmark.py"
LINEAR = dataclasses.replace(MANY_CLIENTS, clients=3, examples_per_client=4, epochs=1)


def tiny(workload):
    return dataclasses.replace(workload, clients=3, examples_per_client=4, epochs=2, batch_size=4)


def test_functions_take_turns_and_the_first_is_not_measured():
    calls = []

    def slow_at_first():
        time.sleep(0.2 if not calls else 0.0)
        calls.append("a")

    runs = {"a": slow_at_first, "b": lambda: calls.append("b")}
    seconds = timing.in_turns("x", runs, rounds=2, after_first=lambda: calls.append("checked"))
    assert calls == ["a", "b", "checked", "a", "b", "a", "b"]
    assert [len(seconds[name]) for name in "ab"] == [2, 2] and max(seconds["a"]) < 0.2


def test_spread_and_ratio_use_medians():
    found = timing.spread([1.0, 5.0, 3.0])
    assert found == {"median": 3.0, "min": 1.0, "max": 5.0}
    assert timing.ratio(found, timing.spread([2.0])) == 1.5


@pytest.mark.slow
def test_contenders_print_json_lines():
    """Measures an algorithm whose first round trains like FedAvg."""
    sizes = ("--clients=2", "--examples_per_client=6", "--rounds=2")
    given = "--contenders=bare_tensorflow,pgfed"
    ended = run_main(PROGRAM, "--workloads=linear", given, *sizes)
    assert (ended.returncode, ended.stderr) == (0, "")
    machine, bare, pgfed, ratios = map(json.loads, ended.stdout.splitlines())
    assert {"cpus", "model", "memory_gib", "gpus", "tensorflow", "tff"} == set(machine["machine"])
    assert bare["first_round_loss"] == pytest.approx(pgfed["first_round_loss"], rel=0.02)
    for record in (bare, pgfed):
        seconds = record["seconds_per_round"]
        assert 0 < seconds["min"] <= seconds["median"] <= seconds["max"]
        assert record["ms_per_client"] == pytest.approx(500 * seconds["median"], rel=1e-2)
        assert (record["workload"], record["clients"], record["rounds"]) == ("linear", 2, 2)
    ratio = pgfed["seconds_per_round"]["median"] / bare["seconds_per_round"]["median"]
    found = ratios["ratios_of_medians"]["pgfed/bare_tensorflow"]
    assert found == pytest.approx(ratio, rel=1e-2)


def test_unknown_contender_is_refused():
    assert_refused(PROGRAM, "--contenders=pgfd", "pgfd")


def assert_same_work(workload, names, tolerance):
    """Checks the losses of three rounds, which depend on each step and their number."""
    data = workload.data()
    runs = [contenders.CONTENDERS[name](workload, *data) for name in names]
    rounds = [[run() for run in runs] for _ in range(3)]
    for losses in rounds:
        assert losses == pytest.approx([losses[0]] * len(runs), rel=tolerance)
    assert rounds[2][0] < rounds[0][0]


@pytest.mark.thorough
def test_bare_loop_does_the_same_work():
    assert_same_work(tiny(WORKLOADS["linear"]), ["bare_tensorflow", "tff_pfl_graph_loop"], 1e-4)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["ratings", pytest.param("lstm", marks=pytest.mark.slow)])
def test_bare_loop_states_the_network_as_keras_does(name):
    names = ["bare_tensorflow", "bare_keras", "tff_pfl_graph_loop"]
    assert_same_work(tiny(UNEQUAL_WORKLOADS[name][0]), names, 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKLOADS)
def test_all_contenders_do_the_same_work(name):
    names, tolerance = ["bare_keras", "tff_pfl_graph_loop"], 1e-4
    if name == "resnet18":
        tolerance = 2e-3  # many layers amplify rounding errors
    else:
        names = [
            contender
            for contender in contenders.CONTENDERS
            if contender not in ALGORITHMS and not re.search("plgu_lf|bfloat16", contender)
        ]
    if name == "cnn":  # vectorized on GPUs only
        names = [contender for contender in names if not re.search("vectorized|xla", contender)]
    assert_same_work(tiny(WORKLOADS[name]), names, tolerance)


@pytest.mark.thorough
def test_different_work_is_refused():
    losses = {}
    for epochs in (1, 3):
        workload = dataclasses.replace(WORKLOADS["linear"], clients=2, epochs=epochs)
        losses[epochs] = contenders.bare_tensorflow(workload, *workload.data())()
    with pytest.raises(ValueError, match=str(losses[3])):
        contenders.check_same_work(losses)


@pytest.mark.slow
def test_operations_of_a_round_do_not_grow_with_the_cohort():
    plain, compiled, *larger = fixed_cost.measure(LINEAR, ["pgfed"], [2, 3], rounds=1)
    for kind in ("operations", "host_operations"):
        assert [record[kind] for record in larger] == [plain[kind], compiled[kind]]
    assert 0 < plain["host_operations"] < plain["operations"]
    assert plain["client_operations"] > 5 * compiled["client_operations"] > 0
    assert plain["calls"] == 1
    assert 3 * plain["bytes_to_device"] == 2 * larger[0]["bytes_to_device"]
    assert 0 < plain["to_device"] == larger[0]["to_device"]


@pytest.mark.slow
def test_runs_print_a_line_for_each_size_and_remove_files(tmp_path):
    sizes = ("--populations=5,300", "--examples_per_client=6", "--rounds=2")
    ended = run_python(PROGRAM, "--runs", *sizes, TMPDIR=str(tmp_path))
    assert (ended.returncode, ended.stderr) == (0, "")
    _, *records = map(json.loads, ended.stdout.splitlines())
    assert [(r["population"], r["cohort_size"]) for r in records] == [(5, 5), (300, 100)]
    for record in records:
        assert 0 < record["ms_of"]["compute"] < record["ms_of"]["round"]
        assert set(record["seconds_to"]) == {"make_data", "start", "evaluate", "resume"}
        assert record["mib_on_disk"]["checkpoint"] > 0
    assert list(tmp_path.iterdir()) == []


def test_unexpected_exit_code_is_an_error():
    with pytest.raises(RuntimeError, match="(?s)ended with 1, not 0:.*It failed"):
        measurements.ended_with(0, [sys.executable, "-c", "raise SystemExit('It failed.')"])


def small(workload):
    """Returns the workload with 3 clients, whose last batches are partial."""
    return dataclasses.replace(workload, clients=3, examples_per_client=6, batch_size=4)


@pytest.mark.thorough
def test_multiplications_are_those_of_products_that_are_needed():
    """Three for each weight and row of a batch, but two in the first layer; rows are padded."""
    workload = small(RATED)
    data = rates.unequal_data(workload)
    rows = 4 * sum(-(-len(labels) // 4) for labels in data[1])
    of_row = 2 * 784 * 200 + 3 * (200 * 200 + 200 * 10)
    assert rates.multiplications(workload, data, 2, "fedavg") == rows * of_row


@pytest.mark.thorough
def test_steps_of_lanes_are_counted_while_a_round_runs():
    """Clients of 3, 1 and 1 steps leave a loop on 3 lanes after 1 step, and one on 1 lane."""
    workload, sizes = small(WORKLOADS["linear"]), np.array([4, 12, 3])
    found = lanes._of_lanes(workload, sizes, [sizes] * lanes.ROUNDS)
    assert found == {"shapes": 1, "sequential_steps": 3.0, "lane_steps": 1.0}


def test_steps_of_groups_are_those_of_their_largest_client():
    """All three clients are in one group, as a second one would take longer."""
    workload = small(WORKLOADS["linear"])
    found = lanes._of_groups(workload, [np.array([4, 12, 3])] * lanes.ROUNDS)
    assert found == {"shapes": 1, "sequential_steps": 3.0, "lane_steps": 1.8}


@pytest.mark.slow
def test_rates_are_beside_fedavg():
    ditto, fedsam = rates.measure(small(RATED), ["ditto", "fedsam"], rounds=2)
    assert (ditto["algorithm"], fedsam["algorithm"]) == ("ditto", "fedsam")
    assert ditto["multiplications_times_fedavg"] == 2
    assert fedsam["multiplications_times_fedavg"] == 2
    assert ditto["times_fedavg"] > 0
