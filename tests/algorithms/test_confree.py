"""Tests ConFREE: its limit FedRep, its step against SciPy, and its rounds on quadratics."""

import numpy as np
import pytest
import scipy.optimize
import tensorflow as tf
import tensorflow_federated as tff

from tests.algorithms.rounds import each_round
from tests.federation import assert_close, make_client, traced, trained
from tests.quadratics import objectives, quadratic_examples, quadratic_model, vector_of, weights_of
from tff_pfl.aggregators import Stack
from tff_pfl.algorithms.confree import conflict_free
from tff_pfl.local import LocalTraining, trees

DIMS, BODY = (2, 2, 1), 4  # the last layer is the head
RATE, MOMENTUM, HEAD_STEPS, BODY_STEPS = 0.2, 0.5, 1, 2
MODEL = quadratic_model(*DIMS)
A, C = objectives(5, sum(DIMS))
COPIES = (1, 3, 2, 2, 0)  # of each client's only example; the last client has none
COHORTS = ((0, 1, 3), (1, 2, 4), (0, 1, 2, 3))
DEFAULTS = {"c": 0.5, "by_tensor": False, "rescale": False}
OPTIONS = [{}, {"c": 0.0}, {"c": 0.9, "rescale": True}, {"by_tensor": True}]


@pytest.mark.thorough
def test_without_c_and_conflicts_it_is_fedrep():
    alone = {"cohorts": ((0,), (1,), (0,))}
    found, expected = trained("confree", c=0.0, **alone), trained("fedrep", **alone)
    assert_close(found.shared, expected.shared, 1e-6)
    assert_close(found.personal, expected.personal, 1e-6)


def direction(updates, c):
    """Returns the step; SLSQP has a further variable for the least improvement."""
    guide = np.zeros(len(updates[0]))
    for u in updates:
        conflicts = [v for v in updates if u @ v < 0]
        guide += (u - sum((u @ v) / (v @ v) * v for v in conflicts)) / len(updates)
    if c == 0:
        return guide
    radius = c * np.linalg.norm(guide)
    found = scipy.optimize.minimize(
        lambda z: -z[-1],
        np.append(guide, min(u @ guide for u in updates)),
        constraints=[
            {"type": "ineq", "fun": lambda z: np.array(updates) @ z[:-1] - z[-1]},
            {"type": "ineq", "fun": lambda z: 1 - np.sum(((z[:-1] - guide) / radius) ** 2)},
        ],
        options={"ftol": 1e-14},
    )
    return found.x[:-1]


def step_of(updates, c, by_tensor, rescale):
    parts = [slice(2), slice(2, 4)] if by_tensor else [slice(4)]
    step = np.concatenate([direction([u[part] for u in updates], c) for part in parts])
    return step / (1 + c**2) if rescale else step


@pytest.mark.thorough_but_one
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_step_agrees_with_scipy(options):
    """Moving statistics are averaged, and are not in conflict."""
    rng = np.random.default_rng(0)
    for number in (1, 3, 6):
        updates = rng.normal(0.3, 1, size=(number, 4))
        means = rng.normal(0, 9, size=(number, 1)).astype(np.float32)
        rows = [
            weights_of(u, 2, 2) | {"norm": {"moving_mean": mean}}
            for u, mean in zip(updates, means, strict=True)
        ]
        step, measured = found(rows, options)
        assert_close(step.pop("norm")["moving_mean"], np.mean(means, axis=0))
        assert_close(vector_of(step), step_of(updates, **DEFAULTS | options))
        assert measured["num_conflicts"] == np.sum(updates @ updates.T < 0) / 2
    assert measured["num_conflicts"] > 1


def found(rows, options):
    return conflict_free(Stack(trees.stack(rows), tf.ones([len(rows)])), **DEFAULTS | options)


def test_step_helps_the_client_that_gains_least():
    """The mean of projected updates alone works against the first of these clients."""
    updates = np.array([[-1.0, 0.1], [1.0, 0.1], [1.0, 0.1]])
    gains = []
    for c, num_in_conflict in ((0.0, 1), (0.4, 1), (0.9, 0)):
        step, measured = found([weights_of(u, 1, 1) for u in updates], {"c": c})
        assert measured == {"num_conflicts": 2, "num_in_conflict": num_in_conflict}
        gains.append(np.min(updates @ vector_of(step)))
    assert gains[0] < gains[1] < 0 <= gains[2]


def client_round(i, body, head):
    """Returns body and head after a client's training of one after the other."""
    w = np.concatenate([body, head])
    for part, steps in ((slice(BODY, None), HEAD_STEPS), (slice(BODY), BODY_STEPS)):
        velocity = 0.0
        for _ in range(steps):
            velocity = MOMENTUM * velocity + (A[i] @ (w - C[i]))[part]
            w[part] = w[part] - RATE * velocity
    return w[:BODY], w[BODY:]


@pytest.mark.thorough_but_one
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_rounds_agree_with_numpy(options):
    local = LocalTraining(
        tff.learning.optimizers.build_sgdm(RATE, MOMENTUM), epochs=BODY_STEPS, batch_size=4
    )
    process = traced("confree", MODEL, local, seed=2, head_epochs=HEAD_STEPS, **options)
    examples = [quadratic_examples(A[i], C[i], copies=max(n, 1)) for i, n in enumerate(COPIES)]
    clients = [
        make_client(process, i, its._replace(size=np.int32(n)))
        for i, (its, n) in enumerate(zip(examples, COPIES, strict=True))
    ]
    start = vector_of(MODEL.init(2)).astype(np.float64)
    body, heads, num_conflicts = start[:BODY], [start[BODY:]] * len(COPIES), 0
    for cohort, state, now, _ in each_round(process, clients, COHORTS):
        updates = []
        for i in filter(COPIES.__getitem__, cohort):
            new_body, heads[i] = client_round(i, body, heads[i])
            updates.append(new_body - body)
        num_conflicts += np.sum(np.array(updates) @ np.transpose(updates) < 0)
        body = body + step_of(updates, **DEFAULTS | options)
        assert_close(vector_of(state.algorithm.weights), body)
        assert_close([client.state.head["layer2"]["w"] for client in now], heads)
    assert num_conflicts
