"""The benchmark's output, and that its contenders do the same work; no time is judged."""

import dataclasses
import json
import sys

import pytest
import tensorflow as tf

import benchmarks
from benchmarks import start, training_runs
from tests.runs import assert_refused, run_main, run_python
from tff_pfl import algorithms
from tff_pfl.algorithms import ALGORITHMS
from tff_pfl.compression import COMPRESSORS
from tff_pfl.templates import AGGREGATORS
from tff_pfl.testing import EagerProcess


def run(*arguments, **variables):
    return run_python("programs/benchmark.py", *arguments, **variables)


# An algorithm is a contender if its first round is that of federated averaging.
FEW = ("bare_tensorflow", "pgfed")


@pytest.mark.parametrize(
    ("name", "contenders"),
    [
        ("linear", FEW),
        *(pytest.param(name, None, marks=pytest.mark.slow) for name in benchmarks.WORKLOADS),
    ],
)
def test_it_prints_json_lines_and_nothing_else(name, contenders):
    arguments = [f"--workloads={name}", "--clients=2", "--examples_per_client=6", "--rounds=2"]
    if contenders:
        ended = run_main("benchmark.py", *arguments, f"--contenders={','.join(contenders)}")
    else:
        ended = run(*arguments)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    machine, *records = map(json.loads, ended.stdout.splitlines())
    assert list(machine["machine"]) == ["cpus", "memory_gib", "gpus", "tensorflow", "tff"]
    workload = benchmarks.WORKLOADS[name]
    *measured, ratios = records
    contenders = contenders or workload.default_contenders()
    assert [record["contender"] for record in measured] == list(contenders)
    losses = [record["first_round_loss"] for record in measured]
    assert losses == pytest.approx([losses[0]] * len(losses), rel=0.02)
    for record in measured:
        seconds = record["seconds_per_round"]
        assert 0 < seconds["min"] <= seconds["median"] <= seconds["max"]
        assert record["ms_per_client"] == pytest.approx(500 * seconds["median"], rel=1e-2)
        assert (record["workload"], record["batch_size"]) == (name, workload.batch_size)
        assert (record["clients"], record["examples_per_client"]) == (2, 6)
        assert (record["rounds"], record["epochs"]) == (2, workload.epochs)
    first, second = (record["seconds_per_round"]["median"] for record in measured[:2])
    ratio = ratios["ratios_of_medians"][f"{contenders[1]}/{contenders[0]}"]
    assert ratio == pytest.approx(second / first, rel=1e-2)


