"""The runtime of tests of runs, and finished runs that several files look at."""

import pytest
import tensorflow_federated as tff

from tests.experiment.killed import run
from tests.federation import random_examples
from tests.runs import tiny_config, train_run
from tff_pfl.data import FederatedDataset


@pytest.fixture(scope="module", autouse=True)
def in_a_loop(clients_in_a_loop):
    """All of them run clients one after another, and share their graphs."""


@pytest.fixture(scope="session")
def dataset():
    """Five clients of five to nine examples, which test on what they train on."""
    data = [random_examples(5 + i, seed=i) for i in range(5)]
    return FederatedDataset.from_client_arrays([(d.x, d.y, d.x, d.y) for d in data], 3)


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory, dataset, context_of_loops):
    """`(folder, result)` of a run of Ditto by `tests.experiment.killed.run`; tests only read it."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    with tff.framework.get_context_stack().install(context_of_loops):
        return folder, run(folder, dataset)


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory, context_of_loops):
    """`(algorithm, **changes) -> folder` of a finished run by `tiny_config`, made once.

    Tests do not change it.
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
