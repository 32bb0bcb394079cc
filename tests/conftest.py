"""Prepares every process that runs tests: its libraries, its runtime and shared fixtures."""

import gc
import importlib
import os
import signal

import pytest

from tests import cheap_tracing
from tests.sharing import shared_processes
from tff_pfl.runtime.startup import prepare_process

# Shells make background processes ignore SIGINT, which programs that tests interrupt would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config):
    """Prepares TensorFlow, except in a process that only distributes tests to workers."""
    os.environ.setdefault("TFF_PFL_CACHE", str(config.rootpath / ".pytest_cache" / "frozen"))
    if hasattr(config, "workerinput") or config.getoption("dist", "no") == "no":
        prepare_process()
        cheap_tracing.apply()
        tf = importlib.import_module("tensorflow")  # after the process is prepared
        tf.debugging.disable_traceback_filtering()  # failing tests show lines of the library


@pytest.hookimpl(tryfirst=True)  # before -m deselects tests
def pytest_collection_modifyitems(items):
    """Marks all cases but the first of tests that are `thorough_but_one` as thorough."""
    seen = set()
    for item in items:
        if item.get_closest_marker("thorough_but_one") and not item.get_closest_marker("slow"):
            if item.function in seen:
                item.add_marker(pytest.mark.thorough)
            seen.add(item.function)


def pytest_collection_finish():
    """Excludes imported objects from garbage collection, which saves a second each time."""
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def graph_context():
    """Sets the context of programs, unless a test sets another one."""
    from tff_pfl import runtime  # imported after the process is prepared

    runtime.set_graph_context()


@pytest.fixture(scope="session", autouse=True)
def processes_of_runs():
    """Shares processes of configs among the tests; see `tests/sharing.py`."""
    with shared_processes():
        yield


@pytest.fixture(scope="session", autouse=True)
def runs_without_pictures():
    """Skips pictures of partitions, which `tests/data` and started programs draw."""
    from tff_pfl.experiment import rounds  # imported after the process is prepared

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounds, "plot_partition", lambda dataset, path: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def files_without_a_disk():
    """Skips waiting for the disk, because files of tests need not survive a power cut."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(autouse=True)
def registered_names_end():
    """Forgets the names that a test registers."""
    from tests.own_modules import own_names  # imported after the process is prepared

    with own_names():
        yield


@pytest.fixture(scope="session")
def context_of_loops():
    """Returns one context for all modules, which then share the graphs of shared processes."""
    from tff_pfl import runtime  # imported after the process is prepared

    return runtime.create_graph_context(vectorize="never")


@pytest.fixture(scope="module")
def clients_in_a_loop(context_of_loops):
    """Disables vectorization, whose graphs take seconds to build.

    `tests/runtime/conformance` tests that the results are the same.
    """
    import tensorflow_federated as tff

    with tff.framework.get_context_stack().install(context_of_loops):
        yield


def pytest_sessionfinish():
    """Skips garbage collection at the end of the interpreter."""
    gc.freeze()


@pytest.fixture(scope="session")
def dask_client():
    """Has one worker, in this process."""
    import distributed  # here, since few tests need it

    options = {"n_workers": 1, "threads_per_worker": 1, "memory_limit": 0}
    with distributed.Client(
        processes=False, dashboard_address="127.0.0.1:0", set_as_default=False, **options
    ) as client:
        yield client
