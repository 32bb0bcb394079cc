"""Tests FedPG and S-FedPG: golden values, the paper's invariants, and against NumPy."""

import functools

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.algorithms.fedpg import reference
from tests.federation import assert_close, assert_equal, eager
from tests.marks import slow
from tests.quadratics import quadratic_examples, quadratic_model, spd, vector_of
from tff_pfl.local import LocalTraining
from tff_pfl.templates import Client

DIM = 12
RATE = 0.3


def assert_vector(found, expected, tolerance=1e-5):
    np.testing.assert_allclose(found, np.asarray(expected), rtol=tolerance, atol=tolerance)


@functools.cache
def quadratic_process(build, dim, decay, options):
    local = LocalTraining(tff.learning.optimizers.build_sgdm(RATE), learning_rate_decay=decay)
    return eager(build, quadratic_model(dim), local, seed=2, **dict(options))


class Federation:
    """FedPG on quadratic clients, together with its NumPy reference."""

    def __init__(self, build="fedpg", dim=DIM, decay=1.0, num_clients=8, **options):
        self.process = quadratic_process(build, dim, decay, tuple(options.items()))
        self.state = self.process.initialize()
        self.client_states = {}
        self.clients = {i: random_objective(dim, seed=i) for i in range(num_clients)}
        options.pop("outlier_ratio", None)
        options |= {"decay": decay, "step_search": build == "s_fedpg"}
        self.expected = reference.FedPG(self.weights, RATE, **options)

    def next(self, cohort):
        """Runs a round; returns its output and the NumPy reference's."""
        return self.next_here(cohort), self.expected.next(
            {i: objective(*self.clients[i]) for i in cohort}
        )

    def next_here(self, cohort):
        clients = [
            Client(
                np.int32(i),
                self.client_states.get(i, self.process.initialize_client(i)),
                quadratic_examples(*self.clients[i]),
            )
            for i in cohort
        ]
        output = self.process.next(self.state, clients)
        self.state = output.state
        self.client_states.update(zip(cohort, output.clients, strict=True))
        return output

    @property
    def plan(self):
        return self.state.algorithm.plan

    @property
    def weights(self):
        return vector_of(self.state.algorithm.weights)

    def model(self, client_id):
        return vector_of(self.client_states[client_id].model)

    def set_client(self, client_id, gradient, loss):
        """Gives a client this gradient and this loss at the current weights."""
        gradient = np.asarray(gradient, float)
        centre, offset = self.weights - gradient, loss - 0.5 * gradient @ gradient
        self.clients[client_id] = np.eye(len(gradient)), centre, offset


def random_objective(dim, seed):
    """Draws `(A, c, b)` with losses of about 1 around the initial weights."""
    rng = np.random.default_rng([seed, 99])
    return spd(dim, seed), rng.normal(size=dim) * 1.5, 0.1


def objective(a, c, b) -> reference.Objective:
    # Rounded to float32, as on the client.
    a, c, b = (np.float64(np.float32(value)) for value in (a, c, b))
    return reference.Objective(lambda w: 0.5 * (w - c) @ a @ (w - c) + b, lambda w: a @ (w - c))


COHORTS = ((0, 1, 2), (3, 4), (0, 5, 6), (7, 1, 2), (4, 5, 0), (6, 7, 3))


def check_against_numpy(federation, cohorts=COHORTS, tolerance=2e-4):
    for cohort in cohorts:
        output, expected = federation.next(cohort)
        plan = federation.plan
        scale = max(np.linalg.norm(expected.direction), 1e-3)
        assert_close(plan.direction / scale, expected.direction / scale, tolerance)
        assert_close(output.metrics["train"]["server"]["sigma"], expected.sigma, tolerance)
        gamma = dict(zip(plan.client_ids.tolist(), plan.gamma.tolist(), strict=True))
        assert gamma == pytest.approx(expected.gamma, abs=tolerance)
        assert plan.step == pytest.approx(expected.step, rel=1e-5)
        assert_close(federation.weights, expected.weights, tolerance)
        for client_id in cohort:
            assert_close(federation.model(client_id), expected.models[client_id], tolerance)
        yield output, expected


