"""Tests the records of benchmarks and the equal work of contenders, but not the times."""

import dataclasses
import json
import re
import sys
from unittest import mock

import pytest

from benchmarks import contenders, fixed_cost, growth, measurements, timing, unequal
from benchmarks.workloads import (
    AGGREGATED,
    DESCENT_WORKLOADS,
    MANY_CLIENTS,
    UNEQUAL_WORKLOADS,
    WORKLOADS,
)
from tests.runs import assert_refused, run_main, run_python
from tff_pfl.algorithms import ALGORITHMS
from tff_pfl.compression import COMPRESSORS
from tff_pfl.templates import AGGREGATORS

PROGRAM = "benchmarks/benchmark.py"
LINEAR = dataclasses.replace(MANY_CLIENTS, clients=3, examples_per_client=4, epochs=1)


def tiny(workload):
    return dataclasses.replace(workload, clients=3, examples_per_client=4, epochs=2, batch_size=4)


def test_functions_take_turns_and_the_first_is_not_measured(monkeypatch):
    ticks = iter([0, 1, 0, 2, 0, 10, 0, 20, 0, 100, 0, 200])
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(ticks))
    monkeypatch.setattr(timing.tqdm, "tqdm", mock.MagicMock())  # tqdm calls perf_counter, too
    calls = []
    runs = {name: lambda name=name: calls.append(name) for name in "ab"}
    seconds = timing.in_turns("x", runs, rounds=2, after_first=lambda: calls.append("checked"))
    assert calls == ["a", "b", "checked", "a", "b", "a", "b"]
    assert seconds == {"a": [10, 100], "b": [20, 200]}


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


def test_unknown_contender_is_refused_with_a_suggestion():
    assert_refused(PROGRAM, "--contenders=pgfd", "Did you mean 'pgfed'?")


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
@pytest.mark.parametrize(
    ("workload", "contenders"),
    [
        (LINEAR, ["compiled", "loop", "groups", "one_capacity"]),
        (UNEQUAL_WORKLOADS["lstm"][0], ["compiled", "loop"]),
        (UNEQUAL_WORKLOADS["ratings"][0], ["compiled", "loop", "groups", "one_capacity"]),
    ],
)
def test_unequal_clients_are_measured_beside_a_bare_loop_over_the_same_batches(
    workload, contenders
):
    workload = dataclasses.replace(workload, batch_size=2, examples_per_client=4)
    bare, *others = unequal.measure("tiny", workload, [3], 1)
    assert [record["contender"] for record in others] == contenders
    for record in others:
        seconds = [found["seconds_per_round"]["median"] for found in (record, bare)]
        assert record["times_bare"] == pytest.approx(seconds[0] / seconds[1], rel=0.01)
        assert (record["clients"], record["examples"]) == (3, 12)


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
def test_aggregators_and_compressors_are_compared_with_the_mean():
    workload = dataclasses.replace(AGGREGATED, options={"hidden": ()}, clients=11)
    first, *others = measurements.aggregators(workload, 1)
    assert (first["aggregator"], first["times_mean"]) == ("mean", 1.0)
    sent = {record["aggregator"]: record["bytes_up_per_client"] for record in others}
    assert sent["median"] == 4 * 7850 + 4
    assert sent["half"] == sent["half, fed back"] == 2 * 7850 + 4
    assert set(sent) >= {*AGGREGATORS, *COMPRESSORS} - {"mean"}


@pytest.mark.slow
def test_descent_and_pgfed_server_have_shares_of_a_round():
    workload = dataclasses.replace(DESCENT_WORKLOADS["mlp"], examples_per_client=10)
    (record,) = measurements.descent("mlp", workload, [2], 1)
    assert (record["clients_online"], record["columns"]) == (2, 14)
    assert 0 < record["columns_used"] <= 14 and 0 < record["share_of_round"] < 1
    (record,) = measurements.pgfed_server(LINEAR, 2, population=20)
    assert (record["pgfed_server"], record["clients_online"]) == ("20 clients", 3)
    share = record["seconds_of_server"]["median"] / record["seconds_per_round"]["median"]
    assert record["share_of_round"] == pytest.approx(share, abs=1e-3)


def point(population, cohort_size=2):
    return growth.Point(LINEAR, population, 1, 0, cohort_size, "ditto")


@pytest.mark.slow
def test_rounds_store_states_of_all_clients_on_disk():
    record = growth.rounds_at(point(250))
    assert record["states_on_disk_mib"] > 250 * 4 * 7850 / 2**20
    parts, whole = record["ms_of"], 1000 * record["seconds_per_round"]["median"]
    assert set(parts) == {"select", "compute", "update", "training", "write"}
    assert record["round_over_training"] == pytest.approx(whole / parts["training"], rel=1e-2)
    assert 0 < record["memory_mib"]["files"] < record["memory_mib"]["peak"]


def test_scaling_measures_two_series(monkeypatch):
    monkeypatch.setattr(growth, "in_new_processes", lambda measure, points, name: points)
    point_options = {"workload": LINEAR, "rounds": 4, "warmup": 1, "algorithm": "ditto"}
    sizes = {"cohort_sizes": [10, 100, 300], "populations": [20, 300, 5000]}
    points = growth.measure_scaling(**sizes, **point_options)
    sizes = [(10, 300), (100, 300), (300, 300), (20, 20), (100, 5000)]
    assert [(p.cohort_size, p.population) for p in points] == sizes


def test_unequal_clients_of_many_are_measured_with_and_without_compilation(monkeypatch, tmp_path):
    monkeypatch.setattr(growth, "in_new_processes", lambda measure, points, name: points)
    point_options = {"workload": LINEAR, "rounds": 4, "warmup": 1, "algorithm": "ditto"}
    points = growth.measure_unequal([2, 6], [5, 7], **point_options)
    assert [(p.cohort_size, p.population, p.runtime) for p in points] == [
        (2, 5, "graph_loop"),
        (2, 5, "graph_compiled"),
        (5, 5, "graph_loop"),
        (5, 5, "graph_compiled"),
        (2, 7, "graph_loop"),
        (2, 7, "graph_compiled"),
        (6, 7, "graph_loop"),
        (6, 7, "graph_compiled"),
    ]
    sizes = growth.memory_mapped_federation(points[-1], tmp_path).sizes("train")
    assert len(sizes) == 7
    assert len(set(sizes)) > 2


def test_federation_of_runs_has_files_without_inputs(tmp_path):
    """Gives every client its own examples of the right number."""
    dataset = growth.memory_mapped_federation(point(7), tmp_path)
    sizes = [dataset.sizes(split).tolist() for split in ("train", "validation", "test")]
    assert sizes == [[4] * 7, [0] * 7, [4] * 7]
    assert dataset.examples(6, "test").x.shape == (4, 28, 28, 1)
    assert set(dataset.y) > {0, 1}
    assert (tmp_path / "x.npy").stat().st_blocks * 512 < dataset.x.nbytes


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


@pytest.mark.slow
def test_start_has_a_record_for_each_kind():
    beyond = {r["start"]: r["beyond_import"] for r in measurements.start(["fedavg"], 1)}
    assert len(beyond) == 6
    assert beyond["train --help"] < 0 < beyond["fedavg"]


def test_unexpected_exit_code_is_an_error():
    with pytest.raises(RuntimeError, match="(?s)ended with 1, not 0:.*It failed"):
        measurements.ended_with(0, [sys.executable, "-c", "raise SystemExit('It failed.')"])
