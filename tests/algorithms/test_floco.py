"""Tests Floco: its limit FedAvg, its rounds against NumPy, and its regions."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.algorithms.rounds import (
    batches_of,
    clients_with,
    cross_entropy,
    each_round,
    linear_network,
)
from tests.federation import assert_close, eager, trained
from tff_pfl.algorithms.floco.regions import Region, drawn, fitted
from tff_pfl.local import LocalTraining
from tff_pfl.local.seeds import client_seed, run_seed
from tff_pfl.models import multi_branch

IN, CLASSES, SEED, M = 3, 3, 2, 3
RATE, MOMENTUM, EPOCHS, BATCH = 0.2, 0.6, 2, 4
SIZES = (5, 7, 4, 6, 0)  # with partial batches, and a client without examples
COHORTS = ((0, 1), (0, 2, 4), (2, 1, 3), (3, 0))  # client 3 has a region after the others
RNG = np.random.default_rng(0)
XS = [RNG.normal(i % 2, 1, size=(n, IN)) for i, n in enumerate(SIZES)]
YS = [RNG.choice(CLASSES, n) for n in SIZES]


def test_with_one_endpoint_it_is_fedavg():
    found, expected = trained("floco", num_clients=3, endpoints=1), trained("fedavg")
    (head,) = (layer for name, layer in found.shared.items() if name == "head")
    assert {leaf.shape[0] for leaf in head.values()} == {1}
    assert_close(found.personal, expected.personal, 1e-6)


def nearest(rows):
    """Returns the nearest points of the simplex, by the rule of sorted sums."""
    rows = rows - np.max(rows, axis=-1, keepdims=True)
    sums = np.cumsum(-np.sort(-rows, axis=-1), axis=-1)
    thresholds = (sums - 1) / np.arange(1, rows.shape[-1] + 1)
    return np.maximum(rows - np.max(thresholds, axis=-1, keepdims=True), 0)


def projection(updates, size=M):
    """Returns the function from an update to its centre, by a singular value decomposition."""
    mean = np.mean(updates, axis=0)
    _, lengths, components = np.linalg.svd(updates - mean, full_matrices=False)
    components = components[lengths > 1e-6][:size]
    largest = np.argmax(np.abs(components), axis=1)
    components *= np.sign(components[np.arange(len(components)), largest])[:, np.newaxis]

    def centres(updates, z):
        scores = (updates - mean) @ components.T
        return nearest(np.pad(scores, [(0, 0), (0, size - len(components))]) / z)

    def energy(z):
        points = centres(updates, z)
        apart = np.linalg.norm(points[:, np.newaxis] - points, axis=-1)
        return np.sum(1 / np.maximum(apart[np.triu_indices(len(points), 1)], 1e-4) ** 2)

    best = min(np.linspace(1e-4, 1, 1000), key=energy)
    return lambda updates: centres(updates, best)


def point(centre, rho, seed):
    """Returns the point that a client draws for a batch."""
    seed = tf.random.experimental.stateless_fold_in(seed, -1)
    tiny = np.finfo(np.float32).tiny
    *numbers, distance = np.float64(
        tf.random.stateless_uniform([M + 1], seed, minval=tiny, maxval=1.0)
    )
    if centre is None:
        return np.log(numbers) / np.sum(np.log(numbers))
    direction = numbers - np.mean(numbers)
    return nearest(centre + rho * distance * direction / np.sum(np.abs(direction)))


def descended(model, velocity, i, round_num, centre, rho):
    """Trains the body, and the biases and the kernels of the endpoints."""
    drawn_seed = client_seed(run_seed(SEED, 0), tf.constant(round_num), tf.constant(i))
    batches = batches_of(SIZES[i], i, round_num, epochs=EPOCHS, batch_size=BATCH, seed=SEED)
    for number, rows in enumerate(batches):
        epoch, step = divmod(number, len(batches) // EPOCHS)
        seed = tf.random.experimental.stateless_fold_in(drawn_seed, epoch + EPOCHS * (1 + step))
        alpha = point(centre, rho, seed)
        body, biases, kernels = model
        kernel = np.tensordot(alpha, kernels, 1)
        x, y = XS[i][rows], YS[i][rows]
        _, error = cross_entropy(x @ body @ kernel + alpha @ biases, y)
        upper = [np.sum(error, axis=0), (x @ body).T @ error]
        gradient = [x.T @ error @ kernel.T, *(np.multiply.outer(alpha, g) for g in upper)]
        velocity = [MOMENTUM * v + g for v, g in zip(velocity, gradient, strict=True)]
        model = [w - RATE * v for w, v in zip(model, velocity, strict=True)]
    return model, velocity


@pytest.mark.thorough_but_one
@pytest.mark.parametrize(("rho", "weighting"), [(0.1, "num_examples"), (0.6, "uniform")])
def test_rounds_agree_with_numpy(rho, weighting):
    model, persists = linear_network(IN, has_bias=True), weighting == "uniform"
    local = LocalTraining(
        tff.learning.optimizers.build_sgdm(RATE, MOMENTUM),
        epochs=EPOCHS,
        batch_size=BATCH,
        persist_optimizer_state=persists,
    )
    options = {"num_clients": len(SIZES), "endpoints": M, "tau": 2}
    if persists:
        options |= {"rho": rho, "weighting": weighting}
    process = eager("floco", model, local, seed=SEED, **options)
    clients = clients_with(process, XS, YS)
    initial = multi_branch(model, M, layers="head").init(SEED)
    shared = [np.float64(leaf) for leaf in tf.nest.flatten(initial)]
    updates, centres, velocities, centre_of = {}, {}, {}, None
    for round_num, it in enumerate(each_round(process, clients, COHORTS)):
        cohort, changes = [i for i in it.cohort if SIZES[i]], []
        for i in cohort:
            velocity = velocities.get(i, [0.0] * 3)
            own, velocity = descended(shared, velocity, i, round_num, centres.get(i), rho)
            velocities |= {i: velocity} if persists else {}
            changes.append([w - w0 for w, w0 in zip(own, shared, strict=True)])
            updates[i] = np.concatenate([change.ravel() for change in changes[-1][1:]])
        weights = None if weighting == "uniform" else [SIZES[i] for i in cohort]
        shared = [
            w + np.average(own, axis=0, weights=weights)
            for w, own in zip(shared, zip(*changes, strict=True), strict=True)
        ]
        if round_num == 1:
            centre_of = projection(np.array(list(updates.values())))
        if centre_of is not None:
            centres |= {
                i: centre_of(updates[i][np.newaxis])[0] for i in updates.keys() - centres.keys()
            }
        assert_close(it.state.algorithm.weights, shared)
        assert it.metrics["train"]["server"]["assigned"] == len(centres)
        body, biases, kernels = shared
        alphas = [centres.get(i, np.full(M, 1 / M)) for i in range(len(SIZES))]
        expected = [(body, a @ biases, np.tensordot(a, kernels, 1)) for a in alphas]
        assert_close(process.personalize(it.state, it.clients), expected)
        mean = (body, np.mean(biases, axis=0), np.mean(kernels, axis=0))
        assert_close(process.global_weights(it.state), mean)
    assert len(np.unique(alphas, axis=0)) > 2


@pytest.mark.thorough
def test_points_are_uniform_in_the_simplex_or_near_the_centre():
    number, radius, centres = 2000, 0.1, [[0.2, 0.3, 0.5]] * 2 + [[1.0, 0.0, 0.0]]
    regions = Region(tf.repeat(centres, number, 0), tf.repeat([False, True, True], number))
    seeds = tf.stack([tf.range(3 * number), tf.zeros([3 * number], tf.int32)], axis=1)
    found = tf.vectorized_map(lambda it: drawn(it[0], radius, it[1]), (regions, seeds)).numpy()
    assert np.min(found) >= 0
    assert_close(np.sum(found, axis=1), np.ones(3 * number))
    anywhere, *near = np.split(found, 3)
    assert_close(np.mean(anywhere, axis=0), np.full(3, 1 / 3), 0.03)
    assert_close(np.var(anywhere, axis=0), np.full(3, 1 / 18), 0.1)
    for points, centre in zip(near, centres[1:], strict=True):
        distances = np.sum(np.abs(points - centre), axis=1)
        assert 0.9 * radius < np.max(distances) < 1.0001 * radius
    assert_close(drawn(Region(*(it[-1] for it in regions)), 0.0, seeds[0]), np.array(centres[2]))


@pytest.mark.thorough
@pytest.mark.parametrize("size", [4, 12])
def test_centres_agree_with_numpy(size):
    """There are more and fewer clients than endpoints; few clients are at the corners."""
    rng = np.random.default_rng(size)
    updates = rng.normal(size=(size, 8)) * 0.3
    updates[-1] = updates[0] + 0.003  # similar clients have near centres
    late = rng.normal(size=(3, 8)) * 0.3
    found = fitted(tf.constant(updates, tf.float32), 5)
    centre_of = projection(updates, 5)
    for rows in (updates, late):
        expected = centre_of(rows)
        assert_close(found.centres(tf.constant(rows, tf.float32)), expected, 1e-4)
    assert size == 4 or np.any((expected > 0.1) & (expected < 0.9))


@pytest.mark.thorough_but_one
@pytest.mark.parametrize("updates", [np.ones([1, 4]), np.ones([3, 4]), np.zeros([2, 4])])
def test_clients_without_differences_are_at_the_centre(updates):
    """No principal component exists, or fewer than endpoints."""
    updates = tf.constant(updates, tf.float32)
    assert_close(fitted(updates, 5).centres(updates), np.full([len(updates), 5], 0.2))
