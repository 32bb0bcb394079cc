"""Tests training before evaluation, of each client's own model and of the global model."""

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.federation import (
    assert_close,
    assert_equal,
    local_sgd,
    make_clients,
    run_rounds,
    tiny_model,
)
from tff_pfl.algorithms import ditto, make
from tff_pfl.evaluation import fine_tuned, locally_trained
from tff_pfl.local import ClientContext, LocalTraining
from tff_pfl.local.seeds import FINE_TUNING, client_seed, run_seed
from tff_pfl.testing.eager import EagerProcess

MODEL = tiny_model()
SIZES = (4, 6, 3, 0)
COHORTS = ((0, 1), (1, 3))  # The third client takes part in no round.
LAST_ROUND = len(COHORTS) - 1  # Fine-tuning has its rate.
SEED, EPOCHS = 5, 2
# Clients of Ditto keep models and optimizers; pFedHN sends each client another model.
ALGORITHMS = {"fedavg": {}, "ditto": {}, "pfedhn": {"hidden_width": 6}}
each_algorithm = pytest.mark.parametrize("name", ALGORITHMS)


def local_of(name):
    """Returns local training with a decaying rate, and persistent momentum except for pFedHN."""
    return LocalTraining(
        tff.learning.optimizers.build_sgdm(0.4, momentum=0.5),
        steps=2,
        batch_size=4,
        learning_rate_decay=0.5,
        persist_optimizer_state=name != "pfedhn",
    )


@functools.cache
def algorithm_of(name):
    return make(name, MODEL, local_of(name), num_clients=len(SIZES), **ALGORITHMS[name])


def tuned_algorithm_of(name, epochs=EPOCHS):
    return fine_tuned(algorithm_of(name), local_of(name), epochs=epochs)


@functools.cache
def rounds_of(name):
    """Returns `(server state, clients)` after each round."""
    process = EagerProcess(algorithm_of(name), SEED)
    return list(run_rounds(process, make_clients(process, SIZES), COHORTS))


@functools.cache
def models_of(name, epochs=None):
    """Returns the models of all clients after the last round, including one without examples."""
    algorithm = algorithm_of(name) if epochs is None else tuned_algorithm_of(name, epochs)
    return EagerProcess(algorithm, SEED).personalize(*rounds_of(name)[-1])


@pytest.mark.thorough
@each_algorithm
def test_fine_tuned_trains_own_models_on_own_examples(name):
    """Uses a new optimizer, and its own epochs and seeds."""
    local = dataclasses.replace(local_of(name), steps=None, persist_optimizer_state=False)
    state, clients = rounds_of(name)[-1]
    models = zip(clients, models_of(name), models_of(name, EPOCHS), strict=True)
    for client, weights, found in models:
        seed = client_seed(run_seed(SEED, FINE_TUNING), state.round_num, client.client_id)
        context = ClientContext(LAST_ROUND, client.client_id, seed)
        expected = local.train(MODEL, weights, client.data, context, epochs=EPOCHS)
        assert_close(found, expected.weights)
        if client.data.size:
            assert np.max(np.abs(found["head"]["bias"] - weights["head"]["bias"])) > 0.01
        else:
            assert_equal(found, weights)


def test_fine_tuned_changes_only_fine_tune():
    """Keeps all functions, and thus all rounds."""
    algorithm, tuned = algorithm_of("ditto"), tuned_algorithm_of("ditto")
    same = dataclasses.replace(tuned.personalize, fine_tune=None)
    assert dataclasses.replace(tuned, personalize=same) == algorithm


def test_fine_tuning_between_rounds_does_not_change_them():
    process = EagerProcess(tuned_algorithm_of("ditto"), SEED)
    found = []
    for state, clients in run_rounds(process, make_clients(process, SIZES), COHORTS):
        process.personalize(state, clients[:1])
        found.append((state, clients))
    assert_equal(found, rounds_of("ditto"))


def test_zero_epochs_keep_the_models():
    assert_equal(models_of("ditto", epochs=0), models_of("ditto"))


def test_locally_trained_trains_the_global_model():
    """Trains as in a round, with a new optimizer, and ignores the client's state."""
    algorithm = algorithm_of("ditto")
    local = dataclasses.replace(
        local_of("ditto"), batch_size=max(SIZES), persist_optimizer_state=False
    )
    trained = locally_trained(algorithm, local)
    assert dataclasses.replace(trained, personalize=algorithm.personalize) == algorithm
    state, clients = rounds_of("ditto")[-1]
    models = EagerProcess(trained, SEED).personalize(state, clients)
    # A client's examples are one batch, so the order that the seed draws has no effect.
    for client, found in zip(clients, models, strict=True):
        context = ClientContext(LAST_ROUND, client.client_id, np.array([0, 0], np.int32))
        start = state.algorithm.weights
        assert_close(found, local.train(MODEL, start, client.data, context).weights)
        assert not np.allclose(found["head"]["bias"], start["head"]["bias"]) or not client.data.size


def test_locally_trained_needs_a_global_model():
    with pytest.raises(ValueError, match="'locally_trained' is the global model after"):
        locally_trained(make("local", MODEL, local_sgd()), local_sgd())


def test_algorithm_that_make_did_not_make_must_state_its_model():
    with pytest.raises(ValueError, match="evaluated_model of the algorithm is not set"):
        fine_tuned(ditto(MODEL, local_sgd()), local_sgd(), epochs=1)
