"""Which context the flags of programs ask for."""

import os
import sys

import pytest
from absl.flags import FLAGS
from absl.testing import flagsaver

from tff_pfl import runtime
from tff_pfl.runtime import flags

CHOOSE = {"set": flags.set_context_from_flags, "create_async": flags.async_context_from_flags}


@pytest.fixture
def parse():
    """`(*arguments)`: parses a command line, for the time of a test."""
    with flagsaver.flagsaver():
        yield lambda *arguments: FLAGS(["program", *arguments])
        FLAGS.unparse_flags()


@pytest.mark.parametrize("how", CHOOSE)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--runtime=cpp", "--devices=CPU:0"], "--devices and --workers are for"),
        (["--runtime=remote"], "--runtime=remote and --tff_worker belong together"),
        (["--tff_worker=a:1"], "--runtime=remote and --tff_worker belong together"),
    ],
)
def test_flags_that_do_not_fit(parse, how, arguments, message):
    parse(*arguments)
    with pytest.raises(runtime.DeviceError, match=message):
        CHOOSE[how]()


@pytest.mark.parametrize("how", CHOOSE)
@pytest.mark.parametrize(
    ("arguments", "kind", "given"),
    [
        ([], "graph", [("devices", None)]),
        (["--devices=CPU:0"], "graph", [("devices", ["CPU:0"])]),
        (["--runtime=cpp"], "cpp", []),
        (["--runtime=remote", "--tff_worker=a:1"], "remote", ["a:1"]),
    ],
)
def test_what_flags_choose(parse, monkeypatch, how, arguments, kind, given):
    calls = []

    def record(*args, **options):
        calls.append([*args, *options.items()])

    monkeypatch.setattr(runtime, f"{how}_{kind}_context", record, raising=False)
    parse(*arguments)
    CHOOSE[how]()
    assert calls == [given]


@pytest.mark.parametrize(
    ("lost", "workers"),
    [
        (["a:1"], ["--workers=b:2"]),
        ([], ["--workers=a:1,b:2"]),
        (["a:1", "b:2"], ["--workers=a:1,b:2"]),  # which says that nobody answers
        (None, []),
    ],
)
def test_restart_on_those_who_answer(parse, monkeypatch, capsys, lost, workers):
    executed = []
    monkeypatch.setattr(os, "execv", lambda *command: executed.append(command))
    monkeypatch.setattr(sys, "orig_argv", ["python", "-I", "train.py", "--resume"])
    monkeypatch.setattr(runtime, "answers", lambda worker: worker not in lost)
    parse(*([] if lost is None else ["--workers=a:1,b:2"]))
    flags.restart("--restarts=0")
    added = ["--restarts=0", *workers]
    assert executed == [
        (sys.executable, [sys.executable, "-I", "train.py", "--resume", *added]),
    ]
    assert capsys.readouterr().err == f"starting again: {' '.join(added)}\n"
