"""Tests PGFed, PGFedMo and PGFed-CE: against NumPy, and invariants."""

import functools
import math

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.algorithms.pgfed import reference
from tests.algorithms.pgfed.reference import CE, VARIANTS
from tests.algorithms.rounds import as_rows, each_round
from tests.federation import (
    assert_close,
    assert_equal,
    eager,
    local_sgd,
    make_client,
    make_clients,
    tiny_model,
    traced,
)
from tests.quadratics import quadratic_examples, quadratic_model, spd, vector_of, weights_of
from tff_pfl.algorithms.pgfed.server import PGFedServer
from tff_pfl.algorithms.pgfed.sparse_matrix import constant, dense
from tff_pfl.local import Examples, LocalTraining, trees
from tff_pfl.templates import Client

N, COHORT_SIZE, DIMS, DIM = 6, 3, (3, 1), 4
RATE, STEPS, MU, ALPHA_RATE = 0.2, 3, 0.3, 0.1
DEFAULTS = {"steps": STEPS, "mu": MU, "alpha_learning_rate": ALPHA_RATE}
SERVER = PGFedServer(N, COHORT_SIZE, N, MU, ALPHA_RATE)
SIZES = (1, 2, 3, 1, 2, 4)
# Client 1 takes part in three rounds in a row, 0 and 2 return, 5 comes late.
COHORTS = ((0, 1, 2), (1, 3), (1, 3, 4), (0,), (5, 0, 2), (2, 1))


@functools.cache
def quadratic_process(steps=STEPS, **options):
    """Makes a process with all examples of a client in one batch, so that steps are exact."""
    options |= {"num_clients": N, "clients_per_round": COHORT_SIZE}
    return traced(
        "pgfed", quadratic_model(*DIMS), local_sgd(RATE, steps, max(SIZES)), **options, seed=2
    )


def quadratic(client_id):
    """Returns a client's objective, in numbers that float32 can represent."""
    rng = np.random.default_rng([client_id, 7])
    parts = spd(DIM, client_id), 1.5 * rng.normal(size=DIM), 0.1
    return reference.Quadratic(*(np.float64(np.float32(part)) for part in parts))


def examples_of(client_id, broken):
    one, size = quadratic_examples(*vars(quadratic(client_id)).values()), SIZES[client_id]
    x = np.repeat(one.x * np.float32(np.nan if broken else 1), size, axis=0)
    return Examples(x, np.repeat(one.y, size), np.int32(size))


class Federation:
    """PGFed on quadratic clients, together with its NumPy reference."""

    def __init__(self, **options):
        options = {**DEFAULTS, **options}
        self.process = quadratic_process(**options)
        self.state = self.process.initialize()
        self.client_states = {i: self.process.initialize_client(i) for i in range(N)}
        self.start = self.weights
        self.sizes = (1,) * N if options.pop("weighting", None) == "uniform" else SIZES
        options.pop("largest_cohort", None)
        self.expected = reference.PGFed(
            self.start, N, clients_per_round=COHORT_SIZE, rate=RATE, **options
        )

    def next(self, cohort, broken=()):
        """Runs a round; the NumPy reference leaves out clients with broken data."""
        accepted = {i: quadratic(i) for i in cohort if i not in broken}
        if accepted:
            self.expected.next(accepted, self.sizes)
        clients = [
            Client(np.int32(i), self.client_states[i], examples_of(i, i in broken)) for i in cohort
        ]
        output = self.process.next(self.state, clients)
        self.state = output.state
        self.client_states.update(zip(cohort, output.clients, strict=True))
        return output

    def check(self):
        """Checks everything against NumPy."""
        assert_close(self.weights, self.expected.weights)
        assert_close(self.alpha, self.expected.alpha)
        assert list(self.algorithm.last.client_ids) == sorted(self.expected.last)
        for i, state in self.client_states.items():
            assert (state.participations > 0) == (i in self.expected.models)
            assert_close(vector_of(state.model), self.expected.models.get(i, self.start))
            if state.average:
                assert_close(self.average(i), self.expected.averages.get(i, np.zeros(DIM)))

    @property
    def algorithm(self):
        return self.state.algorithm

    @property
    def alpha(self):
        return np.array(dense(self.algorithm.alpha, N))

    @property
    def weights(self):
        return vector_of(self.algorithm.weights)

    def model(self, client_id):
        return vector_of(self.client_states[client_id].model)

    def average(self, client_id):
        return vector_of(self.client_states[client_id].average.gradient)

    def auxiliary_gradient(self, client_id):
        """Returns the gradient that the server would send."""
        return vector_of(SERVER.own(self.algorithm, client_id).auxiliary_gradient)


def after(*cohorts, **options):
    federation = Federation(**options)
    for cohort in cohorts:
        federation.next(cohort)
    return federation


@pytest.mark.thorough_but_one
@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_rounds_agree_with_numpy(options):
    federation = Federation(**options)
    for cohort in COHORTS:
        federation.next(cohort)
        federation.check()
    moved = federation.alpha[federation.alpha != np.float32(1 / COHORT_SIZE)]
    assert moved.min() == 0 and moved.max() > 0.1
    assert federation.alpha[1, 1] != np.float32(1 / COHORT_SIZE)  # its weight of itself


@pytest.mark.thorough
def test_cohort_may_be_larger_than_expected():
    federation = Federation(largest_cohort=N, beta=0.5)
    for cohort in (range(N), (1,), (4, 3, 2, 0)):
        federation.next(cohort)
        federation.check()


