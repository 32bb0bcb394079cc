"""Tests Per-FedAvg: its meta-gradients on quadratics, its mini-batches, and adaptation."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from tests.algorithms.rounds import COPIES, START, clients_of, each_round, on_quadratics, personal
from tests.federation import (
    COHORTS,
    assert_close,
    last,
    local_sgd,
    make_client,
    make_clients,
    run_rounds,
    tiny_model,
)
from tests.marks import slow, together
from tests.quadratics import descended, objectives, quadratic_examples, vector_of
from tff_pfl.algorithms import fedavg, per_fedavg
from tff_pfl.testing import EagerProcess

MODEL = tiny_model()
BETA, STEPS, INNER = 0.2, 2, 0.3
EYE = np.eye(3)
A, C = objectives(6)


def quadratic_process(*, local=None, **options):
    local = local or local_sgd(BETA, STEPS, max(COPIES))
    return on_quadratics("per_fedavg", local, **{"inner_learning_rate": INNER, **options})


def client_of(process, i, rows):
    """Returns a client whose examples are the quadratics of these indices."""
    examples = [quadratic_examples(A[j], C[j]) for j in rows]
    x, y = (np.concatenate([getattr(e, name) for e in examples]) for name in "xy")
    return make_client(process, i, examples[0]._replace(x=x, y=y, size=np.int32(len(rows))))


def mean_gradient(rows, w):
    return np.mean([A[j] @ (w - C[j]) for j in rows], axis=0)


def meta_gradient(w, inner, outer, curvature=None, a=INNER):
    """Returns the meta-gradient; `b`, `b'` and, with the Hessian, `b''` index quadratics."""
    v = mean_gradient(outer, w - a * mean_gradient(inner, w))
    return v if curvature is None else v - a * np.mean([A[j] for j in curvature], axis=0) @ v


@pytest.mark.thorough_but_one
@pytest.mark.parametrize(
    ("variant", "delta", "weighting"),
    [
        ("first_order", 0.001, "num_examples"),
        ("hessian_free", 0.05, "num_examples"),
        slow("hessian_free", 1.0, "uniform"),
    ],
)
def test_rounds_match_numpy_on_quadratics(variant, delta, weighting):
    """Covers both variants, and adaptation.

    The meta-gradient is (I - aA) A (I - aA) (w - c) for every delta; without the Hessian it lacks
    the left factor. A client with one example has it in all parts of a batch.
    """
    process = quadratic_process(variant=variant, delta=delta, weighting=weighting)
    w = START
    for cohort, state, clients, _ in each_round(process, clients_of(process)):
        ends = []
        for i in cohort:
            step = EYE - INNER * A[i]
            matrix = A[i] @ step if variant == "first_order" else step @ A[i] @ step
            contraction = np.linalg.matrix_power(EYE - BETA * matrix, STEPS)
            ends.append(C[i] + contraction @ (w - C[i]))
        weights = np.take(COPIES, cohort) if weighting == "num_examples" else None
        w = np.average(ends, axis=0, weights=weights)
        assert_close(vector_of(process.global_weights(state)), w)
        expected = [w - INNER * A[i] @ (w - C[i]) for i in range(3)]
        assert_close(personal(process, state, clients), expected)


def splits(rows, sizes):
    """Returns all ways to distribute rows to parts of these sizes."""
    if not sizes:
        return [[]]
    return [
        [part, *others]
        for part in itertools.combinations(rows, sizes[0])
        for others in splits([row for row in rows if row not in part], sizes[1:])
    ]


@pytest.mark.thorough_but_one
@pytest.mark.parametrize(
    ("variant", "batch_size", "sizes"),
    [
        ("first_order", 2, (1, 1)),
        ("first_order", 4, (2, 2)),
        ("first_order", 5, (2, 1)),  # three examples and two rows of padding
        ("hessian_free", 5, (2, 2, 1)),
        ("hessian_free", 6, (1, 1, 1)),
    ],
)
def test_batch_is_split_into_disjoint_parts(variant, batch_size, sizes):
    """The step matches one way to split the batch, which clients draw at random."""
    rows = range(sum(sizes))
    candidates = [START - BETA * meta_gradient(START, *s) for s in splits(rows, sizes)]
    process = quadratic_process(variant=variant, delta=0.1, local=local_sgd(BETA, 1, batch_size))
    drawn = set()
    for client_id in range(4):
        client = client_of(process, client_id, rows)
        state = process.next(process.initialize(), [client]).state
        found = vector_of(process.global_weights(state))
        distances = [np.max(np.abs(found - candidate)) for candidate in candidates]
        assert np.sort(distances)[0] < 1e-5 < 1e-3 < np.sort(distances)[1]
        drawn.add(np.argmin(distances))
    assert len(drawn) > 1


def test_part_without_examples_is_the_first_part():
    """With two examples, the differences of gradients use the example of the inner step."""
    process = quadratic_process(
        variant="hessian_free", delta=0.1, local=local_sgd(BETA, 1, batch_size=4)
    )
    state = process.next(process.initialize(), [client_of(process, 0, [0, 1])]).state
    ways = [meta_gradient(START, [i], [j], [i]) for i, j in ((0, 1), (1, 0))]
    found = (START - vector_of(process.global_weights(state))) / BETA
    assert min(np.max(np.abs(found - way)) for way in ways) < 1e-5


@pytest.mark.thorough
def test_inner_rate_0_equals_fedavg_on_the_second_halves():
    local = local_sgd(batch_size=6)

    def second_half(weights, batch, carry):
        is_second = tf.cast(tf.range(6) % 2 == 1, tf.float32)
        half = batch._replace(weight=batch.weight * is_second)
        return *MODEL.gradient(weights, half), carry

    found, expected = (
        last(run_rounds(process, make_clients(process, (6, 9, 6)), COHORTS))[0]
        for process in (
            EagerProcess(per_fedavg(MODEL, local, inner_learning_rate=0.0), seed=1),
            EagerProcess(fedavg(MODEL, local, lambda received: {"gradient": second_half}), seed=1),
        )
    )
    assert_close(found.algorithm.weights, expected.algorithm.weights)


class TestAdaptation:
    @together(
        ("options", "rate", "steps"),
        [
            ({}, INNER, 1),
            ({"adaptation_learning_rate": 0.05}, 0.05, 1),
            ({"adaptation_steps": 3}, INNER, 3),
            ({"adaptation_steps": 0}, INNER, 0),
        ],
    )
    def test_adaptation_has_its_own_rate_and_steps(self, options, rate, steps):
        """The steps are plain SGD, without the other options of the local training."""
        local = local_sgd(BETA, STEPS, 4, weight_decay=0.1, learning_rate_decay=0.5, clip_norm=0.01)
        process = quadratic_process(local=local, **options)
        state = process.initialize()._replace(round_num=np.int32(2))
        expected = [descended(START, A[i], C[i], rate, steps) for i in range(3)]
        models = personal(process, state, clients_of(process))
        assert_close(models, expected)
        assert steps or np.array_equal(models[0], START)

    def test_adaptation_uses_one_batch(self):
        process = quadratic_process(local=local_sgd(BETA, STEPS, batch_size=4))
        (model,) = personal(process, process.initialize(), [client_of(process, 0, range(6))])
        ways = [
            START - INNER * mean_gradient(rows, START)
            for rows in itertools.combinations(range(6), 4)
        ]
        distances = np.sort([np.max(np.abs(model - way)) for way in ways])
        assert distances[0] < 1e-5 < 1e-3 < distances[1]


def test_reported_loss_is_of_the_adapted_model():
    process = quadratic_process(local=local_sgd(BETA, 1, 1))
    metrics = process.next(process.initialize(), [client_of(process, 0, [0])]).metrics
    offset = (EYE - INNER * A[0]) @ (START - C[0])
    np.testing.assert_allclose(metrics["train"]["loss"], 0.5 * offset @ A[0] @ offset, rtol=1e-5)
