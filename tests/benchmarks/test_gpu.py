"""Tests the GPU check on the CPU: its results, and its files however a part ends."""

import contextlib
import os
import sys

import numpy as np
import pandas as pd
import pytest

from benchmarks.contestants import common, serving
from benchmarks.gpu import device, report, rounds, runner, suites, summary, trainings
from benchmarks.gpu.report import CheckError, Report
from tests.runs import ROOT, run_python

# A stand-in for a part, in a process without TensorFlow.
PART = """
import os

def work(task):
    ACTION
    return {"figure": 1.5}

def part(report):
    for task in ("a", "b", "c"):
        report.do(task, lambda: work(task))
"""


def serve(program, *arguments, errors):
    """Returns a context manager of a server."""
    environment = {name: os.environ[name] for name in os.environ if not name.startswith("TF")}
    command = (str(program), arguments, sys.executable, environment)
    return contextlib.closing(serving.Server(*command, errors, 60.0))


@pytest.fixture
def check(tmp_path, monkeypatch):
    """Runs two parts, the first with an action in each task; returns exit code and reports."""

    def run(action):
        modules, parts = tmp_path / "modules", {}
        modules.mkdir(exist_ok=True)
        monkeypatch.setattr(runner, "ROOT", modules)
        for number, code in enumerate((action, "pass"), start=1):
            (modules / f"part{number}.py").write_text(PART.replace("ACTION", code))
            parts[f"part{number}"] = runner.Part(f"part{number}:part", 0.5)
        monkeypatch.setattr(runner, "PARTS", parts)
        for name in ("benchmarks", "tff_pfl"):
            if not (modules / name).exists():
                (modules / name).symlink_to(ROOT / name)
        code = runner.check(tmp_path / "out", devices="CPU", parts=list(parts), minutes=1.0)
        return code, [Report(tmp_path / "out", name, "CPU") for name in parts]

    return run


@pytest.mark.slow
def test_next_run_resumes_a_failed_part(check):
    action = "if task == 'b': raise ValueError('no such thing')\n    if task == 'c': os.abort()"
    code, (failed, other) = check(action)
    assert (code, failed.status, other.status) == (1, "failed", "complete")
    assert failed.message == "the process ended with SIGABRT (c), see log.txt"
    assert failed.records["b"]["error"] == "ValueError: no such thing"
    code, (again, unchanged) = check("pass")
    assert (code, again.status, list(again.records)) == (0, "complete", ["a", "b", "c"])
    assert again.records["a"] == failed.records["a"]  # not measured again
    assert unchanged.records == other.records


def test_results_of_different_devices_are_not_mixed(tmp_path):
    Report(tmp_path, "a", "CPU").write("x", {})
    with pytest.raises(CheckError, match="figures.jsonl has results of --devices=CPU"):
        Report(tmp_path, "b", "GPU")


def test_report_names_missing_tasks_and_the_last_line_counts(tmp_path):
    found = Report(tmp_path, "a", "CPU", 600.0)
    found.do("x", dict)
    found.do("y", dict, seconds=1e6)
    found.do("x", lambda: 1 / 0)
    found.write("z", {"seconds": 1.0})
    found.write("z", {"seconds": float("nan")})
    found.close()
    again = Report(tmp_path, "a", "CPU")
    assert (again.status, again.message) == ("partial", "y")
    assert again.records["y"] == {"error": "no time: 570 s were left"}
    assert again.records["z"] == {"seconds": None}
    assert len(report.read(tmp_path)) == 6


def test_wrong_product_is_refused():
    expected = np.eye(3)
    found = device.compare(expected + 1e-6, expected)
    assert found["relative_error"] == pytest.approx(1e-6)
    for wrong in (expected + 1e-3, np.full([3, 3], np.nan)):
        with pytest.raises(CheckError, match="^The relative error is"):
            device.compare(wrong, expected)


def test_missing_gpu_is_an_error(tmp_path):
    with pytest.raises(CheckError, match="TensorFlow lists no GPU"):
        device.require(Report(tmp_path, "device", "GPU"))
    with pytest.raises(CheckError, match="TensorFlow computes on CPU"):
        rounds._described("tensorflow", {"device": "CPU"}, Report(tmp_path, "rounds", "GPU"))


@pytest.mark.parametrize(
    ("result", "error"),
    [
        ("<skipped/>", r"Skipped despite a GPU: test_a\[GPU\]"),
        ("<failure/><error/>", r"1 of 2 failed: test_a\[GPU\]"),
    ],
)
def test_outcome_refuses_failed_and_skipped_tests(tmp_path, result, error):
    cases = f'<testcase name="test_a[CPU]"/><testcase name="test_a[GPU]">{result}</testcase>'
    (tmp_path / "junit.xml").write_text(f"<testsuite>{cases}</testsuite>")
    with pytest.raises(CheckError, match=error):
        suites.outcome(tmp_path / "junit.xml", "GPU")


