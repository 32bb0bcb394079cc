"""Tests the contexts that the flags of programs select."""

import os
import sys

import pytest
from absl.flags import FLAGS
from absl.testing import flagsaver

from tff_pfl import runtime
from tff_pfl.runtime import flags


@pytest.fixture
def parse():
    """A function `(*arguments)` that parses a command line for the duration of a test."""
    with flagsaver.flagsaver():
        yield lambda *arguments: FLAGS(["program", *arguments])
        FLAGS.unparse_flags()


def test_remote_runtime_needs_a_worker(parse):
    parse("--runtime=remote")
    with pytest.raises(runtime.DeviceError, match="--runtime=remote needs --tff_worker"):
        flags.set_context_from_flags()


GRAPH = {"devices": None, "jit_compile": None}


@pytest.mark.parametrize(
    ("arguments", "kind", "given", "unused"),
    [
        ([], "graph", GRAPH, None),
        (["--devices=CPU:0"], "graph", GRAPH | {"devices": ["CPU:0"]}, None),
        (["--tff_worker=a", "--jit_compile"], "graph", GRAPH | {"jit_compile": True}, "tff_worker"),
        (["--runtime=cpp", "--devices=CPU:0"], "cpp", [], "devices"),
        (["--runtime=remote", "--tff_worker=a:1"], "remote", ["a:1"], None),
    ],
)
def test_flags_select_the_context(parse, monkeypatch, caplog, arguments, kind, given, unused):
    calls = []

    def record(*args, **options):
        calls.append(options or [*args])

    for verb in ("set", "create_async"):
        monkeypatch.setattr(runtime, f"{verb}_{kind}_context", record, raising=False)
    parse(*arguments)
    with caplog.at_level("WARNING", logger="absl"):
        flags.set_context_from_flags()
    assert calls == [given]
    assert [unused] == ([m.partition(" has no effect")[0][2:] for m in caplog.messages] or [None])
    flags.async_context_from_flags()
    assert calls == [given, given]


def test_restart_appends_flags(monkeypatch, capsys):
    executed = []
    monkeypatch.setattr(os, "execv", lambda *command: executed.append(command))
    monkeypatch.setattr(sys, "orig_argv", ["python", "-I", "train.py", "--resume"])
    flags.restart("--restarts=0")
    assert executed == [
        (sys.executable, [sys.executable, "-I", "train.py", "--resume", "--restarts=0"]),
    ]
    assert capsys.readouterr().err == "Restarting with: --restarts=0\n"