def numerical_gradient(fn, x, step=1e-5):
    x = x.astype(np.float64)
    return np.array([(fn(x + step * e) - fn(x - step * e)) / (2 * step) for e in np.eye(len(x))])


@pytest.mark.thorough_but_one
@pytest.mark.parametrize("last", [(1,), (1, 2, 4)], ids=str)
def test_step_follows_the_numerical_gradient_of_the_objective(last):
    """Compares alpha's steps on average over J, as their slopes use J's mean gradient."""
    federation = after(last, steps=1)
    w = federation.weights + np.float32([0.2, -0.4, 0.1, 0.3])  # away from all models
    algorithm = federation.algorithm._replace(weights=weights_of(w, *DIMS), alpha=constant(1.0))
    federation.state = federation.state._replace(algorithm=algorithm)
    own, alpha, columns = quadratic(0), federation.alpha[0], list(last)
    objective = functools.partial(federation.expected.objective, 0, own)
    by_theta = numerical_gradient(lambda theta: objective(theta, alpha), w)
    by_alpha = numerical_gradient(lambda alpha: objective(w, alpha), alpha)[columns]

    g = as_rows(algorithm.last.gradients)
    assert_close(own.gradient(w) + MU * alpha[columns] @ g, by_theta)
    assert_close(MU * (algorithm.last.intercepts + g @ w), by_alpha)

    federation.next((0,))
    assert_close((w - federation.model(0)) / RATE, by_theta)
    assert np.all(federation.alpha[0] > 0)
    slopes = (alpha - federation.alpha[0])[columns] / ALPHA_RATE
    assert_close(slopes.mean(), by_alpha.mean())


@pytest.mark.thorough
def test_server_makes_as_many_steps_as_the_client_at_once():
    sgd, sizes = tff.learning.optimizers.build_sgdm(RATE / 2, 0.9), (6, 9, 5)
    options = {"num_clients": 4, "clients_per_round": 4, "mu": 0.1, **CE}
    local = LocalTraining(sgd, epochs=2, batch_size=4)
    process = eager("pgfed", tiny_model(), local, alpha_learning_rate=ALPHA_RATE, seed=1, **options)
    state, clients = process.initialize(), make_clients(process, sizes)
    state = process.next(state, clients[:2]).state
    state = state._replace(algorithm=state.algorithm._replace(alpha=constant(0.05)))
    found = dense(process.next(state, clients).state.algorithm.alpha, 4).numpy()
    shared = PGFedServer(4, 4, 4, 0.1, ALPHA_RATE).shared(state.algorithm)
    slopes = shared.intercepts[:2] + trees.dot(shared.mean_gradient, shared.weights)
    alpha = np.full([4, 4], 0.05, np.float32)
    for i, size in enumerate(sizes):
        for _ in range(2 * math.ceil(size / 4)):
            alpha[i, :2] = np.maximum(0, alpha[i, :2] - ALPHA_RATE * slopes)
    assert_close(found, alpha)
    assert found[1, :2].tolist() == [0, 0] and found[0, :2].min() > 0


@pytest.mark.thorough
def test_rejected_client_is_not_in_the_last_cohort_and_keeps_its_alpha():
    federation = Federation(beta=0.5)
    assert federation.next((0, 2), broken=(0, 2)).metrics["train"]["server_kept"] == 1
    assert len(federation.algorithm.last.client_ids) == 0
    for cohort, broken in (((0, 1, 2), ()), ((1, 3, 4), (3,)), ((0, 5), (0, 5)), ((3, 1), ())):
        before, rejected = federation.alpha, [federation.client_states[i] for i in broken]
        metrics = federation.next(cohort, broken).metrics["train"]
        assert metrics["num_nonfinite"] == len(broken)
        assert_equal(federation.alpha[list(broken)], before[list(broken)])
        assert_equal([federation.client_states[i] for i in broken], rejected)
        federation.check()


def test_too_large_cohort_raises():
    with pytest.raises(tf.errors.InvalidArgumentError, match="was built for at most 3 clients"):
        Federation().next((0, 1, 2, 3))


@pytest.mark.parametrize("num_clients", [1, 10**6])
def test_metrics_cover_all_pairs(num_clients):
    """Tests a pair that is the only one, and one of more pairs than int32 can hold."""
    options = {"num_clients": num_clients, "clients_per_round": 1, "alpha_learning_rate": 1e3}
    process = eager("pgfed", quadratic_model(*DIMS), local_sgd(RATE), **options)
    client = make_client(process, num_clients - 1, examples_of(0, broken=False))
    _, second = each_round(process, [client], [(0,)] * 2)
    metrics = second.metrics["train"]["server"]
    assert float(metrics["alpha_zeros"]) == pytest.approx(1 / num_clients**2)
    is_only = num_clients == 1
    assert metrics["alpha_mean"] == metrics["alpha_max"] == (0 if is_only else 1)


def test_snapshot_and_metrics_describe_alpha():
    federation = after(*COHORTS[:3])
    metrics = federation.next((0,)).metrics["train"]["server"]
    alpha = federation.alpha
    assert_equal(federation.process.snapshot(federation.state)["alpha"], alpha)
    assert metrics["alpha_mean"] == pytest.approx(alpha.mean())
    assert metrics["alpha_max"] == alpha.max()
    assert 0 < metrics["alpha_zeros"] == pytest.approx(np.mean(alpha == 0))
