"""Tests LG-FedAvg: its shared head, its rounds on quadratics, and alternating steps."""

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.federation import (
    COHORTS,
    assert_close,
    assert_equal,
    eager,
    last,
    make_clients,
    run_rounds,
    tiny_model,
    trained,
)
from tests.marks import slow
from tests.quadratics import objectives, quadratic_clients, quadratic_model, vector_of
from tff_pfl.local import LocalTraining

MODEL = tiny_model()
DIM, BODY, RATE, STEPS = 3, 2, 0.2, 3
A, C = objectives()
SIZES = (1, 3, 2)  # copies of each client's only example, all in one batch


def test_head_is_shared_and_clients_keep_their_bodies():
    process, state, clients = found = trained("lg_fedavg")
    assert list(found.shared) == ["head"]
    assert process.global_weights is None
    bodies = [own.head["dense1"] for own in found.client_states]
    assert not np.allclose(bodies[0]["kernel"], bodies[1]["kernel"])
    newcomer = make_clients(process, (4,) * 4)[3]
    bodies.append(MODEL.init(1)["dense1"])
    for model, body in zip(process.personalize(state, [*clients, newcomer]), bodies, strict=True):
        assert_equal(model["head"], found.shared["head"])
        assert_equal(model["dense1"], body)


def joint(i, body, head, momentum, decay=0.0, clip_norm=np.inf):
    w, u = np.append(body, head), np.zeros(DIM)
    for _ in range(STEPS):
        gradient = A[i] @ (w - C[i])
        u = momentum * u + clipped(gradient, clip_norm) + decay * w
        w = w - RATE * u
    return w[:BODY], w[BODY:]


def alternating(i, body, head, momentum, decay=0.0, clip_norm=np.inf):
    """Runs block coordinate descent: the head's gradient is at the new body."""
    ub, uh = np.zeros(BODY), np.zeros(DIM - BODY)
    for _ in range(STEPS):
        gradient = (A[i] @ (np.append(body, head) - C[i]))[:BODY]
        ub = momentum * ub + clipped(gradient, clip_norm) + decay * body
        body = body - RATE * ub
        gradient = (A[i] @ (np.append(body, head) - C[i]))[BODY:]
        uh = momentum * uh + clipped(gradient, clip_norm) + decay * head
        head = head - RATE * uh
    return body, head


def clipped(gradient, clip_norm):
    return gradient * min(1, clip_norm / np.linalg.norm(gradient))


@pytest.mark.thorough_but_one
@pytest.mark.parametrize(
    ("alternate", "weighting", "momentum", "local_options"),
    [
        (False, "num_examples", 0.0, {}),
        slow(True, "num_examples", 0.0, {}),
        (True, "uniform", 0.9, {"decay": 0.1, "clip_norm": 0.4}),
    ],
)
def test_rounds_match_numpy_on_quadratics(alternate, weighting, momentum, local_options):
    """Covers momentum and weight decay of both parts, and separate clipping."""
    local = LocalTraining(
        tff.learning.optimizers.build_sgdm(RATE, momentum or None),
        epochs=STEPS,
        batch_size=max(SIZES),
        weight_decay=local_options.get("decay", 0.0),
        clip_norm=local_options.get("clip_norm"),
    )
    options = {"alternate": alternate, "weighting": weighting}
    process = eager("lg_fedavg", quadratic_model(BODY, 1), local, **options, seed=2)
    start = vector_of(quadratic_model(BODY, 1).init(2)).astype(np.float64)
    bodies, head = [start[:BODY]] * 3, start[BODY:]
    rounds = run_rounds(process, quadratic_clients(process, A, C, SIZES), COHORTS)
    for cohort, (state, clients) in zip(COHORTS, rounds, strict=True):
        steps, heads = (alternating if alternate else joint), []
        for i in cohort:
            bodies[i], own_head = steps(i, bodies[i], head, momentum, **local_options)
            heads.append(own_head)
        weights = [SIZES[i] if weighting == "num_examples" else 1 for i in cohort]
        head = np.average(heads, axis=0, weights=weights)
        models = process.personalize(state, clients)
        expected = [np.append(body, head) for body in bodies]
        assert_close([vector_of(model) for model in models], expected, tolerance=1e-5)


@pytest.mark.parametrize("alternate", [False, True])
def test_persistent_optimizers_continue(alternate):
    """Rounds of one step each equal as many steps with momentum in one round."""
    local = LocalTraining(
        tff.learning.optimizers.build_sgdm(RATE, 0.9), batch_size=4, persist_optimizer_state=True
    )
    process = eager("lg_fedavg", quadratic_model(BODY, 1), local, alternate=alternate, seed=2)
    clients = quadratic_clients(process, A, C, SIZES)
    state, clients = last(run_rounds(process, clients, [(0,)] * STEPS))
    start = vector_of(quadratic_model(BODY, 1).init(2))
    steps = alternating if alternate else joint
    expected = np.append(*steps(0, start[:BODY], start[BODY:], 0.9))
    assert_close(vector_of(process.personalize(state, clients[:1])[0]), expected)