@pytest.mark.thorough_but_one
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"decay": 0.9, "direction": "mean"},
        {"fairness": False, "rescale_with": "raw"},
        {"fair_from": "raw", "personalize": False},
        {"absent_memory": False, "gamma_mode": "constant", "gamma": 0.6},
        {"protect_absent": True, "gamma_mode": "at_least", "gamma": 0.3},
    ],
    ids=str,
)
def test_rounds_agree_with_the_pseudo_code(options):
    cohorts = COHORTS[: 3 if options else 6]
    absent = [
        output.metrics["train"]["server"]["num_absent"]
        for output, _ in check_against_numpy(Federation(**options), cohorts)
    ]
    without_memory = "direction" in options or "absent_memory" in options
    assert absent == [0] * 3 if without_memory else absent[0] == 0 and min(absent[1:]) > 0


@pytest.mark.thorough
@pytest.mark.parametrize(
    "options",
    [slow({"search_doublings": 0}), {"search_doublings": 3, "sufficient_decrease": 0.3}],
    ids=str,
)
def test_s_fedpg_agrees_with_a_sequential_search(options):
    halvings = []
    for output, expected in check_against_numpy(Federation("s_fedpg", **options)):
        server = output.metrics["search"]["server"]
        assert bool(server["accepted"]) == expected.accepted
        if expected.accepted:
            assert server["num_halvings"] == expected.trials - 1
        assert server["num_steps"] <= (
            2 * options["search_doublings"] + 1 + np.ceil(np.log2(expected.sigma))
        )
        halvings.append(int(server["num_halvings"]))
    assert options["search_doublings"] == 0 or len(set(halvings)) > 1


# Golden values; `python -m tests.algorithms.fedpg.reference` prints them.


@pytest.mark.parametrize(
    ("num_absent", "options", "sigma", "direction", "gamma"),
    [
        (0, {}, 4.627475, [-0.043118, -0.106193, -0.238349], [0.011711, 0.008587, 0.015832]),
        (1, {}, 8.068526, [-0.043059, -0.122004, -0.230667], [0.024618, 0.004943, 0.009142]),
        (
            0,
            {"fairness": False},
            2.631112,
            [-0.058961, -0.130522, -0.222338],
            [0.020415, 0.015005, 0.027513],
        ),
    ],
)
def test_direction_has_golden_values(num_absent, options, sigma, direction, gamma):
    federation = Federation(dim=3, num_clients=0, **options)
    if num_absent:
        federation.set_client(9, reference.ABSENT, 1.0)
        federation.next_here((9,))
    for i, gradient in reference.GRADIENTS.items():
        federation.set_client(i, gradient, reference.LOSSES[i])
    before = federation.weights
    metrics = federation.next_here((0, 1, 2)).metrics["train"]["server"]
    assert metrics["num_absent"] == num_absent
    assert metrics["sigma"] == pytest.approx(sigma, rel=1e-4)
    assert_close(federation.plan.direction, np.array(direction), 3e-5)
    assert_close(federation.plan.gamma, np.array(gamma), 3e-5)
    if not num_absent and not options:
        own = (federation.model(0) - before) / RATE
        assert_close(own, np.array([-0.054324, -0.101436, -0.235558]))


@pytest.fixture(scope="module")
def fedpg():
    return Federation(num_clients=30)


