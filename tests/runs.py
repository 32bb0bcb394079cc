"""Runs programs as users do, and provides a config that takes a moment."""

import contextlib
import io
import json
import os
import pathlib
import runpy
import shutil
import subprocess
import sys
import time
from unittest import mock

from absl import app, flags
from absl.testing import flagsaver
from ml_collections import config_flags

from tff_pfl.config import check_config, default_config, parse_flags, run_program
from tff_pfl.runtime import flags as runtime_flags

ROOT = pathlib.Path(__file__).parents[1]


def run_python(*arguments, folder=ROOT, input="", **variables) -> subprocess.CompletedProcess:
    """Runs Python on the repository, without TensorFlow's environment variables.

    Args:
        *arguments: The command line.
        folder: The working directory.
        input: The standard input.
        **variables: Environment variables.
    """
    # Importing TensorFlow sets TF2_BEHAVIOR, which changes the start of Keras.
    set_by_others = ("TF_", "TF2_")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(set_by_others)}
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=folder,
        env=environment | {"PYTHONPATH": str(ROOT)} | variables,
        input=input,
        capture_output=True,
        text=True,
        timeout=400,
    )


def assert_refused(program: str, flag: str, answer: str) -> None:
    """Asserts that a program refuses a flag with a message; see `run_main`."""
    ended = run_main(program, flag)
    assert ended.returncode != 0
    assert answer in ended.stderr
    assert "Traceback" not in ended.stderr


def run_main(program: str, *arguments) -> subprocess.CompletedProcess:
    """Runs a program in this process, in the context of the tests.

    This is a hundred times cheaper than `run_python`, which is only needed to test the whole output
    of a process and its end.

    Args:
        program: The name of a file of `programs/`, or a path in the repository.
        *arguments: The command line.
    """
    path = ROOT / program if "/" in program else ROOT / "programs" / program
    argv = [str(path), *map(str, arguments)]
    output, errors = io.StringIO(), io.StringIO()

    def run(main, flags_parser=app.parse_flags_with_usage):
        sys.exit(main(flags_parser(argv)))

    with (
        flagsaver.flagsaver(),
        mock.patch.object(app, "run", run),
        mock.patch.object(runtime_flags, "set_context_from_flags", lambda: None),
        mock.patch.object(sys, "argv", argv),
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(errors),
    ):
        try:
            runpy.run_path(argv[0], run_name="__main__")
            code = 0
        except SystemExit as ended:
            code = ended.code or 0
        finally:
            flags.FLAGS.unparse_flags()
    return subprocess.CompletedProcess(argv, code, output.getvalue(), errors.getvalue())


def wait_until(condition, seconds=120) -> None:
    """Waits for a condition; fails after some time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def train_run(path, config, **options) -> pathlib.Path:
    """Trains a run in a directory, and returns the directory."""
    assert run_program(config, str(path), **options) == 0
    return pathlib.Path(path)


def write_study(folder, config, settings=()) -> pathlib.Path:
    """Writes the file of a study with one variant, `a`."""
    file = folder / "study.py"
    file.write_text(
        "from tff_pfl.studies import Study, Variant\n"
        "def get_study():\n"
        f"    return Study('One', {{'a': Variant('{config}', {dict(settings)})}})\n"
    )
    return file


def tiny_config(algorithm="ditto", **changes):
    """Returns a config of digits: 2 rounds with 2 of 4 clients, and 4 hidden units."""
    config = default_config(algorithm)
    config.rounds = 2
    config.clients_per_round = 2
    config.data.num_clients = 4
    config.local.epochs = 1
    config.model.options.hidden = (4,)
    config.update(changes)
    return config


def with_settings(change):
    """Returns a function that copies a run to a path and changes its saved config."""

    def copy(run, path):
        shutil.copytree(run, path)
        settings = json.loads((path / "config.json").read_text())
        change(settings)
        (path / "config.json").write_text(json.dumps(settings))

    return copy


def config_of_flags(monkeypatch, *arguments):
    """Returns the config of a command line, parsed and checked as by programs."""
    monkeypatch.setattr(flags, "FLAGS", flags.FlagValues())
    argv = ["program", *arguments]
    config_flags.DEFINE_config_file("config", flag_values=flags.FLAGS, sys_argv=argv)
    parse_flags(argv)
    check_config(flags.FLAGS.config)
    return flags.FLAGS.config
