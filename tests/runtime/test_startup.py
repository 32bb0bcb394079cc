"""`prepare_process` hides harmless output, and nothing else."""

import gc
import signal
import subprocess
import sys
import types

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


def test_it_imports_no_tensorflow_and_other_exceptions_at_exit_are_reported():
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("Exception ignored in") == 1
    assert ended.stderr.strip().endswith("ValueError: worth knowing")


def test_ctrl_c_is_one_line_also_while_modules_are_imported():
    script = "from tff_pfl.runtime.startup import prepare_process; prepare_process(); raise "
    done = run_python("-c", script + "KeyboardInterrupt")
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "\ninterrupted\n")
    assert "Traceback" in run_python("-c", script + "ValueError").stderr


def test_the_process_looks_for_garbage_less_often():
    startup.prepare_process()
    assert gc.isenabled() and gc.get_threshold() == (10_000, 20, 20)


def test_the_known_destructors_are_dropped_only_at_exit(monkeypatch):
    def fails():
        pass

    fails.__module__, fails.__qualname__ = next(iter(startup._HARMLESS_AT_EXIT))
    reported = []
    for is_finalizing in (True, False):
        monkeypatch.setattr(sys, "is_finalizing", lambda value=is_finalizing: value)
        hook = startup._without(startup._HARMLESS_AT_EXIT, reported.append)
        hook(types.SimpleNamespace(object=fails))
        assert len(reported) == (0 if is_finalizing else 1)
