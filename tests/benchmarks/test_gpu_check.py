"""The check of a GPU, on the CPU: what its parts find, and what is left however they end."""

import json

import numpy as np
import pytest

from benchmarks.gpu import device, rounds, runner, suites, trainings
from benchmarks.gpu.report import CheckError, Report
from tests.runs import ROOT, run_python

# Stands in for the function of a part, in a process without TensorFlow.
PART = """
import os, time

def run(report):
    print("said by the part")
    for what in ("a", "b", "c"):
        if report.is_due(what):
            DEED
            report.add(what, seconds=report.elapsed())
"""


@pytest.fixture
def report(tmp_path):
    return Report(tmp_path / "part.json", "CPU", 600.0)


@pytest.fixture
def check(tmp_path, monkeypatch):
    """Runs two parts, of which the first does something before "b"; returns code and contents."""

    def run(deed, minutes=1.0, **options):
        modules, parts = tmp_path / "modules", {}
        modules.mkdir(exist_ok=True)
        monkeypatch.setattr(runner, "ROOT", modules)
        for number, what in enumerate((deed, "pass"), start=1):
            (modules / f"part{number}.py").write_text(PART.replace("DEED", what))
            parts[number] = runner.Part(f"part{number}", f"part{number}:run", minutes)
        monkeypatch.setattr(runner, "PARTS", parts)
        for name in ("benchmarks", "tff_pfl"):
            if not (modules / name).exists():
                (modules / name).symlink_to(ROOT / name)
        code = runner.check(tmp_path / "out", **{"devices": "CPU", "parts": (1, 2)} | options)
        paths = sorted((tmp_path / "out").glob("part*.json"))
        return code, [json.loads(path.read_text()) for path in paths]

    return run


def whats(content):
    return [record["what"] for record in content["records"]]


def test_a_part_that_fails_says_why_and_goes_on_in_the_next_run(check, capsys):
    code, (failed, other) = check("if what == 'b': raise ValueError('no such thing')")
    assert (code, failed["status"], other["status"]) == (1, "failed", "complete")
    assert failed["message"] == "ValueError: no such thing"
    assert (whats(failed), whats(other)) == (["a"], ["a", "b", "c"])
    code, (content, again) = check("pass")
    assert (code, content["status"], content["message"]) == (0, "complete", "")
    assert content["records"][:1] == failed["records"]  # nothing is measured again
    assert again == other
    assert "part 2, part2: complete already" in capsys.readouterr().out


def test_what_a_process_died_of_is_left_and_the_rest_is_done(check, monkeypatch):
    monkeypatch.setattr(runner, "_SHORTEST_SECONDS", 1.0)
    code, (content, _) = check("if what == 'b': os.abort()")
    assert (code, content["status"], content["message"]) == (1, "failed", "see b")
    errors = {record["what"]: record.get("error") for record in content["records"]}
    assert errors == {"a": None, "b": "the process ended with signal SIGABRT", "c": None}
    assert check("pass")[1][0]["records"] == content["records"]  # b is not tried again


def test_a_part_has_so_much_time(check):
    code, (content, _) = check("if what == 'b': time.sleep(60)", minutes=0.05)
    assert (code, content["status"], whats(content)) == (1, "failed", ["a"])
    assert "it did not end within 3 s (b)" in content["message"]


def test_figures_of_a_gpu_are_not_mixed_with_others(check):
    check("pass", parts=(1,))
    with pytest.raises(CheckError, match="part1_part1.json has results of --devices=CPU"):
        check("pass", devices="GPU")


def test_a_report_has_what_is_missing(report):
    report.add("a", seconds=1.0)
    assert not report.is_due("a")
    assert report.is_due("b") and report["in_progress"] == "b"
    assert not report.is_due("c", expected_seconds=1e6)
    report.end()
    assert (report["status"], whats(report.content)) == ("partial", ["a"])
    assert "no time for: c: 540 s were left" in report.table()


def test_a_wrong_product_is_found(report):
    expected = np.eye(3)
    device.compare(report, "right", expected + 1e-6, expected)
    for wrong in (expected + 1e-3, np.full([3, 3], np.nan)):
        with pytest.raises(CheckError, match="^wrong: relative error"):
            device.compare(report, "wrong", wrong, expected)
    assert "error" in report.find("wrong") and "error" not in report.find("right")


def test_no_gpu_is_said_before_anything_is_measured_without_it(tmp_path):
    with pytest.raises(CheckError, match="TensorFlow lists no GPU"):
        rounds.run(Report(tmp_path / "part.json", "GPU", 60.0))


@pytest.mark.parametrize(
    ("result", "counts", "error"),
    [
        ("<skipped/>", (2, 0, 1), "skipped, though there is a GPU: test_a[GPU]"),
        ("<failure/><error/>", (2, 1, 0), "failed: test_a[GPU]"),
    ],
)
def test_outcome_of_a_suite(tmp_path, result, counts, error):
    cases = '<testcase name="test_a[CPU]"/><testcase name="test_a[GPU]">{}</testcase><testcase/>'
    (tmp_path / "junit.xml").write_text(f"<testsuite>{cases.format(result)}</testsuite>")
    figures = suites.outcome(tmp_path / "junit.xml", "GPU")
    assert tuple(figures[key] for key in ("passed", "failed", "skipped")) == counts
    assert figures["error"] == error


def test_places_differ_by_no_more_than_rounding():
    on_cpu = {"first_loss": 1.0, "accuracy": 0.7}
    assert trainings.difference({"first_loss": 1.0005, "accuracy": 0.69}, on_cpu) is None
    for changed in ({"first_loss": 1.002}, {"first_loss": float("nan")}, {"accuracy": 0.73}):
        assert trainings.difference(on_cpu | changed, on_cpu) is not None


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_parts_on_the_cpu(tmp_path):
    program = ("benchmarks/gpu_check.py", f"--output_dir={tmp_path}", "--devices=CPU")
    done = run_python(*program, TFDS_DATA_DIR="")
    assert done.returncode == 0, done.stdout + done.stderr
    contents = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("part*.json"))]
    assert [content["status"] for content in contents] == 5 * ["complete"]
    assert "256 x 256 in bfloat16" in whats(contents[0])
    assert whats(contents[1]) == ["devices", "conformance"]
    assert "2 resnet18 float32 bare_keras" in whats(contents[2])
    assert len(contents[3]["records"]) == 2 * len(trainings.ALGORITHMS)
    assert contents[4]["records"][0]["rounds"] == 2
