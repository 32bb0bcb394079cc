"""Tests that `prepare_process` hides harmless output only."""

import gc
import signal
import subprocess
import sys
import types

import pytest

from tests.runs import run_python
from tff_pfl.runtime import startup

PROGRAM = """
import sys
from tff_pfl.runtime.startup import prepare_process

prepare_process()
prepare_process()
assert "tensorflow" not in sys.modules

class Fails:
    def __del__(self):
        raise ValueError("worth knowing")

keep = Fails()
"""


def test_prepare_process_imports_no_tensorflow_and_reports_other_exceptions_at_exit():
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("Exception ignored in") == 1
    assert ended.stderr.strip().endswith("ValueError: worth knowing")


def test_ctrl_c_prints_one_line_even_during_imports():
    script = "from tff_pfl.runtime.startup import prepare_process; prepare_process(); raise "
    done = run_python("-c", script + "KeyboardInterrupt")
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "\ninterrupted\n")
    assert "Traceback" in run_python("-c", script + "ValueError").stderr


def test_garbage_collection_runs_less_often():
    startup.prepare_process()
    assert gc.isenabled() and gc.get_threshold() == (10_000, 20, 20)


def test_known_destructors_are_ignored_only_at_exit(monkeypatch):
    def fails():
        pass

    fails.__module__, fails.__qualname__ = next(iter(startup._HARMLESS_AT_EXIT))
    reported = []
    for is_finalizing in (True, False):
        monkeypatch.setattr(sys, "is_finalizing", lambda value=is_finalizing: value)
        hook = startup._without(startup._HARMLESS_AT_EXIT, reported.append)
        hook(types.SimpleNamespace(object=fails))
        assert len(reported) == (0 if is_finalizing else 1)


WITH_TFF = """
import tff_pfl
import tensorflow_federated as tff

print(tff.tensorflow.computation(lambda: 3)())
"""


@pytest.mark.thorough
def test_import_silences_tensorflow_and_ends_the_workers_of_tff():
    """Reads the output to its end, which a worker that is left would hold open."""
    done = subprocess.run(
        [sys.executable, "-c", WITH_TFF], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "3\n", "")
