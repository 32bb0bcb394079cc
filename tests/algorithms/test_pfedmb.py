"""Tests pFedMB: its limit FedAvg, and when both of its averages agree."""

import functools

import numpy as np
import pytest

from tests.federation import (
    COHORTS,
    SIZES,
    assert_close,
    differ,
    last,
    local_sgd,
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
    """Returns `(server state, clients)` after some rounds."""
    return last(run_rounds(process, clients or make_clients(process, SIZES), COHORTS))


def frozen(**options):
    """Builds pFedMB with constant alpha, which is the client state."""
    return build(parametrization="projection", alpha_epochs=0, **options)


def with_alpha(clients, alphas):
    """Returns the clients with other coefficients, `[L, B]` each."""
    return [
        client._replace(state=client.state._replace(coefficients=np.float32(alpha)))
        for client, alpha in zip(clients, alphas, strict=True)
    ]


def alphas_of(process, clients):
    """Returns alpha of all clients, `[clients, L, B]`."""
    rows = process.client_snapshot([client.state for client in clients])
    return np.array([list(rows_of_client.values()) for rows_of_client in rows])


class TestEquivalences:
    @pytest.mark.parametrize(
        ("alpha_weighted", "parametrization"), [slow(True, "softmax"), slow(False, "projection")]
    )
    def test_one_branch_equals_fedavg(self, alpha_weighted, parametrization):
        process = build(branches=1, alpha_weighted=alpha_weighted, parametrization=parametrization)
        state, clients = run(process)
        expected, _ = run(build("fedavg"))
        for name in LAYERS:
            for kind, branches in state.algorithm.weights[name].items():
                assert_close(branches, expected.algorithm.weights[name][kind][np.newaxis], 1e-6)
        np.testing.assert_array_equal(alphas_of(process, clients), np.ones((3, 2, 1)))
        assert_close(process.global_weights(state), expected.algorithm.weights, 1e-6)
        assert_close(process.personalize(state, clients), [expected.algorithm.weights] * 3, 1e-6)

    def test_both_averages_agree_if_alpha_is_equal(self):
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