def test_devices_may_differ_only_by_rounding():
    on_cpu = {"first_loss": 1.0, "accuracy": 0.7}
    trainings.compare({"first_loss": 1.0005, "accuracy": 0.69}, on_cpu)
    for changed in ({"first_loss": 1.002}, {"first_loss": float("nan")}, {"accuracy": 0.73}):
        with pytest.raises(CheckError):
            trainings.compare(on_cpu | changed, on_cpu)


def test_sizes_are_lognormal_or_equal():
    assert set(common.lognormal_sizes(100, 20, sigma=0.0)) == {20}
    sizes = common.lognormal_sizes(1000, 200)
    assert sizes.mean() == pytest.approx(200, rel=0.01)
    assert np.log(sizes).std() == pytest.approx(1.0, rel=0.05)


def test_choices_are_ratios_of_the_cells_that_have_both():
    records = {
        f"{cell}: tensorflow {name}": {"seconds": seconds}
        for cell, figures in {
            "cnn": {"stacked": 0.03, "stacked+xla": 0.015, "loop": 0.06},
            "linear": {"stacked": 0.02, "loop": 0.01},
        }.items()
        for name, seconds in figures.items()
    }
    records["cnn: jax vmap"] = {"seconds": 0.01}
    records["cnn: torch vmap"] = {"seconds": 0.001, "error": "its loss is 1"}
    expected = {
        "compile by XLA: stacked+xla / stacked": 0.5,
        "stack clients, do not loop: stacked / loop": 0.5,
        "stack clients, do not loop: stacked+xla / loop": 0.25,
        "stacked+xla / the best of JAX and PyTorch": 1.5,
    }
    found = summary.choices(summary.milliseconds(records))
    pd.testing.assert_series_equal(found["cnn"], pd.Series(expected, name="cnn"))
    assert found["linear"].dropna().to_dict() == {"stack clients, do not loop: stacked / loop": 2.0}


@pytest.mark.slow
@pytest.mark.parametrize("network", ["linear", "cnn"])
def test_contestants_do_the_same_work(tmp_path, network):
    """Compares full batches, so that their order does not matter."""
    work = {"network": network, "clients": 3, "examples_per_client": 4, "sigma": 1.0, "epochs": 2}
    work |= {"batch_size": 40, "learning_rate": 0.05, "options": {}}
    losses = {}
    ours = ("bare", "stacked+xla", "loop", *["stacked"] * (network == "linear"))
    contenders = {"tensorflow": ours, "jax": ("vmap", "map")}
    with open(tmp_path / "errors", "wb") as errors:
        for name, methods in contenders.items():
            arguments = ["float32"] if name == "tensorflow" else []
            with serve(f"with_{name}.py", *arguments, errors=errors) as server:
                for method in methods:
                    found = [server.round(method, work, 120.0) for _ in range(3)]
                    losses[name, method] = [answer["loss"] for answer in found]
    first, *others = losses.values()
    assert first[0] > first[1] > first[2]
    for other in others:
        assert other == pytest.approx(first, rel=1e-4)  # convolutions round by CPU


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_parts_complete_on_the_cpu(tmp_path):
    """Runs the check with JAX, which TFF's environment has, and without PyTorch."""
    flags = (f"--output_dir={tmp_path}", "--devices=CPU", f"--python={sys.executable}")
    done = run_python("-m", "benchmarks.gpu", *flags, TFDS_DATA_DIR="")
    assert done.returncode == 0, done.stdout + done.stderr
    reports = {name: Report(tmp_path, name, "CPU") for name in runner.PARTS}
    assert {found.status for found in reports.values()} == {"complete"}
    assert "256 x 256 in bfloat16" in reports["device"].records
    assert "missing" in reports["rounds"].records["torch"]
    assert reports["rounds"].records["linear 3 equal: jax vmap"]["rounds"] == 5
    assert reports["agreement"].records["ditto"]["relative_difference"] < 1e-5
    assert reports["unequal"].records["ditto, compiled"]["rounds"] == 100
    assert 1 < reports["compilations"].records["cohorts of 2"]["compilations"] <= 3
    assert "ditto, compared" in reports["trainings"].records
    assert "resnet18 2 equal: tensorflow bare" in reports["resnet18_tf32"].records
    assert "resnet18 2 equal: tensorflow loop" in reports["resnet18_bfloat16"].records
    assert list(reports["tests"].records) == ["devices", "conformance"]
    assert "compile by XLA: stacked+xla / stacked" in done.stdout
