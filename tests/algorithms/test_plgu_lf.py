"""Tests PLGU-LF: its limits, its personal layers, its rounds on quadratics, and clipping."""

import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf

from tests.federation import (
    COHORTS,
    IMAGE_SHAPE,
    NUM_CLASSES,
    SIZES,
    assert_equal,
    eager,
    last,
    leaves,
    local_sgd,
    make_client,
    make_clients,
    run_rounds,
    trained,
    with_shared,
)
from tests.marks import slow
from tests.quadratics import quadratic_examples, quadratic_model, spd, vector_of
from tff_pfl import models
from tff_pfl.testing import tiny_normalized_model

NUM_LAYERS = 2


@pytest.mark.thorough
@pytest.mark.parametrize(
    "options", [slow({"rho": 0.0}), {"rho": 0.3, "perturb_layers": "universal"}]
)
def test_theta_equals_local_if_all_layers_are_personal(options):
    """Both are equal bit for bit, if Local starts from the `w` of the first participation."""
    first, clients = (
        trained("plgu_lf", cohorts=cohorts, num_personal_layers=NUM_LAYERS, **options)
        for cohorts in (COHORTS[:1], COHORTS)
    )
    process, state, own = trained("local", cohorts=COHORTS[:1])
    received = own[2].state._replace(model=first.shared)
    own = [*own[:2], own[2]._replace(state=received)]
    _, own = last(run_rounds(process, own, COHORTS[1:], state))
    assert_equal([s.model for s in clients.client_states], [c.state.model for c in own])


DEEP = models.build("mlp", IMAGE_SHAPE, NUM_CLASSES, hidden=(5, 4, 3))
FROZEN = local_sgd(learning_rate=0.0)  # theta keeps its value from the start of the round


@functools.cache
def frozen(**options):
    process = eager("plgu_lf", DEEP, FROZEN, num_personal_layers=2, **options, seed=1)
    w = tf.nest.map_structure(np.asarray, DEEP.init(5))
    return process, with_shared(process.initialize(), w)


def client_away(process, state, client_id, distances):
    """Returns a client whose stored model differs from `w` by a distance for each layer."""
    model = {
        name: tf.nest.map_structure(lambda v, d=distance: v + np.float32(d), layer)
        for (name, layer), distance in zip(state.algorithm.weights.items(), distances, strict=True)
    }
    client = make_clients(process, SIZES)[client_id]
    own = client.state._replace(model=model, participations=np.int32(1))
    return client._replace(state=own)


class TestPersonalLayers:
    # The distances of the last client have the norms 9.2, 2.9, 1.9 and 0, but per weight the first
    # layer is only third.
    DISTANCES = ([1.0, 0.01, 0.02, 0.9], [0.01, 2.0, -3.0, 0.01], [1.0, 0.6, 0.5, 0.0])
    PERSONAL = ([0, 3], [1, 2], [1, 2])

    @pytest.mark.thorough
    @pytest.mark.parametrize("xi_scale", [1.0, 0.0])
    def test_client_starts_from_its_own_layers_that_differ_most(self, xi_scale):
        process, state = frozen(xi_scale=xi_scale)
        clients = [client_away(process, state, i, d) for i, d in enumerate(self.DISTANCES)]
        output = process.next(state, clients)
        assert_equal(output.state.algorithm.weights, state.algorithm.weights)
        for client, new, personal in zip(clients, output.clients, self.PERSONAL, strict=True):
            for index, name in enumerate(DEEP.layers):
                source = client.state.model if index in personal else state.algorithm.weights
                assert_equal(new.model[name], source[name])
            assert new.participations == 2


@pytest.mark.thorough
def test_norm_belongs_to_the_layer_it_follows():
    """The dense layer is personal too, though only its norm has moved far."""
    process = eager("plgu_lf", tiny_normalized_model(), FROZEN)
    state = process.initialize()
    (client,) = make_clients(process, (4,))
    weights, own = state.algorithm.weights, {}
    for name, distance in {"dense1": 1e-4, "norm": 1.0, "head": 0.1}.items():
        shift = np.float32(distance)
        own[name] = tf.nest.map_structure(functools.partial(np.add, shift), weights[name])
    kept = client.state._replace(model=own, participations=np.int32(1))
    (new,) = process.next(state, [client._replace(state=kept)]).clients
    assert {
        name
        for name in weights
        if not all(map(np.array_equal, leaves(new.model[name]), leaves(weights[name])))
    } == {"dense1", "norm"}


# Rounds in NumPy, with a quadratic for each client.
LAYERS = [slice(0, 2), slice(2, 3)]
RATE, STEPS, RHO, XI_SCALE = 0.4, 3, 0.3, 1.7
A = [spd(3, seed=95 + i) for i in range(3)]
C = [2.0 * np.random.default_rng(195 + i).normal(size=3) for i in range(3)]
CHOICES = {
    "perturb_at": ("global", "personal"),
    "eps_from": ("personal", "global"),
    "perturb_layers": ("all", "universal"),
    "scores": ("distance", "equal"),
    "norm_order": (2.0, np.inf),
}
COMBINATIONS = list(itertools.product(*CHOICES.values()))