@pytest.mark.slow
def test_scaling_prints_a_line_a_size_and_leaves_no_states_behind(tmp_path):
    sizes = ("--cohort_sizes=3", "--populations=3")
    ended = run("--scaling", *sizes, "--examples_per_client=6", "--rounds=2", TMPDIR=str(tmp_path))
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    machine, record = map(json.loads, ended.stdout.splitlines())
    assert "machine" in machine
    assert (record["scaling"], record["runtime"]) == ("ditto", "graph_vectorized")
    assert (record["cohort_size"], record["population"], record["rounds"]) == (3, 3, 2)
    median = record["seconds_per_round"]["median"]
    assert record["rounds_per_second"] == pytest.approx(1 / median, rel=1e-2)
    assert record["ms_per_client"] == pytest.approx(1000 * median / 3, rel=1e-2)
    parts = record["ms_of"]
    assert set(parts) == {"select", "compute", "update", "training", "write"}
    ratio = record["round_over_training"]
    assert ratio == pytest.approx(1000 * median / parts["training"], rel=1e-2)
    memory = record["memory_mib"]
    assert 0 < memory["start"] < memory["peak"]
    assert 0 < memory["files"] < memory["peak"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_runs_print_a_line_a_size_and_leave_nothing_behind(tmp_path):
    ended = run(
        "--runs",
        "--populations=5,300",
        "--examples_per_client=6",
        "--rounds=2",
        TMPDIR=str(tmp_path),
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    machine, *records = map(json.loads, ended.stdout.splitlines())
    assert "machine" in machine
    sizes = [(record["population"], record["cohort_size"]) for record in records]
    assert sizes == [(5, 5), (300, 100)]
    for record in records:
        parts = record["ms_of"]
        assert set(parts) == {"round", "select", "compute", "write", "update"}
        assert 0 < parts["select"] < parts["round"] > parts["compute"] > 0
        assert all(seconds > 0 for seconds in record["seconds_to"].values())
        assert set(record["seconds_to"]) == {"make_data", "start", "evaluate", "resume"}
        assert 0 < record["memory_mib"]["start"] < record["memory_mib"]["peak"]
        assert record["mib_on_disk"]["checkpoint"] > 0
    assert list(tmp_path.iterdir()) == []


def test_the_federation_of_runs(tmp_path):
    """Every client has as many examples as it should, of its own, in files without inputs."""
    workload = tiny("linear")
    dataset = training_runs._federation(benchmarks.TrainingRun(workload, 7, 1, 0), tmp_path)
    assert dataset.sizes("train").tolist() == [4] * 7
    assert dataset.sizes("validation").tolist() == [0] * 7
    assert dataset.sizes("test").tolist() == [4] * 7
    assert dataset.examples(6, "test").x.shape == (4, 28, 28, 1)
    assert set(dataset.y) > {0, 1}
    assert (tmp_path / "x.npy").stat().st_blocks * 512 < dataset.x.nbytes


@pytest.mark.slow
def test_starts_print_a_line_a_kind():
    ended = run("--start", "--algorithms=fedavg", "--rounds=1")
    assert (ended.returncode, ended.stderr) == (0, "")
    _, *records = map(json.loads, ended.stdout.splitlines())
    beyond = {record["start"]: record["beyond_import"] for record in records}
    refusals = {"a refused flag", "a refused key of a config", "a refused option of an algorithm"}
    assert set(beyond) == {"train --help", "report --help", "fedavg"} | refusals
    assert beyond["train --help"] < 0 < beyond["fedavg"]
    assert all(record["seconds"]["min"] > 0 for record in records)


def test_a_start_that_ends_otherwise_is_no_measurement():
    failing = [sys.executable, "-c", "raise SystemExit('It failed.')"]
    assert start._seconds(failing, 1) > 0
    with pytest.raises(start.StartError, match="(?s)ended with 1, not 0:.*It failed"):
        start._seconds(failing, 0)


@pytest.mark.slow
def test_descent_prints_a_line_a_size():
    ended = run(
        "--descent", "--online=2", "--networks=mlp", "--rounds=1", "--examples_per_client=10"
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    machine, record = map(json.loads, ended.stdout.splitlines())
    assert "machine" in machine
    assert (record["fedpg"], record["clients_online"], record["columns"]) == ("mlp", 2, 14)
    assert record["examples_per_client"] == 10
    assert 0 < record["columns_used"] <= 14
    of_round, of_program = record["seconds_per_round"], record["seconds_of_quadratic_program"]
    assert 0 < of_program["min"] <= of_program["median"] <= of_program["max"]
    assert 0 < record["share_of_round"] < 1
    share = of_program["median"] / of_round["median"]
    assert record["share_of_round"] == pytest.approx(share, abs=1e-3, rel=0.05)


@pytest.mark.slow
def test_the_server_of_pgfed(monkeypatch):
    def eager(model, examples_type, local, *, seed, **options):
        return EagerProcess(algorithms.make("pgfed", model, local, **options), seed)

    monkeypatch.setattr(algorithms, "build_pgfed", eager)
    workload = dataclasses.replace(benchmarks.MANY_CLIENTS, clients=3, examples_per_client=5)
    record = benchmarks.measure_pgfed_server(workload, 20, rounds=2)
    assert (record["pgfed_server"], record["clients_online"]) == ("20 clients", 3)
    assert record["num_weights"] == 28 * 28 * 10 + 10
    share = record["seconds_of_server"]["median"] / record["seconds_per_round"]["median"]
    assert record["share_of_round"] == pytest.approx(share, abs=1e-3)


@pytest.mark.slow
def test_steps_of_branches():
    workload = dataclasses.replace(benchmarks.BRANCHED, examples_per_client=10, batch_size=5)
    records = list(benchmarks.measure_branches(workload, 3, rounds=2))
    assert [record["step"] for record in records] == ["ordinary", "branches", "alpha"]
    assert [record["branches"] for record in records] == [1, 3, 3]
    medians = [record["seconds_per_step"]["median"] for record in records]
    times = [record["times_ordinary"] for record in records]
    assert times == pytest.approx([m / medians[0] for m in medians], rel=0.05)


def test_pooled_evaluations_and_bare_passes_take_turns():
    workload = dataclasses.replace(benchmarks.MANY_CLIENTS, clients=6, examples_per_client=3)
    record = benchmarks.measure_pooled(workload, 2)
    assert (record["clients"], record["images"], record["clients_per_turn"]) == (6, 18, 2)
    bare, evaluated = record["seconds_of_bare_passes"], record["seconds_of_evaluation"]
    assert 0 < bare["min"] <= bare["max"] and 0 < evaluated["min"] <= evaluated["max"]
    # Of two turns that count; the median is between their ratios.
    ratios = evaluated["min"] / bare["max"], evaluated["max"] / bare["min"]
    assert ratios[0] - 0.01 <= record["median_of_ratios"] <= ratios[1] * 1.01
    with pytest.raises(ValueError, match="6 clients make no two turns of 4"):
        benchmarks.measure_pooled(workload, 4)


@pytest.mark.slow
def test_aggregators_and_compressors_beside_the_mean():
    workload = dataclasses.replace(benchmarks.AGGREGATED, options={"hidden": ()}, clients=11)
    first, *others = benchmarks.measure_aggregators(workload, rounds=1)
    assert (first["aggregator"], first["times_mean"]) == ("mean", 1.0)
    median = first["seconds_per_round"]["median"]
    sent = {record["aggregator"]: record["bytes_up_per_client"] for record in others}
    num_weights = 28 * 28 * 10 + 10
    assert sent["median"] == 4 * num_weights + 4
    assert sent["half"] == sent["half, fed back"] == 2 * num_weights + 4
    assert set(sent) >= {*AGGREGATORS, *COMPRESSORS} - {"mean"}
    for record in others:
        times = record["seconds_per_round"]["median"] / median
        assert record["times_mean"] == pytest.approx(times, rel=0.05, abs=1e-3)


def test_clients_of_unequal_sizes():
    workload = dataclasses.replace(tiny("linear"), clients=3, examples_per_client=4)
    records = list(benchmarks.measure_unequal(workload, rounds=1))
    assert len(records) == 9
    for record in records:
        own, padded = (record[f"seconds_{rows}"]["median"] for rows in ("own", "padded"))
        assert record["padded_over_own"] == pytest.approx(padded / own, rel=0.01)
        assert record["rows_over_examples"] >= 1


def test_states_of_all_clients_are_on_disk():
    point = benchmarks.Point("graph_loop", tiny("linear"), 2, 250, rounds=1, warmup=0)
    record = benchmarks.measure_point(point)
    bytes_of_model = 4 * (28 * 28 * 10 + 10)
    assert record["states_on_disk_mib"] > 250 * bytes_of_model / 2**20


def test_scaling_measures_two_series():
    points = benchmarks.scaling_points(
        ["graph_loop", "cpp_runtime"],
        benchmarks.WORKLOADS["linear"],
        cohort_sizes=[10, 100, 300],
        populations=[20, 300, 5000],
        rounds=4,
        warmup=1,
    )
    sizes = [(10, 300), (100, 300), (300, 300), (20, 20), (100, 5000)]
    assert [(p.cohort_size, p.population) for p in points] == sizes * 2
    assert [p.runtime for p in points] == ["graph_loop"] * 5 + ["cpp_runtime"] * 5
    assert {(p.rounds, p.warmup) for p in points} == {(4, 1)}


@pytest.mark.parametrize(
    "flag, answer",
    [
        ("--workloads=linaer", "Did you mean 'linear'?"),
        ("--algorithm=pgfd", "Did you mean 'pgfed'?"),
        ("--algorithms=fedavg,dito", "Did you mean 'ditto'?"),
        ("--cohort_sizes=10,x", "Sizes are positive integers."),
    ],
)
def test_a_wrong_flag_is_answered_with_what_is_right(flag, answer):
    assert_refused("benchmark.py", flag, answer)


def test_one_thing_is_measured_at_a_time():
    done = run_main("benchmark.py", "--scaling", "--branches", "--cohort_sizes=10")
    assert done.returncode != 0
    assert "At most one of (start, scaling, " in done.stderr


def tiny(name):
    return dataclasses.replace(
        benchmarks.WORKLOADS[name], clients=3, examples_per_client=4, epochs=2, batch_size=4
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", benchmarks.WORKLOADS)
def test_contenders_do_the_same_work(name):
    # With one batch an epoch its order does not matter: any other number of steps, other step or
    # other average would show in the losses of the next round.
    workload = tiny(name)
    contenders = {
        name: build
        for name, build in benchmarks.CONTENDERS.items()
        if name not in ALGORITHMS and "plgu_lf" not in name and "bfloat16" not in name
    }
    if name == "cnn":  # vectorized on GPUs only
        del contenders["tff_pfl_graph_vectorized"], contenders["tff_pfl_graph_xla"]
    tolerance = 1e-4
    if name == "resnet18":
        tolerance = 2e-3  # many layers make much of different rounding
        contenders = {k: contenders[k] for k in ("bare_keras", "tff_pfl_graph_loop")}
    data = workload.data()
    runs = [build(workload, *data) for build in contenders.values()]
    rounds = [[run() for run in runs] for _ in range(3)]
    for losses in rounds:
        assert losses == pytest.approx([losses[0]] * len(runs), rel=tolerance)
    assert rounds[2][0] < rounds[0][0]


def test_the_vectorized_cnn_is_run_where_there_are_gpus(monkeypatch):
    cnn = benchmarks.WORKLOADS["cnn"]
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: [])
    assert cnn.default_contenders() == cnn.contenders
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: [f"{kind}:0"])
    assert cnn.default_contenders() == (*cnn.contenders, "tff_pfl_graph_vectorized")
    assert set(cnn.default_contenders()) <= set(benchmarks.CONTENDERS)


def test_other_work_is_refused():
    workload = dataclasses.replace(benchmarks.WORKLOADS["linear"], clients=2)
    losses = {}
    for epochs in (1, 3):
        workload = dataclasses.replace(workload, epochs=epochs)
        losses[epochs] = benchmarks.bare_tensorflow(workload, *workload.data())()
    with pytest.raises(benchmarks.DifferentWorkError, match=str(losses[3])):
        benchmarks.check_same_work(losses)
