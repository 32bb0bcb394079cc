"""Tests PLGU-LF: its limits, its personal layers, its rounds on quadratics, and clipping."""

import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf

from tests.algorithms.rounds import each_round
from tests.federation import (
    COHORTS,
    IMAGE_SHAPE,
    NUM_CLASSES,
    SIZES,
    assert_close,
    assert_equal,
    eager,
    last,
    local_sgd,
    make_clients,
    run_rounds,
    trained,
    with_shared,
)
from tests.marks import slow
from tests.quadratics import quadratic_clients, quadratic_model, spd, vector_of
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


def client_away(process, state, client_id, distances):
    """Returns a client whose stored model differs from `w` by a distance for each layer."""
    model = {
        name: tf.nest.map_structure(functools.partial(np.add, np.float32(distance)), layer)
        for (name, layer), distance in zip(state.algorithm.weights.items(), distances, strict=True)
    }
    client = make_clients(process, SIZES)[client_id]
    own = client.state._replace(model=model, participations=np.int32(1))
    return client._replace(state=own)


# The distances of the last client have the norms 9.2, 2.9, 1.9 and 0, but per weight the first
# layer is only third.
DISTANCES = ([1.0, 0.01, 0.02, 0.9], [0.01, 2.0, -3.0, 0.01], [1.0, 0.6, 0.5, 0.0])
PERSONAL = ([0, 3], [1, 2], [1, 2])


@pytest.mark.thorough
@pytest.mark.parametrize("xi_scale", [1.0, 0.0])
def test_client_starts_from_its_own_layers_that_differ_most(xi_scale):
    process = eager("plgu_lf", DEEP, FROZEN, num_personal_layers=2, xi_scale=xi_scale, seed=1)
    state = with_shared(process.initialize(), tf.nest.map_structure(np.asarray, DEEP.init(5)))
    clients = [client_away(process, state, i, d) for i, d in enumerate(DISTANCES)]
    output = process.next(state, clients)
    assert_equal(output.state.algorithm.weights, state.algorithm.weights)
    for client, new, personal in zip(clients, output.clients, PERSONAL, strict=True):
        for index, name in enumerate(DEEP.layers):
            source = client.state.model if index in personal else state.algorithm.weights
            assert_equal(new.model[name], source[name])
        assert new.participations == 2


@pytest.mark.thorough
def test_norm_belongs_to_the_layer_it_follows():
    """The dense layer is personal too, though only its norm has moved far."""
    process = eager("plgu_lf", tiny_normalized_model(), FROZEN)
    state = process.initialize()
    weights, client = state.algorithm.weights, client_away(process, state, 0, [1e-4, 1.0, 0.1])
    assert list(weights) == ["dense1", "norm", "head"]
    (new,) = process.next(state, [client]).clients
    assert_equal(new.model["head"], weights["head"])
    assert_equal(
        [new.model[layer] for layer in ("dense1", "norm")], list(client.state.model.values())[:2]
    )


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


def on_quadratics(name, **options):
    """Returns a process and its clients, which have one example each."""
    local = local_sgd(RATE, STEPS, 1, clip_norm=options.pop("clip_norm", None))
    process = eager(name, quadratic_model(2, 1), local, **options, seed=2)
    return process, quadratic_clients(process, A, C, (1, 1, 1))


def _cases():
    """Yields all combinations; the default eight have each pair of values of two options."""
    for combination, (a, b, c, d, e) in zip(COMBINATIONS, np.ndindex(2, 2, 2, 2, 2), strict=True):
        is_default = d == a ^ b and e == a ^ c
        marks = [] if is_default else [pytest.mark.slow]
        yield pytest.param(combination, id="-".join(map(str, combination)), marks=marks)


@pytest.mark.thorough_but_one
@pytest.mark.parametrize("combination", list(_cases()))
def test_rounds_match_numpy_on_quadratics(combination):
    options = dict(zip(CHOICES, combination, strict=True))
    arguments = on_quadratics("plgu_lf", rho=RHO, xi_scale=XI_SCALE, **options)
    found = each_round(*arguments, QUADRATIC_COHORTS)
    for it, (w, thetas, loss) in zip(found, rounds(combination), strict=True):
        assert_close(vector_of(it.state.algorithm.weights), w, 1e-4)
        for i in it.cohort:
            assert_close(vector_of(it.clients[i].state.model), thetas[i], 1e-4)
        assert_close(it.metrics["train"]["loss"], loss, 1e-4)


def test_gradients_of_both_models_are_clipped_separately():
    assert np.linalg.norm(A[0] @ (vector_of(quadratic_model(2, 1).init(2)) - C[0])) > 0.5
    found, expected = (
        next(each_round(*on_quadratics(name, clip_norm=0.5, **options), [(0,)])).state
        for name, options in (("plgu_lf", {"rho": 0.0}), ("fedavg", {}))
    )
    assert_close(found.algorithm.weights, expected.algorithm.weights)
