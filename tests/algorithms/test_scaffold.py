"""Tests SCAFFOLD: its rounds on quadratics, its convergence, and its limit FedAvg."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.algorithms.rounds import START, A, C, clients_of, each_round, on_quadratics
from tests.federation import (
    assert_close,
    assert_equal,
    eager,
    leaves,
    local_sgd,
    make_clients,
    tiny_model,
)
from tests.quadratics import vector_of, weights_of
from tff_pfl.local import trees

MODEL = tiny_model()
DIM, RATE, DECAY, STEPS, NUM = 3, 0.2, 0.9, 4, 4
SIZES = (1, 3, 2, 1)  # copies of each client's only example, all in one batch
COHORTS = ((0, 1), (1, 2, 3), (0, 2))  # the clients of each round
OPTIMUM = np.linalg.solve(sum(A), sum(a @ c for a, c in zip(A, C, strict=True)))


def process_of(server_rate=1.0, decay=DECAY, **options):
    local = local_sgd(RATE, STEPS, max(SIZES), learning_rate_decay=decay)
    optimizer = tff.learning.optimizers.build_sgdm(server_rate)
    return on_quadratics("scaffold", local, num_clients=NUM, server_optimizer=optimizer, **options)


def client_round(i, w, c, own, control, rate=RATE):
    """Returns `(w_i, c_i)`, computed as in the paper."""
    model = w
    for _ in range(STEPS):
        model = model - rate * (A[i] @ (model - C[i]) - own + c)
    if control == "gradient":
        return model, A[i] @ (w - C[i])
    return model, own - c + (w - model) / (STEPS * rate)


def round_of(cohort, w, c, own, control, rate=RATE, server_rate=1.0):
    """Returns `(w, c, all c_i, the cohort's w_i)`."""
    own, models = dict(own), {}
    before = own.copy()
    for i in cohort:
        models[i], own[i] = client_round(i, w, c, before[i], control, rate)
    c = c + sum(own[i] - before[i] for i in cohort) / NUM
    mean = np.mean([model - w for model in models.values()], axis=0)
    return w + server_rate * mean, c, own, models


def start():
    return START, np.zeros(DIM), {i: np.zeros(DIM) for i in range(NUM)}


@pytest.mark.thorough_but_one
@pytest.mark.parametrize(("control", "server_rate"), [("path", 1.0), ("gradient", 0.5)])
def test_rounds_match_numpy_on_quadratics(control, server_rate):
    """Clients with different numbers of examples weigh the same, and the rate decays."""
    process = process_of(server_rate, control=control, personalized="local")
    w, c, own = start()
    rounds = each_round(process, clients_of(process, SIZES), COHORTS)
    for t, (cohort, state, clients, _) in enumerate(rounds):
        w, c, own, models = round_of(cohort, w, c, own, control, RATE * DECAY**t, server_rate)
        assert_close(vector_of(state.algorithm.weights), w)
        assert_close(vector_of(state.algorithm.control), c)
        assert_close(c, np.mean(list(own.values()), axis=0))
        assert_close([vector_of(client.state.control) for client in clients], list(own.values()))
        for i, model in models.items():
            assert_close(vector_of(clients[i].state.own.model), model)


@pytest.mark.thorough
@pytest.mark.parametrize("control", ["gradient", "path"])
def test_full_cohorts_converge_to_the_optimum_and_stay_there(control):
    """FedAvg leaves the optimum when it starts there."""
    w, c, own = start()
    assert np.linalg.norm(w - OPTIMUM) > 0.5
    for _ in range(200):
        w, c, own, _ = round_of(range(NUM), w, c, own, control)
    np.testing.assert_allclose(w, OPTIMUM, atol=1e-8)
    no_control = {i: np.zeros(DIM) for i in range(NUM)}
    fedavg, *_ = round_of(range(NUM), w, np.zeros(DIM), no_control, control)
    assert np.linalg.norm(fedavg - OPTIMUM) > 1e-2

    process = process_of(control=control, decay=1.0)
    state = process.initialize()
    there = state.algorithm._replace(weights=weights_of(OPTIMUM, 2, 1))
    clients = [
        client._replace(state=client.state._replace(control=weights_of(own[i], 2, 1)))
        for i, client in enumerate(clients_of(process, SIZES))
    ]
    output = process.next(state._replace(algorithm=there), clients)
    np.testing.assert_allclose(vector_of(output.state.algorithm.weights), OPTIMUM, atol=1e-6)
    assert_close([vector_of(new.control) for new in output.clients], list(own.values()))


@pytest.mark.thorough
def test_zero_control_variates_equal_fedavg_with_uniform_weights():
    fedavg = eager("fedavg", MODEL, local_sgd(), weighting="uniform", seed=1)
    scaffold = eager("scaffold", MODEL, local_sgd(), num_clients=3, seed=1)
    expected, state = fedavg.initialize(), scaffold.initialize()
    for cohort in ((0, 1), (1, 2), (0, 2)):
        # New clients, with c_i = 0.
        expected, state = (
            process.next(before, [make_clients(process, (4, 6, 3))[i] for i in cohort]).state
            for process, before in ((fedavg, expected), (scaffold, state))
        )
        assert_equal(state.algorithm.weights, expected.algorithm.weights)
        assert all(np.any(leaf) for leaf in leaves(state.algorithm.control)[1:])
        zero = trees.zeros_like(state.algorithm.control)
        state = state._replace(algorithm=state.algorithm._replace(control=zero))


def test_path_is_divided_by_the_number_of_steps():
    """Three epochs of 6 examples in batches of 4 are 6 steps."""
    process = eager("scaffold", MODEL, local_sgd(0.5, 3, 4), num_clients=2, seed=1)
    (client,) = make_clients(process, (6,))
    state = process.initialize()
    output = process.next(state, [client])
    change = trees.subtract(output.state.algorithm.weights, dict(state.algorithm.weights))
    expected = trees.scale(change, tf.constant(-1 / (6 * 0.5)))
    assert_close(output.clients[0].control, expected, tolerance=1e-6)
    assert_close(output.state.algorithm.control, trees.scale(expected, 0.5), tolerance=1e-6)


@pytest.mark.thorough
def test_rate_0_keeps_the_control_variates():
    """The length of the path is 0, so nothing can be divided by it."""
    local = local_sgd(RATE, STEPS, schedule=lambda round_num: tf.cast(round_num < 1.0, tf.float32))
    process = on_quadratics("scaffold", local, num_clients=NUM)
    first, second = each_round(process, clients_of(process, SIZES), [range(NUM)] * 2)
    assert np.all(vector_of(first.state.algorithm.control))
    assert_equal(second.state.algorithm, first.state.algorithm)
    controls = ([client.state.control for client in it.clients] for it in (second, first))
    assert_equal(*controls)
