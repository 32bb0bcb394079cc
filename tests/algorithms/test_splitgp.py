"""Tests SplitGP: its limits, its rounds on quadratics, its exits, and fine-tuning."""

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.algorithms.rounds import QUADRATIC, A, C, clients_of, each_round
from tests.federation import (
    assert_close,
    assert_equal,
    eager,
    local_sgd,
    random_examples,
    tiny_model,
    trained,
)
from tests.quadratics import vector_of
from tff_pfl.algorithms import make
from tff_pfl.evaluation import fine_tuned
from tff_pfl.local import LocalTraining
from tff_pfl.models import two_exits
from tff_pfl.testing.eager import EagerProcess

MODEL = tiny_model()
BOTH = two_exits(MODEL)
ALL = ((0, 1, 2),) * 2


@pytest.mark.thorough
def test_gamma_and_lambda_0_equal_fedavg_with_full_cohorts():
    """Covers optimizers that persist."""
    sgd = tff.learning.optimizers.build_sgdm(0.3, momentum=0.9)
    local = LocalTraining(sgd, batch_size=4, persist_optimizer_state=True)
    process, state, clients = trained("splitgp", cohorts=ALL, local=local, gamma=0.0, lambda_=0.0)
    _, expected, _ = trained("fedavg", cohorts=ALL, local=local)
    found = {layer: state.algorithm.weights[layer] for layer in MODEL.layers}
    assert_close(found, expected.algorithm.weights, tolerance=1e-6)
    assert_close(state.algorithm.weights["client_head"], BOTH.init(1)["client_head"])  # untouched
    models = process.personalize(state, clients)
    assert_close([m["dense1"] for m in models], [found["dense1"]] * 3)


def test_gamma_and_lambda_1_make_the_client_exit_local():
    def init(seed):
        weights = BOTH.init(seed)
        return {"dense1": weights["dense1"], "head": weights["client_head"]}

    _, state, clients = trained("splitgp", gamma=1.0, lambda_=1.0)
    alone = dataclasses.replace(MODEL, init=init)
    _, _, expected = trained("local", model=lambda: alone)
    for client, own in zip(clients, expected, strict=True):
        part = {"dense1": client.state.part["dense1"], "head": client.state.part["client_head"]}
        assert_close(part, own.state.model, tolerance=1e-6)
    assert_equal(state.algorithm.weights["head"], BOTH.init(1)["head"])


RATE, STEPS, GAMMA, LAMBDA = 0.2, 3, 0.3, 0.4
CLIENT_SIDE = [0, 1, 3]


def descend(w, a, c):
    """Trains `w = (phi, theta, kappa)`; each exit has the objective of `phi` and its own weight."""
    for _ in range(STEPS):
        client, server = a @ (w[[0, 1, 3]] - c), a @ (w[[0, 1, 2]] - c)
        body = GAMMA * client[:2] + (1 - GAMMA) * server[:2]
        w = w - RATE * np.concatenate([body, [(1 - GAMMA) * server[2]], [GAMMA * client[2]]])
    return w


@pytest.mark.thorough_but_one
@pytest.mark.parametrize("start", ["own", "mean"])
def test_rounds_match_numpy_on_quadratics(start):
    """Clients start from their own part or, in their first round, from the server's mean."""
    task = dataclasses.replace(QUADRATIC.task, outputs="class_logits")  # gates are not used
    options = {"gamma": GAMMA, "lambda_": LAMBDA, "start": start, "weighting": "uniform"}
    model = dataclasses.replace(QUADRATIC, task=task)
    process = eager("splitgp", model, local_sgd(RATE, STEPS, 1), **options, seed=2)
    shared = vector_of(process.initialize().algorithm.weights).astype(np.float64)
    parts, seen = [shared[CLIENT_SIDE]] * 3, set()
    for cohort, state, clients, _ in each_round(process, clients_of(process, (1, 1, 1))):
        trained = {}
        for i in cohort:
            w = shared.copy()
            if start == "own" or i in seen:
                w[CLIENT_SIDE] = parts[i]
            trained[i] = descend(w, A[i], C[i])
        shared = np.mean(list(trained.values()), axis=0)
        for i in cohort:
            parts[i] = LAMBDA * trained[i][CLIENT_SIDE] + (1 - LAMBDA) * shared[CLIENT_SIDE]
        seen.update(cohort)
        assert_close(vector_of(state.algorithm.weights), shared)
        assert_close([vector_of(client.state.part) for client in clients], parts)


@functools.cache
def answers(threshold):
    """Returns process, state, and for each client the outputs of its model and exits."""
    process, state, clients = trained("splitgp", cohorts=((0, 1),), threshold=threshold)
    gated, x = BOTH.gated_model(threshold), random_examples(9).x
    found = []
    for client, weights in zip(clients, process.personalize(state, clients), strict=True):
        own = {layer: weights[layer] for layer in BOTH.init(0)}
        found.append((client, weights, gated.apply(weights, x), BOTH.outputs(own, x)))
    return process, state, found


@pytest.mark.thorough
def test_threshold_decides_which_exit_answers():
    """Every entropy is above 0, and at most the logarithm of 3 classes, which is below 1.2."""
    for threshold, exit_ in ((0.0, 1), (1.2, 0), (np.inf, 0)):
        _, state, (first, *_) = answers(threshold)
        client, weights, outputs, exits = first
        assert_close(outputs, exits[exit_])
        assert weights["gate"]["open"] == 1.0
        assert_equal(BOTH.sides.split(weights)[1], client.state.part)
        assert_equal(weights["head"], state.algorithm.weights["head"])


def test_global_model_answers_only_by_the_server_exit():
    """The model of a client that never took part does the same."""
    process, state, (*_, never) = answers(1.2)
    weights = process.global_weights(state)
    assert weights["gate"]["open"] == 0.0
    assert_equal(never[1], weights)
    assert_close(never[2], never[3][1])
    server = {layer: state.algorithm.weights[layer] for layer in MODEL.layers}
    assert_close(never[2], MODEL.apply(server, random_examples(9).x))


def test_fine_tuning_trains_the_gated_model():
    """If the client exit always answers, only body and client exit are trained."""
    algorithm = make("splitgp", MODEL, local_sgd(), threshold=1.2)
    process, state, clients = trained("splitgp", cohorts=((0, 1),), threshold=1.2)
    for weight_decay in (0.0, 0.1):
        local = dataclasses.replace(local_sgd(), weight_decay=weight_decay)
        tuned = EagerProcess(fine_tuned(algorithm, local, epochs=1), 1)
        (before, *_), (after, *_) = (p.personalize(state, clients) for p in (process, tuned))
        assert list(before) == list(after)
        if not weight_decay:
            assert_equal(before["head"], after["head"])
        for layer in ("dense1", "client_head"):
            assert np.max(np.abs(after[layer]["kernel"] - before[layer]["kernel"])) > 1e-3
