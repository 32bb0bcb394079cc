"""Prepares every process that runs tests: quiet libraries, one runtime."""

import gc
import os
import signal

import pytest

from tests import cheap_tracing
from tests.sharing import shared_processes
from tff_pfl.runtime.startup import prepare_process

# Shells have what they start in the background ignore interruption; the programs that tests
# interrupt would inherit it.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config):
    """TensorFlow is not for a process that has others run the tests: they need not wait for it."""
    if hasattr(config, "workerinput") or config.getoption("dist", "no") == "no":
        prepare_process()
        cheap_tracing.apply()


def pytest_collection_finish():
    """Spares each full search for garbage a second: what the imports made stays."""
    gc.freeze()


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


@pytest.fixture(scope="session", autouse=True)
def runs_without_pictures():
    """Draws no partitions, which `tests/data` and the programs that tests start do."""
    from tff_pfl.experiment import rounds  # not before the process is prepared

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounds, "plot_partition", lambda dataset, path: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def files_without_a_disk():
    """Hundreds of runs do not wait for the disk; what they write needs not survive a power cut."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session")
def context_of_loops():
    """One for all modules, so that they share the graphs of the processes that they share."""
    from tff_pfl import runtime  # not before the process is prepared

    return runtime.create_graph_context(vectorize="never")


@pytest.fixture(scope="module")
def clients_in_a_loop(context_of_loops):
    """Without vectorization, whose graphs take seconds to build.

    That it makes no difference is tested in `tests/runtime/conformance`.
    """
    import tensorflow_federated as tff

    with tff.framework.get_context_stack().install(context_of_loops):
        yield


def pytest_sessionfinish():
    """Nothing is looked at again when the interpreter ends."""
    gc.freeze()
