"""What every process that runs tests begins with: quiet libraries, one runtime."""

import gc
import signal

import pytest

from tests.sharing import shared_processes
from tff_pfl.runtime.startup import prepare_process

prepare_process()
# Shells have what they start in the background ignore interruption; the programs that tests
# interrupt would inherit it.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Graphs are traced all the time, of objects that live on: looking for garbage less often spares a
# twentieth of the time.
gc.set_threshold(10_000, 20, 20)


def pytest_addoption(parser):
    parser.addoption(
        "--reference",
        choices=["stock", "graph"],
        default="stock",
        help="What conformance is to: TFF's stock runtime or, where that is not installed, the "
        "graph runtime on the CPU, a client at a time.",
    )


@pytest.fixture(scope="session", autouse=True)
def graph_context():
    """Executes TFF's computations as programs do, unless a test says otherwise."""
    from tff_pfl import runtime  # not before the process is prepared

    runtime.set_graph_context()


@pytest.fixture(scope="session", autouse=True)
def processes_of_runs():
    """Built once for all tests of a process, see `tests/sharing.py`."""
    with shared_processes():
        yield
