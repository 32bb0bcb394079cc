"""Algorithms that become one another at the ends of their hyper-parameters."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.federation import (
    assert_close,
    assert_equal,
    eager,
    last,
    leaves,
    local_sgd,
    make_clients,
    random_examples,
    run_rounds,
    tiny_model,
)
from tff_pfl.local import ClientContext, LocalTraining, exact_gradient, trees
from tff_pfl.local.seeds import client_seed
from tff_pfl.templates import Client

MODEL = tiny_model()
build_sgdm = tff.learning.optimizers.build_sgdm
SIZES = (4, 6, 3)
# Who takes part in each round.
COHORTS = ((0, 1), (1, 2), (0, 2))


def build(name, local=None, **options):
    return eager(name, MODEL, local or local_sgd(), **options, seed=1)


def run(process, sizes=SIZES, cohorts=COHORTS):
    """`(server state, clients)` after some rounds."""
    return last(run_rounds(process, make_clients(process, sizes), cohorts))


@pytest.fixture(scope="module")
def fedavg():
    return run(build("fedavg"))


@pytest.fixture(scope="module")
def local():
    return run(build("local"))


class TestDitto:
    def test_without_lambda_the_personal_models_are_local(self, local):
        _, clients = run(build("ditto", lambda_=0.0))
        assert_equal([c.state.model for c in clients], [c.state.model for c in local[1]])

    @pytest.mark.parametrize("lambda_", [0.0, 0.7])
    def test_the_global_model_is_fedavg_whatever_lambda(self, fedavg, lambda_):
        state, _ = run(build("ditto", lambda_=lambda_))
        assert_equal(state.algorithm.weights, fedavg[0].algorithm.weights)

    def test_lambda_pulls_to_the_received_model(self):
        process = build("ditto", local_sgd(learning_rate=0.01, epochs=2), lambda_=99.0)
        state = process.initialize()
        clients = make_clients(process, SIZES)
        moved = [  # personal models far from the global one
            c._replace(state=c.state._replace(model=trees.add(c.state.model, ones_like(c))))
            for c in clients
        ]
        output = process.next(state, moved)
        for new in output.clients:
            # v - w shrinks by (1 - eta * lambda) = 0.01 at each of two steps or more.
            assert_close(new.model, state.algorithm.weights, tolerance=0.02)

    def test_personal_epochs(self, local):
        _, clients = run(build("ditto", lambda_=0.0, personal_epochs=0))
        assert_equal([c.state.model for c in clients], [MODEL.init(1)] * 3)
        _, clients = run(build("ditto", local_sgd(epochs=2), lambda_=0.0, personal_epochs=1))
        assert_equal([c.state.model for c in clients], [c.state.model for c in local[1]])


def ones_like(client):
    return tf.nest.map_structure(np.ones_like, client.state.model)


class TestFedPer:
    def test_without_personal_layers_it_is_fedavg(self, fedavg):
        state, _ = run(build("fedper", personal_layers=()))
        assert_equal(state.algorithm.weights, fedavg[0].algorithm.weights)

    def test_with_all_layers_personal_it_is_local(self, local):
        _, clients = run(build("fedper", personal_layers=MODEL.layers))
        assert_equal([c.state.head for c in clients], [c.state.model for c in local[1]])

    def test_heads_differ_and_stay_with_their_clients(self):
        process = build("fedper")
        state, clients = run(process)
        assert list(state.algorithm.weights) == ["dense1"]
        heads = [leaves(c.state.head) for c in clients]
        assert not np.allclose(heads[0][0], heads[1][0])
        for model, client in zip(process.personalize(state, clients), clients, strict=True):
            assert_equal(model["dense1"], state.algorithm.weights["dense1"])
            assert_equal(model["head"], client.state.head["head"])


class TestFedAvg:
    def test_the_weighted_average_of_local_models(self):
        cohorts = ((0, 1, 2),)
        for weighting, weights in (("num_examples", SIZES), ("uniform", (1, 1, 1))):
            process = build("fedavg", personalized="local", weighting=weighting)
            state, clients = run(process, cohorts=cohorts)
            models = [leaves(c.state.model) for c in clients]
            expected = [np.average(layer, axis=0, weights=weights) for layer in zip(*models)]  # noqa: B905
            assert_close(leaves(state.algorithm.weights), expected, tolerance=1e-6)

    def test_one_client_a_round_is_that_clients_sgd(self):
        state, _ = run(build("fedavg"), cohorts=((1,),))
        context = ClientContext(
            round_num=tf.constant(0), client_id=tf.constant(1), seed=client_seed((1, 0), 0, 1)
        )
        trained = local_sgd().train(MODEL, MODEL.init(1), random_examples(6, seed=1), context)
        assert_close(state.algorithm.weights, trained.weights, tolerance=1e-6)

    def test_one_full_batch_step_of_all_is_gradient_descent_on_the_weighted_loss(self):
        local = local_sgd(learning_rate=0.3, epochs=1, batch_size=16)
        state, clients = run(build("fedavg", local), cohorts=((0, 1, 2),))
        weights = MODEL.init(1)
        gradients = [leaves(exact_gradient(MODEL, weights, c.data).gradient) for c in clients]
        mean = [np.average(g, axis=0, weights=SIZES) for g in zip(*gradients)]  # noqa: B905
        expected = [w - 0.3 * g for w, g in zip(leaves(weights), mean, strict=True)]
        assert_close(leaves(state.algorithm.weights), expected, tolerance=1e-6)

    def test_the_rate_of_the_servers_sgd_scales_the_step(self):
        start, cohorts = leaves(MODEL.init(1)), ((0, 1),)
        full = leaves(run(build("fedavg"), cohorts=cohorts)[0].algorithm.weights)
        half, _ = run(build("fedavg", server_optimizer=build_sgdm(0.5)), cohorts=cohorts)
        expected = [a + 0.5 * (b - a) for a, b in zip(start, full, strict=True)]
        assert_close(leaves(half.algorithm.weights), expected, tolerance=1e-6)

    def test_the_model_that_is_evaluated_as_personal(self):
        process = build("fedavg", personalized="global")
        state, clients = run(process, cohorts=((0, 1),))
        assert_equal(process.personalize(state, clients), [state.algorithm.weights] * 3)
        assert_equal(process.global_weights(state), state.algorithm.weights)

        process = build("fedavg", personalized="local")
        state, clients = run(process, cohorts=((0, 1),))
        models = process.personalize(state, clients)
        assert_equal(models[:2], [c.state.model for c in clients[:2]])
        assert_equal(models[2], state.algorithm.weights)


def test_momentum_starts_anew_and_the_rate_decays():
    """Two rounds of one full-batch step each: momentum has no effect, the second rate is halved."""
    local = LocalTraining(
        build_sgdm(0.4, momentum=0.9),
        batch_size=16,
        learning_rate_decay=0.5,
    )
    process = build("local", local)
    (client,) = make_clients(process, (5,))
    state, weights = process.initialize(), MODEL.init(1)
    for rate in (0.4, 0.2):
        output = process.next(state, [client])
        state, client = output.state, Client(client.client_id, output.clients[0], client.data)
        gradient = exact_gradient(MODEL, weights, client.data).gradient
        weights = trees.subtract(weights, trees.scale(gradient, rate))
        assert_close(client.state.model, weights, tolerance=1e-6)
