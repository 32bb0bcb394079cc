"""Tests `tff-pfl NAME`, which runs the programs of an installed library."""

import os
import sys

import pytest

from tests.runs import ROOT, run_python
from tff_pfl import __main__ as command
from tff_pfl.config import ConfigError, read_config
from tff_pfl.shipped import config_file
from tff_pfl.studies import load_study

PROGRAMS = {path.stem for path in (ROOT / "programs").glob("*.py")}


def test_help_lists_the_programs(monkeypatch, capsys):
    for arguments in ([], ["--help"]):
        monkeypatch.setattr(sys, "argv", ["tff-pfl", *arguments])
        command.main()
        printed = capsys.readouterr().out
        listed = {line.split()[0] for line in printed.splitlines() if line.startswith("  ")}
        assert listed - {"tff-pfl"} == PROGRAMS


def test_unknown_program_is_refused(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["tff-pfl", "trian"])
    with pytest.raises(SystemExit, match="error: Unknown program 'trian'"):
        command.main()


def test_program_runs_as_in_a_clone(tmp_path):
    options = ("--config=digits.py:fedavgg", f"--output_dir={tmp_path}")
    ended = run_python("-m", "tff_pfl", "train", *options, folder=tmp_path)
    assert ended.returncode == 1
    assert "Unknown algorithm 'fedavgg'" in ended.stderr
    assert ended.stderr.count("\n") == 2  # with the advice to pass --help


def test_config_of_the_library_needs_no_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("digits.py", "configs/digits.py"):
        config = read_config([f"--config={name}:fedper", "--config.rounds=7"])
        assert (config.algorithm.name, config.rounds) == ("fedper", 7)
    assert load_study("studies/methods_on_digits.py").variants
    with pytest.raises(ConfigError, match="No such file.*'digit.py'"):
        read_config(["--config=digit.py"])


def test_file_of_the_user_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert config_file("digits.py:ditto") == f"{ROOT / 'configs' / 'digits.py'}:ditto"
    (tmp_path / "digits.py").write_text("")
    assert config_file("digits.py:ditto") == "digits.py:ditto"
    assert config_file("~/none.py") == os.path.expanduser("~/none.py")
