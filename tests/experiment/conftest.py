"""Provides the runtime of tests of runs, and finished runs that several files share."""

import pytest
import tensorflow_federated as tff

from tests.experiment.killed import run, tiny_dataset
from tests.runs import tiny_config, train_run


@pytest.fixture(scope="module", autouse=True)
def in_a_loop(clients_in_a_loop):
    """Makes all tests here run clients one after another, to share their graphs."""


@pytest.fixture(scope="session")
def dataset():
    return tiny_dataset()


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory, dataset, context_of_loops):
    """Returns `(folder, result)` of a run of Ditto, which tests only read."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    with tff.framework.get_context_stack().install(context_of_loops):
        return folder, run(folder, dataset)


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory, context_of_loops):
    """Returns `(algorithm, **changes) -> folder` of a finished run of `tiny_config`.

    Each run is trained once, and tests only read it.
    """
    made = {}

    def folder_of(algorithm="ditto", **changes):
        key = repr((algorithm, changes))
        if key not in made:
            folder = tmp_path_factory.mktemp("runs") / "run"
            with tff.framework.get_context_stack().install(context_of_loops):
                made[key] = train_run(folder, tiny_config(algorithm, **changes))
        return made[key]

    return folder_of
