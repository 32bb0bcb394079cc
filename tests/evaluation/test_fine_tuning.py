"""Fine-tuning of each client's own model, before it is evaluated."""

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.federation import (
    EXAMPLES_TYPE,
    assert_close,
    assert_equal,
    make_clients,
    run_rounds,
    tiny_model,
)
from tff_pfl import runtime
from tff_pfl.algorithms import build
from tff_pfl.evaluation import fine_tuned
from tff_pfl.local import LocalSGD
from tff_pfl.templates import ClientContext
from tff_pfl.templates.blocks import client_seed

MODEL = tiny_model()
SIZES = (6, 9, 5, 0)
COHORTS = ((0, 1), (1, 3))  # the third client takes part in no round
SEED, EPOCHS = 5, 3
# Of FedAvg, Ditto, whose clients keep models and optimizers, and pFedHN, which sends each its own.
ALGORITHMS = {"fedavg": {}, "ditto": {}, "pfedhn": {"hidden_width": 6}}
each_algorithm = pytest.mark.parametrize("name", ALGORITHMS)


@pytest.fixture(scope="module", autouse=True)
def clients_in_a_loop():
    """Without vectorization, whose graphs take seconds to build."""
    context = runtime.create_graph_context(vectorize="never")
    with tff.framework.get_context_stack().install(context):
        yield


@functools.cache
def local_of(name):
    """With momentum that persists, where the algorithm keeps it, and a rate that decays."""
    return LocalSGD(
        tff.learning.optimizers.build_sgdm(0.4, momentum=0.5),
        steps=2,
        batch_size=4,
        learning_rate_decay=0.5,
        persist_optimizer_state=name != "pfedhn",
    )


@functools.cache
def process_of(name):
    return build(
        name,
        MODEL,
        EXAMPLES_TYPE,
        local_of(name),
        num_clients=len(SIZES),
        clients_per_round=2,
        seed=1,
        **ALGORITHMS[name],
    )


@functools.cache
def fine_tuned_process_of(name, epochs=EPOCHS):
    return fine_tuned(process_of(name), MODEL, local_of(name), epochs=epochs, seed=SEED)


def run(process, evaluate=lambda state, clients: None):
    """`(server state, clients)` after each round."""
    rounds = []
    for state, clients in run_rounds(process, make_clients(process, SIZES), COHORTS):
        evaluate(state, clients)
        rounds.append((state, clients))
    return rounds


@each_algorithm
def test_clients_train_their_own_models_on_their_examples(name):
    """As in a round, but with a new optimizer, for other epochs and by other seeds."""
    process, tuned = process_of(name), fine_tuned_process_of(name)
    local = dataclasses.replace(local_of(name), steps=None, persist_optimizer_state=False)
    for state, clients in run(process):
        before = process.personalize(state, clients)
        after = tuned.personalize(state, clients)
        for client, weights, found in zip(clients, before, after, strict=True):
            seed = client_seed((SEED, -1), state.round_num, client.client_id)
            context = ClientContext(state.round_num, client.client_id, seed)
            expected = local.train(MODEL, weights, client.data, context, epochs=EPOCHS)
            assert_close(found, expected.weights)
            if client.data.size:
                assert np.max(np.abs(found["head"]["bias"] - weights["head"]["bias"])) > 0.01
            else:
                assert_equal(found, weights)


@each_algorithm
def test_all_else_is_as_without(name):
    process, tuned = process_of(name), fine_tuned_process_of(name)
    assert_equal(run(tuned, evaluate=tuned.personalize), run(process))
    for attribute in ("global_weights", "snapshot", "client_snapshot", "client_type"):
        assert getattr(tuned, attribute) is getattr(process, attribute)


@each_algorithm
def test_no_epochs_are_the_models_as_they_are(name):
    process, tuned = process_of(name), fine_tuned_process_of(name, epochs=0)
    state, clients = run(process)[-1]
    assert_equal(tuned.personalize(state, clients), process.personalize(state, clients))


def test_negative_epochs():
    with pytest.raises(ValueError, match="epochs must be a whole number of at least 0, got -1"):
        fine_tuned(process_of("fedavg"), MODEL, local_of("fedavg"), epochs=-1)
