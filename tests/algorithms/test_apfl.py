"""APFL: FedAvg and Local at its ends, its rounds on quadratics, and its mixing weight."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.federation import (
    assert_close,
    assert_equal,
    eager,
    last,
    local_sgd,
    make_client,
    make_clients,
    run_rounds,
    tiny_model,
    with_shared,
)
from tests.quadratics import quadratic_examples, quadratic_model, spd, vector_of, weights_of

MODEL = tiny_model()
COHORTS = ((0, 1), (1, 2), (0, 2))  # who takes part in each round
DIM, RATE, STEPS = 3, 0.2, 4
A = [spd(DIM, seed) for seed in range(3)]
C = [np.random.default_rng(10 + i).normal(size=DIM) for i in range(3)]


@functools.cache
def trained(algorithm, **options):
    """`(server state, clients)` after some rounds."""
    process = eager(algorithm, MODEL, local_sgd(), **options, seed=1)
    return last(run_rounds(process, make_clients(process, (4, 6, 3)), COHORTS))


@pytest.mark.parametrize(
    "options", [{"alpha": 0.0}, {"alpha": 0.3, "adaptive": True, "vbar_refresh": "after"}]
)
def test_the_global_model_is_fedavgs_whatever_alpha(options):
    state, _ = trained("apfl", **options)
    assert_equal(state.algorithm.weights, trained("fedavg")[0].algorithm.weights)


def test_without_alpha_own_models_stay_and_what_is_evaluated_is_the_global_model():
    state, clients = trained("apfl", alpha=0.0)
    process = eager("apfl", MODEL, local_sgd(), alpha=0.0, seed=1)
    assert_equal([c.state.model for c in clients], [MODEL.init(1)] * 3)
    assert_equal(process.personalize(state, clients), [state.algorithm.weights] * 3)


def test_of_an_alpha_of_1_own_models_are_locals():
    state, clients = trained("apfl", alpha=1.0)
    expected = [c.state.model for c in trained("local")[1]]
    assert_equal([c.state.model for c in clients], expected)
    assert_equal(state.algorithm.weights, trained("fedavg")[0].algorithm.weights)
    process = eager("apfl", MODEL, local_sgd(), alpha=1.0, seed=1)
    assert_equal(process.personalize(state, clients), expected)


def test_what_is_evaluated_is_the_mixture_with_the_current_global_model():
    process = eager("apfl", MODEL, local_sgd(), alpha=0.25, seed=1)
    clients = make_clients(process, (4, 6, 3))
    state, clients = last(run_rounds(process, clients, ((0, 1), (1,))))
    models = process.personalize(state, clients)
    for model, client in zip(models[:2], clients, strict=False):
        expected = tf.nest.map_structure(
            lambda v, w: 0.25 * v + 0.75 * w, client.state.model, dict(state.algorithm.weights)
        )
        assert_close(model, expected, tolerance=1e-6)
    assert_equal(models[2], state.algorithm.weights)  # of a client that never took part


def client_round(i, w, v, alpha, *, refresh="before", rate=0.0, decay=0.0, adaptive=()):
    """`(w_i - w, v_i, alpha_i)` after the steps of a round, in some of which `alpha_i` adapts."""
    received = w
    for step in range(STEPS):
        stepped = w - RATE * A[i] @ (w - C[i])
        mixed_with = {"before": w, "after": stepped}[refresh]
        gradient = A[i] @ (alpha * v + (1 - alpha) * mixed_with - C[i])
        slope = (v - mixed_with) @ gradient + decay * alpha
        v = v - RATE * alpha * gradient
        if step in adaptive:
            alpha = np.clip(alpha - rate * slope, 0.0, 1.0)
        w = stepped
    return w - received, v, alpha


def quadratic_process(local=None, **options):
    local = local or local_sgd(RATE, STEPS, 1)
    return eager("apfl", quadratic_model(2, 1), local, **options, seed=2)


def quadratic_clients(process):
    return [make_client(process, i, quadratic_examples(A[i], C[i])) for i in range(3)]


@pytest.mark.parametrize(
    ("refresh", "options", "rate", "decay"),
    [
        ("before", {}, 0.0, 0.0),
        ("after", {"adaptive": True}, RATE, 0.0),
        ("before", {"adaptive": True, "alpha_update": "round"}, RATE, 0.0),
        (
            "before",
            {"adaptive": True, "alpha_learning_rate": 0.05, "alpha_decay": 0.4},
            0.05,
            0.4,
        ),
    ],
)
def test_rounds_on_quadratics(refresh, options, rate, decay):
    process = quadratic_process(alpha=0.4, vbar_refresh=refresh, **options)
    w = vector_of(process.initialize().algorithm.weights).astype(np.float64)
    own = [(w, 0.4)] * 3
    adaptive = () if not options else (0,) if "alpha_update" in options else range(STEPS)
    alphas = set()
    for cohort, (state, clients) in zip(
        COHORTS, run_rounds(process, quadratic_clients(process), COHORTS), strict=True
    ):
        changes = []
        for i in cohort:
            change, *own[i] = client_round(
                i,
                w,
                *own[i],
                refresh=refresh,
                rate=rate,
                decay=decay,
                adaptive=adaptive,
            )
            changes.append(change)
        w = w + np.mean(changes, axis=0)
        assert_close(vector_of(state.algorithm.weights), w)
        for client, (v, alpha) in zip(clients, own, strict=True):
            assert_close(vector_of(client.state.model), v)
            assert_close(client.state.alpha, alpha)
            alphas.add(float(client.state.alpha))
    assert (len(alphas) > 2) == bool(options)


@pytest.mark.parametrize(("own", "end"), [("near", 1.0), ("far", 0.0)])
def test_alpha_adapts_to_the_better_model_and_stays_in_its_range(own, end):
    process = quadratic_process(
        local_sgd(1e-4, 8, 1), alpha=0.5, adaptive=True, alpha_learning_rate=4.0
    )
    # The minimiser lies on their line, past the nearer one: `alpha` would leave its range.
    near, far = weights_of(C[0] + 0.2, 2, 1), weights_of(C[0] + 2.0, 2, 1)
    v, w = (near, far) if own == "near" else (far, near)
    client = quadratic_clients(process)[0]
    client = client._replace(state=client.state._replace(model=v))
    output = process.next(with_shared(process.initialize(), w), [client])
    assert output.clients[0].alpha == end
    assert output.metrics["train"]["alpha"] == output.clients[0].alpha
    assert process.client_snapshot(output.clients) == [{"alpha": output.clients[0].alpha}]


def test_losses_that_are_measured():
    """Of `w_i` and of the mixture, each before its step."""
    process = quadratic_process(local_sgd(RATE, 1, 1), alpha=0.25)
    client, w = quadratic_clients(process)[0], np.array([1.0, 0.5, -1.0])
    there = with_shared(process.initialize(), weights_of(w, 2, 1))
    metrics = process.next(there, [client]).metrics["train"]
    mixture = 0.25 * vector_of(client.state.model) + 0.75 * w
    for name, model in {"loss": w, "personal_loss": mixture}.items():
        expected = 0.5 * (model - C[0]) @ A[0] @ (model - C[0])
        np.testing.assert_allclose(metrics[name], expected, rtol=1e-5)
