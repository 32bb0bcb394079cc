"""Tests the driver of side-by-side measurements, with toy contestants and no framework."""

import json
import time

import pytest

from benchmarks.contestants.driver import (
    Contestant,
    Work,
    check_work,
    compare,
    markdown_table,
    place,
)
from tests.runs import ROOT, run_python

# The "method" of a toy contestant chooses its behaviour.
TOY = """
import json, sys, time
method = json.loads(sys.argv[1])["method"]
if method == "never starts":
    time.sleep(60)
num_weights = 6 if method == "other weights" else 5
print(json.dumps({"versions": {"toy": "1"}, "num_weights": num_weights}), flush=True)
for number, line in enumerate(sys.stdin):
    if method == "dies":
        sys.exit("It cannot continue.")
    if method == "never answers":
        time.sleep(60)
    times = json.dumps({"seconds": 10.0 - number, "cpu_seconds": 20.0})
    print("done" if method == "babbles" else times, flush=True)
"""
FRAMEWORK = f"""
import os, sys
sys.path.insert(0, {str(ROOT / "benchmarks" / "contestants")!r})
import common
work = common.arguments()
turns = common.Turns(has_workers=work.method == "has workers")
print("Welcome to the framework!")
turns.ready(work.clients, "numpy", toy="2")
one_round = turns.before_each(lambda: os.system("echo a round"))
while True:
    one_round()
"""


def toys(tmp_path, *methods):
    program = tmp_path / "toy.py"
    program.write_text(TOY)
    return [Contestant("toy", method, program=str(program)) for method in methods]


def records_of(contestants, **options):
    return list(compare(contestants, Work(), **{"rounds": 3, "time_limit": 30} | options))


def test_contestants_take_turns_after_a_first_round(tmp_path):
    (toy,) = toys(tmp_path, "works")
    bare = Contestant("bare_tensorflow", "fedavg", program=toy.program)
    records = records_of([bare, toy])
    assert [record.pop("framework") for record in records] == ["bare_tensorflow", "toy"]
    assert [record.pop("method") for record in records] == ["fedavg", "works"]
    assert records == 2 * [
        {
            "versions": {"toy": "1"},
            "num_weights": 5,
            "rounds": 3,
            "seconds_per_round": {"median": 8.0, "min": 7.0, "max": 9.0},
            "times_bare": 1.0,
            "cpu_seconds_per_round": {"median": 20.0, "min": 20.0, "max": 20.0},
            "cpu_times_bare": 1.0,
        }
    ]


def test_failed_contestant_is_reported_and_does_not_stop_the_others(tmp_path):
    methods = ["works", "dies", "other weights", "other weights", "babbles"]
    works, *failed = records_of(toys(tmp_path, *methods))
    assert (works["seconds_per_round"]["median"], works["times_bare"]) == (8.0, None)
    assert [record["failed"] for record in failed] == [
        "It ended with exit code 1.",
        *2 * ["Its model has 6 weights instead of 5."],
        "It answered b'done', which is not JSON.",
    ]
    assert failed[0]["stderr"] == ["It cannot continue."]


@pytest.mark.slow
def test_contestant_fails_if_it_does_not_answer(tmp_path):
    began = time.monotonic()
    late = records_of(toys(tmp_path, "never starts", "never answers", "works"), time_limit=1.0)
    assert time.monotonic() - began < 20
    assert [record.get("failed") for record in late] == [
        "It is not ready after 1 seconds.",
        "It has not finished a round after 1 seconds.",
        None,
    ]


def test_output_of_a_framework_is_ignored(tmp_path):
    program = tmp_path / "framework.py"
    program.write_text(FRAMEWORK)
    toys = [Contestant("toy", name, program=str(program)) for name in ("works", "has workers")]
    record, other = records_of(toys, rounds=2)
    assert record["versions"].keys() == {"numpy", "toy"}
    assert (record["num_weights"], record["rounds"]) == (Work().clients, 2)
    assert 0 < record["seconds_per_round"]["median"] < 5
    assert 0 <= record["cpu_seconds_per_round"]["median"] < 5
    assert "cpu_seconds_per_round" not in other


def test_framework_that_is_missing_or_cannot_do_the_work_is_refused():
    with pytest.raises(ValueError, match="'no_python' cannot be run; it must be a Python"):
        place("fedjax", "no_python")
    with pytest.raises(ValueError, match="'sh:.' must be PYTHON:CHECKOUT of pfllib"):
        place("pfllib", "sh:.")
    with pytest.raises(ValueError, match="pfllib drops incomplete batches"):
        check_work("pfllib", Work(sigma=1.0))
    with pytest.raises(ValueError, match="pgfed_authors trains the CNN only"):
        check_work("pgfed_authors", Work(network="mlp"))


def test_incomplete_batches_of_equal_clients_are_refused():
    Work(examples_per_client=55, batch_size=20, sigma=1.0)
    with pytest.raises(ValueError, match="must be a multiple of 20"):
        Work(examples_per_client=55, batch_size=20)


@pytest.mark.slow
@pytest.mark.parametrize(("network", "num_weights"), [("linear", 7850), ("mlp", 199_210)])
def test_program_compares_unequal_clients(network, num_weights):
    sizes = ("--clients=4", "--clients_per_round=2", "--examples_per_client=7", "--rounds=1")
    work = (f"--network={network}", "--unequal", "--jit_compile", "--methods=fedavg")
    ended = run_python("benchmarks/side_by_side.py", *sizes, *work)
    assert (ended.returncode, ended.stderr) == (0, "")
    _, *records, _, _, _, _ = ended.stdout.splitlines()
    for record in map(json.loads, records):
        assert record["num_weights"] == num_weights
        assert record["cpu_times_bare"] > 0


@pytest.mark.slow
def test_program_compares_this_library_with_the_bare_loop():
    sizes = ("--clients=4", "--clients_per_round=2", "--examples_per_client=50", "--rounds=1")
    ended = run_python("benchmarks/side_by_side.py", *sizes, "--methods=ditto")
    assert (ended.returncode, ended.stderr) == (0, "")
    machine, *records, heads, _, bare, own = ended.stdout.splitlines()
    assert "machine" in json.loads(machine)
    bare_record, record = map(json.loads, records)
    assert bare_record["num_weights"] == record["num_weights"] == 878_538
    assert (bare_record["times_bare"], heads) == (1.0, "| framework | fedavg | ditto |")
    assert f"({record['times_bare']:.2f} x)" in own


def test_page_has_the_table_of_the_run():
    lines = (ROOT / "docs" / "guides" / "side_by_side.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines[1:]]
    page = (ROOT / "docs" / "guides" / "side_by_side.md").read_text()
    rows = [_cells(line) for line in page.splitlines() if line.startswith("|")]
    expected = [_cells(line) for line in markdown_table(records).splitlines()[2:]]
    assert rows[2 : 2 + len(expected)] == expected


def _cells(line):
    """Returns the cells of a table's row without its label."""
    return [cell.strip() for cell in line.strip("|").split("|")][1:]
