"""pFedMB: what it becomes at its ends, its mixtures, and what its clients send."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.federation import (
    COHORTS,
    SIZES,
    assert_close,
    differ,
    last,
    local_sgd,
    make_client,
    make_clients,
    run_rounds,
    tiny_model,
    traced,
)
from tests.marks import slow

MODEL = tiny_model()
LAYERS = ("dense1", "head")
BRANCHES = 3
LOCAL = local_sgd(learning_rate_decay=0.9)


@functools.cache
def build(algorithm="pfedmb", local=LOCAL, **options):
    if algorithm == "pfedmb":
        options = {"branches": BRANCHES, **options}
    return traced(algorithm, MODEL, local, **options, seed=1)


def run(process, clients=None):
    """`(server state, clients)` after some rounds."""
    return last(run_rounds(process, clients or make_clients(process, SIZES), COHORTS))


@functools.cache
def trained(**options):
    return run(build(**options))


def frozen(**options):
    """Clients whose alpha, which is their state, stays as it is."""
    return build(parametrization="projection", alpha_epochs=0, **options)


def with_alpha(clients, alphas):
    """Clients with given coefficients, `[L, B]` each."""
    return [
        client._replace(state=client.state._replace(coefficients=np.float32(alpha)))
        for client, alpha in zip(clients, alphas, strict=True)
    ]


def alphas_of(process, clients):
    """`[number of clients, L, B]`."""
    rows = process.client_snapshot([client.state for client in clients])
    return np.array([list(of_client.values()) for of_client in rows])


class TestEquivalences:
    @pytest.mark.parametrize(
        ("alpha_weighted", "parametrization"), [(True, "softmax"), slow(False, "projection")]
    )
    def test_of_one_branch_it_is_fedavg(self, alpha_weighted, parametrization):
        process = build(branches=1, alpha_weighted=alpha_weighted, parametrization=parametrization)
        state, clients = run(process)
        expected, _ = run(build("fedavg"))
        for name in LAYERS:
            for kind, branches in state.algorithm.weights[name].items():
                assert_close(branches, expected.algorithm.weights[name][kind][np.newaxis], 1e-6)
        np.testing.assert_array_equal(alphas_of(process, clients), np.ones((3, 2, 1)))
        assert_close(process.global_weights(state), expected.algorithm.weights, 1e-6)
        assert_close(process.personalize(state, clients), [expected.algorithm.weights] * 3, 1e-6)

    def test_with_equal_alpha_both_averages_are_the_same(self):
        alpha = [[0.2, 0.5, 0.3], [0.7, 0.2, 0.1]]
        other = [[0.6, 0.1, 0.3], [0.1, 0.1, 0.8]]
        for alphas, same in (([alpha] * 3, True), ([alpha, other, alpha], False)):
            ends = []
            for alpha_weighted in (True, False):
                process = frozen(alpha_weighted=alpha_weighted)
                clients = with_alpha(make_clients(process, SIZES), alphas)
                state, clients = run(process, clients)
                assert_close(alphas_of(process, clients), np.array(alphas), 1e-7)
                ends.append(state.algorithm.weights)
            if same:
                assert_close(*ends, tolerance=1e-6)
            else:
                assert differ(*ends)


class TestMixtures:
    @pytest.mark.parametrize("parametrization", [slow("softmax"), "projection"])
    def test_they_stay_on_the_simplex(self, parametrization):
        options = {"parametrization": parametrization, "alpha_learning_rate": 6.0}
        alphas = alphas_of(build(**options), trained(**options)[1])
        assert np.all(alphas >= 0)
        np.testing.assert_allclose(np.sum(alphas, axis=-1), 1, rtol=1e-5)
        assert np.max(alphas) > 0.5
        assert np.any(alphas == 0) == (parametrization == "projection")

    @pytest.mark.parametrize("parametrization", ["softmax", slow("projection")])
    def test_snapshots_have_a_row_for_each_layer(self, parametrization):
        process = build(parametrization=parametrization)
        states = [client.state for client in trained(parametrization=parametrization)[1]]
        for found, state in zip(process.client_snapshot(states), states, strict=True):
            alpha = state.coefficients
            if parametrization == "softmax":
                alpha = np.exp(alpha) / np.sum(np.exp(alpha), axis=-1, keepdims=True)
            assert list(found) == ["alpha/dense1", "alpha/head"]
            assert_close(list(found.values()), list(alpha))

    def test_a_row_that_all_layers_share(self):
        process = build(shared_alpha=True)
        state, clients = trained(shared_alpha=True)
        assert clients[0].state.coefficients.shape == (1, BRANCHES)
        (snapshot,) = process.client_snapshot([clients[0].state])
        assert list(snapshot) == ["alpha/all layers"]
        (row,) = snapshot.values()
        assert np.ptp(row) > 1e-3
        (model,) = process.personalize(state, clients[:1])
        expected = tf.nest.map_structure(lambda w: np.tensordot(row, w, 1), state.algorithm.weights)
        assert_close(model, expected)

    def test_models_are_mixtures_of_the_current_branches(self):
        """Of equal parts, for a client never seen and as the global model."""
        process, (state, clients) = build(), trained()
        mean = tf.nest.map_structure(lambda w: np.mean(w, axis=0), state.algorithm.weights)
        assert_close(process.global_weights(state), mean)
        new = make_client(process, 7, clients[0].data)
        *own, common = process.personalize(state, [*clients, new])
        assert_close(common, mean)
        for model, alpha in zip(own, alphas_of(process, clients), strict=True):
            for name, row in zip(LAYERS, alpha, strict=True):
                for kind, branches in state.algorithm.weights[name].items():
                    assert_close(model[name][kind], np.tensordot(row, branches, 1))
            assert differ(model, mean)
