"""Tests help, mistakes and reports of programs, which do not import TensorFlow."""

import io
import json
import sys

import pytest

from tests.analysis.hand_written import write_run
from tests.runs import ROOT, run_python
from tff_pfl.runtime.startup import announce_tensorflow

MODULES = tuple(f"tff_pfl.{name}" for name in ("arguments", "analysis", "analysis.frames"))
PROGRAMS = [path.name for path in sorted((ROOT / "programs").glob("*.py"))]
PROGRAMS.remove("report.py")  # its subcommands have the flags

# Runs all command lines in one process, in half a second; importing TensorFlow fails there.
WITHOUT_TENSORFLOW = """
import contextlib, importlib, io, json, runpy, sys
from absl import app, flags
from absl.testing import flagsaver
import tff_pfl

assert not sys.modules.keys() & {"tensorflow", "tensorflow_federated"}
sys.modules |= dict.fromkeys(["tensorflow", "tensorflow_federated"])
sys.path.insert(0, "programs")
app.define_help_flags()


def run(main, flags_parser=app.parse_flags_with_usage):
    sys.exit(main(flags_parser(sys.argv)))


def answer(program, *arguments):
    sys.argv = [f"programs/{program}", *arguments]
    printed = io.StringIO()
    sys.modules.pop("tff_pfl.runtime.flags", None)  # it defines flags when it is imported
    with flagsaver.flagsaver(), contextlib.redirect_stdout(printed):
        with contextlib.redirect_stderr(printed):
            try:
                runpy.run_path(sys.argv[0], run_name="__main__")
            except SystemExit as ended:
                return ended.code, printed.getvalue()
            finally:
                flags.FLAGS.unparse_flags()


app.run = run
modules, commands = json.load(sys.stdin)
for module in modules:
    importlib.import_module(module)
print(json.dumps([answer(*command) for command in commands]))
"""


def test_help_mistakes_and_reports_do_not_import_tensorflow(tmp_path):
    output, picture = f"--output_dir={tmp_path / 'x'}", f"--output={tmp_path / 'x.png'}"
    run_dir = write_run(tmp_path / "run", [0.5, 0.75])
    run = f"ditto:{run_dir}"
    expected = {
        **{(program, "--help"): (1, f"{program}") for program in PROGRAMS},
        **{
            (program, "--wrong=1"): (1, "Unknown command line flag 'wrong'") for program in PROGRAMS
        },
        ("report.py", "--help"): (0, "usage: report.py"),
        ("report.py", "curves", run, picture, "--wrong=1"): (2, "unknown arguments: --wrong=1"),
        ("train.py", output, "--resume", "--overwrite"): (1, "At most one of (resume"),
        ("train.py", "--config=configs/digits.py", output, "--wrong=1"): (
            1,
            "Unknown command line",
        ),
        ("train.py", "--config=no.py", output): (1, "No such file or directory: 'no.py'"),
        ("sweep.py", "--study=no.py", output): (1, "There is no study 'no.py'."),
        ("report.py", "tabel", run): (2, "invalid choice: 'tabel'"),
        ("report.py", "curves", f"A:{tmp_path}/x", picture): (1, "has no config.json of a run"),
        ("report.py", "curves", run, "--column=lost", picture): (1, "Unknown"),
        ("report.py", "table", run): (0, "| ditto |"),
    }
    given = json.dumps([MODULES, list(expected)])
    done = run_python("-c", WITHOUT_TENSORFLOW, input=given)
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    for (command, (code, words)), found in zip(expected.items(), answers, strict=True):
        assert found[0] == code and words in found[1], (command, found)


def test_program_of_a_study_imports_tensorflow_when_it_needs_it():
    """Answers mistakes in its flags at once."""
    names = "open_engine, check_settings, load_study, run_study, study_of_methods"
    check = f"import sys; from tff_pfl.studies import {names}; print('tensorflow' in sys.modules)"
    assert run_python("-c", check).stdout == "False\n"


@pytest.mark.parametrize(
    ("is_terminal", "is_imported", "line"),
    [
        (True, False, "Loading TensorFlow and TFF ...\n"),
        (True, True, ""),
        (False, False, ""),
    ],
)
def test_terminal_shows_that_tensorflow_is_loading(monkeypatch, is_terminal, is_imported, line):
    errors = io.StringIO()
    errors.isatty = lambda: is_terminal
    monkeypatch.setattr(sys, "stderr", errors)
    monkeypatch.setattr(sys, "modules", {"tensorflow": None} if is_imported else {})
    announce_tensorflow()
    assert errors.getvalue() == line