@pytest.mark.thorough
def test_random_cohorts_satisfy_the_invariants(fedpg):
    """Tests in cohorts of all sizes that all losses descend, and that no client hurts another."""
    rng = np.random.default_rng(0)
    for _ in range(8):
        cohort = sorted(rng.choice(30, rng.integers(1, 6), replace=False).tolist())
        weights = fedpg.weights.astype(np.float64)
        memory = fedpg.state.algorithm.memory
        output, expected = fedpg.next(cohort)
        plan, server = fedpg.plan, output.metrics["train"]["server"]
        gradients = np.array([objective(*fedpg.clients[i]).gradient(weights) for i in cohort])
        direction = plan.direction.astype(np.float64)
        norms = np.linalg.norm(gradients, axis=1)
        if server["sigma"] == 0:
            assert_equal(direction, np.zeros(DIM))
            continue
        tiny = 1e-5 * np.linalg.norm(direction)
        assert np.all(gradients @ direction / norms < tiny)
        age = fedpg.expected.round_num - 1 - memory.rounds
        window = len(fedpg.expected.memory) / len(cohort)
        protected = (memory.client_ids >= 0) & ~np.isin(memory.client_ids, cohort)
        protected &= age <= window
        assert server["num_absent"] == protected.sum()
        old = memory.gradients[protected]
        assert np.all(old @ direction / np.linalg.norm(old, axis=1) < tiny)
        scaled = gradients / norms[:, np.newaxis]
        losses = np.array([objective(*fedpg.clients[i]).loss(weights) for i in cohort])
        fair = reference.fairness_gradient(losses) @ scaled
        assert fair @ direction <= tiny * np.linalg.norm(fair)

        assert np.linalg.norm(direction) == pytest.approx(
            norms.mean() * np.linalg.norm(scaled.mean(axis=0)), rel=1e-4
        )
        assert server["sigma"] >= 1 - 1e-6
        assert np.all((plan.gamma >= 0) & (plan.gamma <= 1))
        own = direction + plan.gamma[:, np.newaxis] * (-gradients - direction)
        conflicts = own @ gradients.T / norms  # [i, j]: d_i with g_j
        np.fill_diagonal(conflicts, -np.inf)
        assert np.all(conflicts <= tiny)
        touching = np.max(conflicts, axis=1) >= -100 * tiny
        assert np.all(touching[plan.gamma < 0.999])


def one_round(clients, **options):
    """Runs a round of clients with given gradients and losses; returns plan, models, metrics."""
    federation = Federation(dim=3, num_clients=0, **options)
    for i, client in enumerate(clients):
        federation.set_client(i, *client)
    weights = federation.weights
    output = federation.next_here(tuple(range(len(clients))))
    models = [federation.model(i) - weights for i in range(len(clients))]
    return federation.plan, models, output.metrics["train"]["server"]


G1, G2, G3 = ((1, -0.3, 0), 1.0), ((-1, 1, -0.2), 2.0), ((-1, -1, 1), 3.0)
ZERO = ((0, 0, 0), 1.0)


def times(factor, client):
    gradient, loss = client
    return tuple(factor * np.array(gradient)), loss


def test_equal_gradients_give_their_direction():
    plan, models, server = one_round([(G1[0], 0.00011253355478402227)] * 3)
    assert_vector(plan.direction, -np.array(G1[0]))
    assert_vector(plan.gamma, [1, 1, 1])
    assert_vector(models, [-RATE * np.array(G1[0])] * 3)
    assert server["sigma"] == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(
    ("clients", "options"), [([G1, times(-1.0, G1)], {"fairness": False}), ([ZERO, ZERO], {})]
)
def test_pareto_stationary_clients_stay(clients, options):
    """Tests opposite gradients, and gradients of 0."""
    plan, models, server = one_round(clients, **options)
    assert server["sigma"] == 0
    assert server["num_zero_gradients"] == clients.count(ZERO)
    assert_equal(plan.direction, np.zeros(3))
    np.testing.assert_array_equal(models, np.zeros([2, 3]))


def test_client_with_gradient_0_is_dropped():
    plan, models, server = one_round([G1, ZERO, G2])
    without, _, _ = one_round([G1, G2])
    assert server["num_zero_gradients"] == 1
    assert_vector(plan.direction, without.direction)
    assert_vector(plan.gamma, [without.gamma[0], 0.0, without.gamma[1]])
    assert_vector(models[1], RATE * plan.direction)


@pytest.mark.parametrize("gamma", [0, 1])
def test_constant_gamma_gives_the_global_model_or_the_own_step(gamma):
    clients = [G1, G2, G3]
    plan, models, _ = one_round(clients, gamma_mode="constant", gamma=gamma)
    own = [-np.array(gradient) for gradient, _ in clients]
    assert_vector(models, RATE * np.array(own if gamma else [plan.direction] * 3))


@pytest.mark.thorough
def test_huge_gradient_does_not_determine_the_step():
    plan, _, _ = one_round([G1, G2, G3])
    clients = [G1, G2, G3, times(1e6, G1)]
    bounded, _, server = one_round(clients)
    assert server["num_outliers"] == 1
    assert np.linalg.norm(bounded.direction) < 2 * np.linalg.norm(plan.direction)
    free, _, server = one_round(clients, outlier_ratio=None)
    assert server["num_outliers"] == 0
    assert np.linalg.norm(free.direction) > 1e4 * np.linalg.norm(plan.direction)
