"""Tests that `prepare_process` hides harmless output only."""

import signal

import pytest

from tests.runs import run_python

PROGRAM = """
import sys
from tff_pfl.runtime import startup
startup.prepare_process()
startup.prepare_process()
assert "tensorflow" not in sys.modules
class Fails:
    def __del__(self):
        raise ValueError("worth knowing")
class FailsLate:
    def __del__(self):
        raise ValueError("harmless at exit")
late = FailsLate.__del__
late.__module__, late.__qualname__ = next(iter(startup._HARMLESS_AT_EXIT))
FailsLate()
print("exits", file=sys.stderr)
keep = Fails(), FailsLate()
"""


def test_prepare_process_imports_no_tensorflow_and_hides_harmless_exceptions_at_exit():
    ended = run_python("-c", PROGRAM)
    assert ended.returncode == 0, ended.stderr
    before, at_exit = ended.stderr.split("exits\n")
    assert before.strip().endswith("ValueError: harmless at exit")
    assert at_exit.count("Exception ignored in") == 1
    assert at_exit.strip().endswith("ValueError: worth knowing")


def test_ctrl_c_prints_one_line_even_during_imports():
    script = "from tff_pfl.runtime.startup import prepare_process; prepare_process(); raise "
    done = run_python("-c", script + "KeyboardInterrupt")
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "\ninterrupted\n")
    assert "Traceback" in run_python("-c", script + "ValueError").stderr


WITH_TFF = """
import tff_pfl
import tensorflow_federated as tff

print(tff.tensorflow.computation(lambda: 3)())
"""


@pytest.mark.thorough
def test_import_silences_tensorflow_and_ends_the_workers_of_tff():
    """Reads the output to its end, which a worker that is left would hold open."""
    done = run_python("-c", WITH_TFF)
    assert (done.returncode, done.stdout, done.stderr) == (0, "3\n", "")