def client_round(w, own, a, c, perturb_at, eps_from, perturb_layers, scores, norm_order):
    """Returns `(change of w, theta, mean loss of theta)`; `own` is `None` in a first round."""
    own = w if own is None else own
    distances = np.array([np.linalg.norm((own - w)[i]) / (i.stop - i.start) for i in LAYERS])
    personal = np.argmax(distances) if np.any(distances) else 1
    xi = XI_SCALE * (distances / np.sum(distances) if np.any(distances) else np.full(2, 0.5))
    factors = np.array(xi if scores == "distance" else [1.0, 1.0])
    if perturb_layers == "universal":
        factors[personal] = 0.0
    theta, shared = np.array(w), w
    theta[LAYERS[personal]] = own[LAYERS[personal]]
    losses = []
    for _ in range(STEPS):
        losses.append(0.5 * (theta - c) @ a @ (theta - c))
        g = a @ ((theta if eps_from == "personal" else shared) - c)
        eps = RHO * (g / np.linalg.norm(g) if norm_order == 2.0 else np.sign(g))
        eps *= np.repeat(factors, [2, 1])
        centre = shared if perturb_at == "global" else theta
        perturbed = a @ (centre + eps - c)
        theta, shared = theta - RATE * a @ (theta - c), shared - RATE * perturbed
    return shared - w, theta, np.mean(losses)


QUADRATIC_COHORTS = ((0,), (1,), (0, 1))  # a client returns after a round


def rounds(combination):
    """Yields `(w, all thetas, the reported loss)` for each round of `QUADRATIC_COHORTS`."""
    w, thetas = vector_of(quadratic_model(2, 1).init(2)).astype(np.float64), [None] * 3
    for cohort in QUADRATIC_COHORTS:
        results = [client_round(w, thetas[i], A[i], C[i], *combination) for i in cohort]
        changes, new, losses = zip(*results, strict=True)
        w = w + np.mean(changes, axis=0)
        for i, theta in zip(cohort, new, strict=True):
            thetas[i] = theta
        yield w, list(thetas), np.mean(losses)


def build_quadratic(combination):
    options = dict(zip(CHOICES, combination, strict=True))
    model, local = quadratic_model(2, 1), local_sgd(RATE, STEPS, 1)
    return eager("plgu_lf", model, local, rho=RHO, xi_scale=XI_SCALE, **options, seed=2)


def assert_vector(weights, expected):
    np.testing.assert_allclose(vector_of(weights), expected, rtol=1e-4, atol=1e-5)


@functools.cache
def quadratic_clients():
    process = build_quadratic(COMBINATIONS[0])
    return [make_client(process, i, quadratic_examples(A[i], C[i])) for i in range(3)]


def _cases():
    """Yields all combinations; the default eight have each pair of values of two options."""
    for combination, (a, b, c, d, e) in zip(COMBINATIONS, np.ndindex(2, 2, 2, 2, 2), strict=True):
        is_default = d == a ^ b and e == a ^ c
        marks = [] if is_default else [pytest.mark.slow]
        yield pytest.param(combination, id="-".join(map(str, combination)), marks=marks)


@pytest.mark.thorough_but_one
@pytest.mark.parametrize("combination", list(_cases()))
def test_rounds_match_numpy_on_quadratics(combination):
    process, clients = build_quadratic(combination), list(quadratic_clients())
    state = process.initialize()
    for cohort, (w, thetas, loss) in zip(QUADRATIC_COHORTS, rounds(combination), strict=True):
        output = process.next(state, [clients[i] for i in cohort])
        state = output.state
        for i, own in zip(cohort, output.clients, strict=True):
            clients[i] = clients[i]._replace(state=own)
            assert_vector(own.model, thetas[i])
        assert_vector(state.algorithm.weights, w)
        np.testing.assert_allclose(output.metrics["train"]["loss"], loss, rtol=1e-4)


def test_gradients_of_both_models_are_clipped_separately():
    arguments = quadratic_model(2, 1), local_sgd(RATE, STEPS, 1, clip_norm=0.5)
    ends = []
    for name, options in (("fedavg", {}), ("plgu_lf", {"rho": 0.0})):
        process = eager(name, *arguments, **options)
        state, example = process.initialize(), quadratic_examples(A[0], C[0])
        start = vector_of(state.algorithm.weights)
        output = process.next(state, [make_client(process, 0, example)])
        ends.append(vector_of(output.state.algorithm.weights))
    assert np.linalg.norm(A[0] @ (start - C[0])) > 0.5
    np.testing.assert_allclose(*ends, rtol=1e-4, atol=1e-5)
