"""Tests the GPU check on the CPU: its results, and its files however a part ends."""

import json

import numpy as np
import pytest

from benchmarks.gpu import device, rounds, runner, suites, trainings
from benchmarks.gpu.runner import CheckError, Report
from tests.runs import ROOT, run_python

# A stand-in for a part, in a process without TensorFlow.
PART = """
import os, time

def work(task):
    ACTION
    return {}

def part(report):
    for task in ("a", "b", "c"):
        report.do(task, lambda: work(task))
"""


@pytest.fixture
def check(tmp_path, monkeypatch):
    """Runs two parts, the first with an action in each task; returns exit code and reports."""

    def run(action, minutes=1.0, **options):
        modules, parts = tmp_path / "modules", {}
        modules.mkdir(exist_ok=True)
        monkeypatch.setattr(runner, "ROOT", modules)
        for number, code in enumerate((action, "pass"), start=1):
            (modules / f"part{number}.py").write_text(PART.replace("ACTION", code))
            parts[number] = runner.Part(f"part{number}", f"part{number}:part", minutes)
        monkeypatch.setattr(runner, "PARTS", parts)
        for name in ("benchmarks", "tff_pfl"):
            if not (modules / name).exists():
                (modules / name).symlink_to(ROOT / name)
        code = runner.check(tmp_path / "out", **{"devices": "CPU", "parts": (1, 2)} | options)
        paths = sorted((tmp_path / "out").glob("part*.json"))
        return code, [json.loads(path.read_text()) for path in paths]

    return run


@pytest.mark.slow
def test_next_run_resumes_a_failed_part(check):
    action = "if task == 'b': raise ValueError('no such thing')\n    if task == 'c': os.abort()"
    code, (failed, other) = check(action)
    assert (code, failed["status"], other["status"]) == (1, "failed", "complete")
    assert "the process ended with SIGABRT (c), see " in failed["message"]
    assert failed["records"]["b"]["error"] == "ValueError: no such thing"
    code, (content, again) = check("pass")
    assert (code, content["status"], list(content["records"])) == (0, "complete", ["a", "b", "c"])
    assert content["records"]["a"] == failed["records"]["a"]  # not measured again
    assert again == other


@pytest.mark.slow
def test_part_has_a_time_limit(check):
    code, (content, _) = check("if task == 'b': time.sleep(60)", minutes=0.05)
    assert (code, content["status"], list(content["records"])) == (1, "failed", ["a"])
    assert "it did not end within 3 s (b)" in content["message"]


def test_results_of_different_devices_are_not_mixed(check):
    check("pass", parts=(1,))
    with pytest.raises(CheckError, match="part1_part1.json has results of --devices=CPU"):
        check("pass", devices="GPU")


def test_report_names_missing_tasks(tmp_path):
    report = Report(tmp_path / "part.json", "CPU", 600.0)
    report.do("a", dict)
    report.do("b", dict, seconds=1e6)
    report.do("a", lambda: 1 / 0)
    report.close()
    assert (report.content["status"], report.content["message"]) == ("partial", "b")
    assert "no time: 540 s were left" in report.table()


def test_wrong_product_is_refused():
    expected = np.eye(3)
    found = device.compare(expected + 1e-6, expected)
    assert found["relative_error"] == pytest.approx(1e-6)
    for wrong in (expected + 1e-3, np.full([3, 3], np.nan)):
        with pytest.raises(CheckError, match="^The relative error is"):
            device.compare(wrong, expected)


def test_missing_gpu_is_an_error(tmp_path):
    with pytest.raises(CheckError, match="TensorFlow lists no GPU"):
        rounds.measure_rounds(Report(tmp_path / "part.json", "GPU", 60.0))


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


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_parts_complete_on_the_cpu(tmp_path):
    program = ("benchmarks/gpu_check.py", f"--output_dir={tmp_path}", "--devices=CPU")
    done = run_python(*program, TFDS_DATA_DIR="")
    assert done.returncode == 0, done.stdout + done.stderr
    contents = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("part*.json"))]
    assert [content["status"] for content in contents] == 5 * ["complete"]
    products, tests, of_rounds, of_trainings, long = (content["records"] for content in contents)
    assert "256 x 256 in bfloat16" in products
    assert list(tests) == ["devices", "conformance"]
    assert "2 resnet18 float32 bare_keras" in of_rounds
    assert len(of_trainings) == 3 * len(trainings.ALGORITHMS)
    assert long["plgu_lf for long"]["rounds"] == 2
