"""Tests APFL: its limits FedAvg and Local, its rounds on quadratics, and its mixing weight."""

import numpy as np
import pytest
import tensorflow as tf

from tests.federation import (
    COHORTS,
    assert_close,
    assert_equal,
    eager,
    local_sgd,
    make_client,
    run_rounds,
    tiny_model,
    trained,
    with_shared,
)
from tests.quadratics import objectives, quadratic_examples, quadratic_model, vector_of, weights_of

MODEL = tiny_model()
RATE, STEPS = 0.2, 4
A, C = objectives()


def test_alpha_0_keeps_own_models_and_evaluates_the_global_model():
    found = trained("apfl", alpha=0.0)
    assert_equal([own.model for own in found.client_states], [MODEL.init(1)] * 3)
    assert_equal(found.personal, [found.shared] * 3)


def test_personal_model_mixes_the_current_global_model():
    found = trained("apfl", alpha=0.25, cohorts=((0, 1), (1,)))
    models = found.personal
    for model, own in zip(models[:2], found.client_states, strict=False):
        expected = tf.nest.map_structure(
            lambda v, w: 0.25 * v + 0.75 * w, own.model, dict(found.shared)
        )
        assert_close(model, expected, tolerance=1e-6)
    assert_equal(models[2], found.shared)  # a client that never took part


def client_round(i, w, v, alpha, *, refresh="before", rate=0.0, decay=0.0, adaptive=()):
    """Returns `(w_i - w, v_i, alpha_i)` after a round; `alpha_i` moves in the steps `adaptive`."""
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


@pytest.mark.thorough_but_one
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
def test_rounds_match_numpy_on_quadratics(refresh, options, rate, decay):
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
def test_alpha_adapts_to_the_better_model_and_stays_in_range(own, end):
    process = quadratic_process(
        local_sgd(1e-4, 8, 1), alpha=0.5, adaptive=True, alpha_learning_rate=4.0
    )
    # The minimiser lies beyond the nearer model: without the clip, `alpha` would leave [0, 1].
    near, far = weights_of(C[0] + 0.2, 2, 1), weights_of(C[0] + 2.0, 2, 1)
    v, w = (near, far) if own == "near" else (far, near)
    client = quadratic_clients(process)[0]
    client = client._replace(state=client.state._replace(model=v))
    output = process.next(with_shared(process.initialize(), w), [client])
    assert output.clients[0].alpha == end
    assert output.metrics["train"]["alpha"] == output.clients[0].alpha
    assert process.client_snapshot(output.clients) == [{"alpha": output.clients[0].alpha}]


def test_losses_are_measured_before_each_step():
    """Covers the losses of `w_i` and of the mixture."""
    process = quadratic_process(local_sgd(RATE, 1, 1), alpha=0.25)
    client, w = quadratic_clients(process)[0], np.array([1.0, 0.5, -1.0])
    there = with_shared(process.initialize(), weights_of(w, 2, 1))
    metrics = process.next(there, [client]).metrics["train"]
    mixture = 0.25 * vector_of(client.state.model) + 0.75 * w
    for name, model in {"loss": w, "personal_loss": mixture}.items():
        expected = 0.5 * (model - C[0]) @ A[0] @ (model - C[0])
        np.testing.assert_allclose(metrics[name], expected, rtol=1e-5)
