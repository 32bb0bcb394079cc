"""Tests APFL: its limits FedAvg and Local, its rounds on quadratics, and its mixing weight."""

import numpy as np
import pytest

from tests.algorithms.rounds import START, A, C, clients_of, each_round, on_quadratics, personal
from tests.federation import assert_close, assert_equal, local_sgd, tiny_model, trained, with_shared
from tests.quadratics import vector_of, weights_of

RATE, STEPS, ALPHA = 0.2, 4, 0.4
ONE_EACH = (1, 1, 1)  # copies of each client's example


def test_alpha_0_keeps_own_models_and_evaluates_the_global_model():
    found = trained("apfl", alpha=0.0)
    assert_equal([own.model for own in found.client_states], [tiny_model().init(1)] * 3)
    assert_equal(found.personal, [found.shared] * 3)


def client_round(
    i,
    w,
    v,
    alpha,
    *,
    vbar_refresh="before",
    adaptive=False,
    alpha_learning_rate=RATE,
    alpha_decay=0.0,
    alpha_update="batch",
):
    """Returns `(w_i, v_i, alpha_i, losses of w_i and of the mixture before each step)`."""
    losses = []
    for step in range(STEPS):
        stepped = w - RATE * A[i] @ (w - C[i])
        mixed_with = {"before": w, "after": stepped}[vbar_refresh]
        mixture = alpha * v + (1 - alpha) * mixed_with
        losses.append([0.5 * (m - C[i]) @ A[i] @ (m - C[i]) for m in (w, mixture)])
        gradient = A[i] @ (mixture - C[i])
        slope = (v - mixed_with) @ gradient + alpha_decay * alpha
        v = v - RATE * alpha * gradient
        if adaptive and (step == 0 or alpha_update == "batch"):
            alpha = np.clip(alpha - alpha_learning_rate * slope, 0.0, 1.0)
        w = stepped
    return w, v, alpha, losses


@pytest.mark.thorough_but_one
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"adaptive": True, "vbar_refresh": "after"},
        {"adaptive": True, "alpha_update": "round"},
        {"adaptive": True, "alpha_learning_rate": 0.05, "alpha_decay": 0.4},
    ],
    ids=str,
)
def test_rounds_match_numpy_on_quadratics(options):
    """Covers personal models; that of a client that never took part is the global model."""
    process = on_quadratics("apfl", local_sgd(RATE, STEPS, 1), alpha=ALPHA, **options)
    w, own, seen = START, [(START, ALPHA)] * 3, set()
    for cohort, state, clients, metrics in each_round(process, clients_of(process, ONE_EACH)):
        ends, losses = [], []
        for i in cohort:
            end, *own[i], of_steps = client_round(i, w, *own[i], **options)
            ends.append(end)
            losses += of_steps
        w = np.mean(ends, axis=0)
        seen.update(cohort)
        assert_close(vector_of(state.algorithm.weights), w)
        assert_close([vector_of(client.state.model) for client in clients], [v for v, _ in own])
        assert_close([client.state.alpha for client in clients], [alpha for _, alpha in own])
        found = [metrics["train"][name] for name in ("loss", "personal_loss")]
        assert_close(found, list(np.mean(losses, axis=0)))
        mixed = [a * v + (1 - a) * w if i in seen else w for i, (v, a) in enumerate(own)]
        assert_close(personal(process, state, clients), mixed)
    assert any(0 < alpha < 1 and alpha != ALPHA for _, alpha in own) == bool(options)


@pytest.mark.parametrize(("own", "end"), [("near", 1.0), ("far", 0.0)])
def test_alpha_adapts_to_the_better_model_and_stays_in_range(own, end):
    local = local_sgd(1e-4, 8, 1)
    process = on_quadratics("apfl", local, alpha=0.5, adaptive=True, alpha_learning_rate=4.0)
    # The minimiser lies beyond the nearer model: without the clip, `alpha` would leave [0, 1].
    near, far = weights_of(C[0] + 0.2, 2, 1), weights_of(C[0] + 2.0, 2, 1)
    v, w = (near, far) if own == "near" else (far, near)
    client = clients_of(process)[0]
    client = client._replace(state=client.state._replace(model=v))
    output = process.next(with_shared(process.initialize(), w), [client])
    assert output.clients[0].alpha == end
    assert output.metrics["train"]["alpha"] == end
    assert process.client_snapshot(output.clients) == [{"alpha": end}]
