"""Tests the effect of each part of FedPG, on handwritten digits with two classes a client."""

import collections

import numpy as np
import pytest

from tests.federation import local_sgd
from tff_pfl import models
from tff_pfl.algorithms import build_fedpg
from tff_pfl.clients import ClientStateStore, CohortDataSource
from tff_pfl.data import federate
from tff_pfl.datasets import load
from tff_pfl.evaluation import Evaluation, Evaluator
from tff_pfl.local import examples_type

ROUNDS, SEEDS = 400, (0, 1, 2)
VARIANTS = {
    "fedpg": {},
    "m1": {"direction": "mean"},
    "m2": {"fairness": False},
    "m3": {"personalize": False},
    "m4": {"absent_memory": False},
    "gamma 1": {"gamma_mode": "constant", "gamma": 1.0},
}


@pytest.fixture(scope="module")
def results():
    """The evaluation of each variant on training and test data, for each seed."""
    images = load("digits")
    results = {name: [] for name in VARIANTS}
    for seed in SEEDS:
        dataset = federate(
            images,
            num_clients=30,
            partitioner="classes_per_client",
            partition_args={"classes": 2},
            merge=True,
            fractions=(0.75, 0.0, 0.25),
            seed=seed,
        )
        model = models.build("mlp", dataset.image_shape, 10, hidden=(32,))
        for name, options in VARIANTS.items():
            process = build_fedpg(
                model, examples_type(dataset.image_shape), local_sgd(0.1), **options, seed=seed
            )
            store = ClientStateStore(process.initialize_clients, process.client_state_type)
            source = CohortDataSource(dataset, store, process.client_type, seed=seed)
            iterator, state = source.iterator(), process.initialize()
            for _ in range(ROUNDS):
                output = process.next(state, iterator.select(6))
                state = output.state
                iterator.update(output.clients)
            evaluator = Evaluator(process, dataset, Evaluation())
            found = (evaluator.on_own_examples(state, source, split) for split in ("train", "test"))
            results[name].append(collections.ChainMap(*(split.columns() for split in found)))
    return results


def mean(results, name, column, statistic=np.mean):
    return np.mean([statistic(columns[column]) for columns in results[name]])


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ablations_are_worse_than_fedpg(results):
    """Tests the orderings of losses, their spreads, and accuracies."""
    loss = {name: mean(results, name, "global/local_train/loss") for name in VARIANTS}
    spread = {name: mean(results, name, "global/local_train/loss", np.std) for name in VARIANTS}
    accuracy = {name: mean(results, name, "personalized/local_test/accuracy") for name in VARIANTS}
    print(loss, spread, accuracy)
    assert loss["fedpg"] < loss["m2"] < loss["m1"]
    assert loss["fedpg"] < loss["m4"]
    assert spread["fedpg"] < min(spread[name] for name in ("m1", "m2", "m4"))
    assert accuracy["gamma 1"] >= accuracy["fedpg"]
    assert loss["m3"] == pytest.approx(
        loss["fedpg"], rel=1e-3
    )  # gamma does not change the global model
