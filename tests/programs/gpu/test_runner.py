"""Parts are run in order, each in a process; what one leaves is kept, however it ends."""

import json

import pytest

import gpu
from gpu import parts, runner
from tests.runs import ROOT, run_python

# Stands in for the modules of the parts, in a process without TensorFlow.
PART = """
import os, time

def run(task, report):
    with open(os.path.join(task.output_dir, "runs"), "a") as file:
        file.write(f"{task.part}\\n")
    print("said by the part")
    for what in ("a", "b", "c"):
        if report.find(what):
            continue
        report.begin(what)
        DEED
        report.add(what, seconds=task.elapsed(), devices=task.devices)
"""


@pytest.fixture
def make_part(monkeypatch, tmp_path):
    """Makes a part of the check, whose `DEED` is done before each of its records."""
    modules = tmp_path / "modules"
    modules.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(modules), prepend=":")
    monkeypatch.setattr(runner, "PARTS", {})
    # The process of a part has the table of its own: that is changed there, too.
    table = "from gpu import parts\n"
    (modules / "sitecustomize.py").write_text(table)

    def make(number, deed="pass", minutes=1.0):
        name = f"stand_in_{number}"
        (modules / f"{name}.py").write_text(PART.replace("DEED", deed))
        part = parts.Part(name, name, minutes)
        runner.PARTS[number] = part
        with open(modules / "sitecustomize.py", "a") as file:
            file.write(f"parts.PARTS[{number}] = parts.Part({name!r}, {name!r}, {minutes})\n")

    return make


@pytest.fixture
def check(tmp_path):
    """Runs these parts; returns the exit code and what their files say."""

    def run(*numbers, **options):
        folder = tmp_path / "out"
        code = gpu.check(folder, ROOT, parts=numbers, **{"devices": "CPU"} | options)
        return code, [json.loads(next(folder.glob(f"part{n}_*.json")).read_text()) for n in numbers]

    return run


def runs(tmp_path):
    return (tmp_path / "out" / "runs").read_text().split()


def test_each_part_leaves_its_figures_and_its_log(make_part, check, tmp_path, capsys):
    make_part(1)
    make_part(2)
    code, contents = check(1, 2)
    assert code == 0
    for number, content in zip((1, 2), contents, strict=True):
        assert (content["part"], content["status"], content["message"]) == (number, "complete", "")
        assert [record["what"] for record in content["records"]] == ["a", "b", "c"]
        assert {record["devices"] for record in content["records"]} == {"CPU"}
        log = tmp_path / "out" / f"part{number}_stand_in_{number}.log"
        assert log.read_text() == "said by the part\n"
    printed = capsys.readouterr().out
    assert printed.index("part 1, stand_in_1") < printed.index("part 2, stand_in_2")
    assert "complete: 1, 2" in printed


def test_a_complete_part_is_not_run_again(make_part, check, tmp_path, capsys):
    make_part(1)
    first = check(1)
    assert check(1) == first
    assert runs(tmp_path) == ["1"]
    assert "complete already" in capsys.readouterr().out


def test_a_part_that_fails_says_why_and_the_next_is_run(make_part, check):
    make_part(1, deed="if what == 'b': raise ValueError('no such thing')")
    make_part(2)
    code, (failed, other) = check(1, 2)
    assert code == 1
    assert (failed["status"], failed["message"]) == ("failed", "ValueError: no such thing")
    assert failed["log_tail"][0] == "said by the part"
    assert failed["log_tail"][-1] == "ValueError: no such thing"
    assert [record["what"] for record in failed["records"]] == ["a"]
    assert other["status"] == "complete"


def test_a_failed_part_goes_on(make_part, check, tmp_path):
    make_part(1, deed="if what == 'b' and len(open(task.output_dir + '/runs').read()) < 3: 1 / 0")
    code, (failed,) = check(1)
    assert (code, failed["message"]) == (1, "ZeroDivisionError: division by zero")
    code, (content,) = check(1)
    assert (code, content["status"], content["message"]) == (0, "complete", "")
    assert content["records"][:1] == failed["records"]
    assert runs(tmp_path) == ["1", "1"]


def test_what_a_process_died_of_is_left_and_the_rest_is_done(make_part, check, tmp_path):
    make_part(1, deed="if what == 'b': os.abort()")
    code, (content,) = check(1)
    assert (code, content["status"], content["message"]) == (1, "failed", "see b")
    errors = {record["what"]: record.get("error") for record in content["records"]}
    assert errors == {"a": None, "b": "the process ended with signal SIGABRT", "c": None}
    assert runs(tmp_path) == ["1", "1"]


def test_a_part_has_so_much_time(make_part, check, tmp_path):
    make_part(1, deed="if what == 'b': time.sleep(60)", minutes=1 / 60)
    code, (content,) = check(1)
    assert (code, content["status"]) == (1, "failed")
    assert content["message"] == "it did not end within 1 s (b)"
    assert [record["what"] for record in content["records"]] == ["a"]


def test_what_does_not_fit_is_said(make_part, check, capsys):
    make_part(1)
    code, (content,) = check(1, minutes=0.1)
    assert (code, content["status"], content["records"]) == (0, "left_out", [])
    assert "part 1, stand_in_1: left out, the 0.1 minutes are over" in capsys.readouterr().out
    assert check(1)[1][0]["status"] == "complete"


def test_a_part_for_which_time_was_too_short_goes_on(make_part, check, capsys):
    make_part(1, deed="if what == 'b': report.leave_out(what); continue")
    code, (content,) = check(1)
    assert (code, content["status"], content["left_out"]) == (0, "partial", ["b"])
    assert "no time for: b" in capsys.readouterr().out
    make_part(1)
    code, (content,) = check(1)
    assert (content["status"], content["left_out"]) == ("complete", [])
    assert [record["what"] for record in content["records"]] == ["a", "c", "b"]


def test_figures_of_a_gpu_are_not_mixed_with_others(make_part, check):
    make_part(1)
    check(1)
    with pytest.raises(gpu.CheckError, match="part1_stand_in_1.json has results of --dev"):
        check(1, devices="GPU")


def test_no_part_needs_tensorflow_before_it_is_run():
    code = "import sys, gpu.__main__; print('tensorflow' in sys.modules)"
    done = run_python("-c", code, PYTHONPATH=f"{ROOT}:{ROOT / 'programs'}")
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr
