"""Tests FedKD: its limit of FedAvg beside Local, its rounds against NumPy, and low ranks."""

import collections
import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.algorithms.rounds import (
    batches_of,
    clients_with,
    cross_entropy,
    drawn,
    each_round,
    linear_network,
    normalized_network,
)
from tests.federation import assert_close, differ, eager
from tests.marks import together
from tff_pfl.algorithms.fedkd import low_rank
from tff_pfl.local import LocalTraining

IN, CLASSES, WIDE, SEED = 4, 3, 3, 2
RATE, MOMENTUM, EPOCHS, BATCH = 0.1, 0.6, 2, 4
BATCHES = {"epochs": EPOCHS, "batch_size": BATCH, "seed": SEED}
SIZES = (5, 7, 4, 0)  # with partial batches, and a client without examples
COHORTS = ((0, 1), (0, 2, 3), (1, 0))
XS, YS = drawn(SIZES, IN, CLASSES)


def wide(seed):
    """Returns weights of a network with more features than that of `linear_network`."""
    body = tf.random.stateless_normal((IN, WIDE), [seed, 0])
    head = tf.random.stateless_normal((WIDE, CLASSES), [seed, 1])
    head = collections.OrderedDict(kernel=head, bias=tf.zeros([CLASSES]))
    return collections.OrderedDict(body=collections.OrderedDict(kernel=body), head=head)


MENTEE = linear_network(IN, has_bias=False)
MENTOR = dataclasses.replace(linear_network(IN, has_bias=True), init=wide)


def local_training(**options):
    optimizer = tff.learning.optimizers.build_sgdm(RATE, MOMENTUM)
    return LocalTraining(optimizer, epochs=EPOCHS, batch_size=BATCH, **options)


def federation(name="fedkd", model=MENTOR, local=None, **options):
    """Returns a process and its clients."""
    process = eager(name, model, local or local_training(), **options, seed=SEED)
    return process, clients_with(process, XS, YS)


@pytest.mark.thorough_but_one
@pytest.mark.parametrize(
    ("model", "energy"),
    [(lambda: MENTOR, 1.0), (lambda: MENTOR, 0.6), (lambda: normalized_network(IN), 1.0)],
    ids=["linear", "low_rank", "normalized"],
)
def test_without_distillation_it_is_fedavg_beside_local(model, energy):
    """Low ranks change the mentee alone. Covers moving statistics."""
    options = {"distillation": 0.0, "alignment": 0.0}
    options |= {"start_energy": energy, "end_energy": energy}
    local = local_training(clip_norm=0.5, persist_optimizer_state=True)
    model, found = model(), {}
    for name, given in (("fedkd", options), ("fedavg", {}), ("local", {})):
        *_, found[name] = each_round(*federation(name, model, local, **given), COHORTS)
    own, expected = (
        [[client.state.model[layer] for layer in model.layers] for client in found[name].clients]
        for name in ("fedkd", "local")
    )
    assert_close(own, expected, 1e-6)
    shared = [found[name].state.algorithm.weights for name in ("fedkd", "fedavg")]
    if energy == 1.0:
        assert_close(*shared, 1e-6)
    else:
        assert differ(*shared)


def softmax(logits):
    return np.exp(logits) / np.sum(np.exp(logits), axis=1, keepdims=True)


def divergence(target, logits):
    p, q = softmax(target), softmax(logits)
    return np.mean(np.sum(p * np.log(p / q), axis=1))


def outputs(model, x):
    """Returns features and logits; a model is a body, perhaps a bias, the head, and others."""
    body, *bias, kernel = model
    return x @ body, x @ body @ kernel + sum(bias)


def gradient(model, x, slope, by_features):
    """Returns the gradient of a loss, from its gradients by logits and features."""
    body, *bias, kernel = model
    return [
        x.T @ (slope @ kernel.T + by_features),
        *(slope.sum(axis=0) for _ in bias),
        (x @ body).T @ slope,
    ]


def client_round(i, mentor, projection, mentee, round_num, distillation, alignment):
    """Returns the mentor, its projection and the mentee after training."""
    weights = [*mentor, projection, *mentee]
    n, velocity = len(mentor), [0.0] * len(weights)
    for rows in batches_of(SIZES[i], i, round_num, **BATCHES):
        x, y = XS[i][rows], YS[i][rows]
        mentor, projection, mentee = weights[:n], weights[n], weights[n + 1 :]
        (h, z), (h_mentee, z_mentee) = outputs(mentor, x), outputs(mentee, x)
        (loss, slope), (loss_mentee, slope_mentee) = cross_entropy(z, y), cross_entropy(z_mentee, y)
        total = loss + loss_mentee
        residual = h - h_mentee @ projection
        pull = alignment * 2 * residual / residual.size / total
        apart = distillation * (softmax(z) - softmax(z_mentee)) / len(y) / total
        learned, learned_mentee = (
            (distillation * divergence(*pair) + alignment * np.mean(residual**2)) / total**2
            for pair in ((z_mentee, z), (z, z_mentee))
        )
        found = [
            *gradient(mentor, x, (1 - learned) * slope + apart, pull),
            -h_mentee.T @ pull,
            *gradient(mentee, x, (1 - learned_mentee) * slope_mentee - apart, -pull @ projection.T),
        ]
        velocity = [MOMENTUM * v + g for v, g in zip(velocity, found, strict=True)]
        weights = [w - RATE * v for w, v in zip(weights, velocity, strict=True)]
    return weights[:n], weights[n], weights[n + 1 :]


def truncated(matrix, energy):
    """Returns the matrix of low rank, and the number of numbers of its factors."""
    u, s, v = np.linalg.svd(matrix, full_matrices=False)
    rank = 1 + np.argmax(np.cumsum(s**2) > energy * np.sum(s**2))
    return (u * s)[:, :rank] @ v[:rank], min(rank * (sum(matrix.shape) + 1), matrix.size)


def factored(change, energy):
    found, numbers = zip(*(truncated(matrix, energy) for matrix in change), strict=True)
    return list(found), sum(numbers) / sum(matrix.size for matrix in change)


OTHERS = {"distillation": 0.7, "alignment": 2.0, "start_energy": 0.4, "end_energy": 0.96}
OTHERS["energy_rounds"] = 2


@pytest.mark.thorough_but_one
@pytest.mark.parametrize("options", [OTHERS, {}], ids=["others", "defaults"])
def test_rounds_agree_with_numpy(options):
    process, clients = federation(network=MENTEE, **options)
    mentor, mentee = start_of(MENTOR), start_of(MENTEE)
    projection = np.float64(clients[0].state.model["mentee_to_mentor"]["kernel"])
    own, projections = [mentor] * len(SIZES), [projection] * len(SIZES)
    factors = [options.get(name, 1.0) for name in ("distillation", "alignment")]
    start, end = options.get("start_energy", 0.95), options.get("end_energy", 0.98)
    for t, (cohort, state, now, metrics) in enumerate(each_round(process, clients, COHORTS)):
        energy = start + (end - start) * min((t + 1) / options.get("energy_rounds", 100), 1)
        changes, shares = [], []
        for i in cohort:
            own[i], projections[i], new = client_round(
                i, own[i], projections[i], mentee, t, *factors
            )
            if SIZES[i]:
                change = [a - b for a, b in zip(new, mentee, strict=True)]
                change, share = factored(change, energy)
                changes, shares = [*changes, change], [*shares, share]
        sizes = [SIZES[i] for i in cohort if SIZES[i]]
        mean = [np.average(leaf, axis=0, weights=sizes) for leaf in zip(*changes, strict=True)]
        step, share = factored(mean, energy)
        mentee = [w + s for w, s in zip(mentee, step, strict=True)]
        assert_close(state.algorithm.weights, mentee)
        expected = [[*model, m] for model, m in zip(own, projections, strict=True)]
        assert_close([client.state.model for client in now], expected)
        assert metrics["train"]["factored_share"] == pytest.approx(np.mean(shares), rel=1e-6)
        assert metrics["train"]["server"]["factored_share"] == pytest.approx(share, rel=1e-6)
    assert_close(process.personalize(state, now), own)
    assert_close(process.global_weights(state), mentee)


def test_a_batch_without_weight_changes_nothing():
    """The sum of both losses, by which others are divided, is then 0."""
    process, clients = federation(network=MENTEE)
    y = {"label": np.int32(YS[0]), "sample_weight": np.zeros(SIZES[0], np.float32)}
    client = clients[0]._replace(data=clients[0].data._replace(y=y))
    before = process.initialize()
    state, (after,), metrics = process.next(before, [client])
    assert metrics["train"]["num_nonfinite"] == 0
    assert_close(state.algorithm.weights, before.algorithm.weights)
    assert_close(after.model, client.state.model)


def start_of(model):
    return [np.float64(leaf) for leaf in tf.nest.flatten(model.init(SEED))]


@together("shape", [(7, 4), (4, 7), (3, 3, 2, 5), (5, 5)])
@together("energy", [0.0, 0.5, 0.9])
def test_matrices_have_the_lowest_rank_of_an_energy(shape, energy):
    leaf = np.random.default_rng(1).normal(size=shape)
    expected, numbers = truncated(leaf.reshape(-1, shape[-1]), energy)
    change = {"conv": {"bias": tf.constant([3.0, 4.0]), "kernel": tf.constant(leaf, tf.float32)}}
    found, share = low_rank(change, tf.constant(energy))
    np.testing.assert_array_equal(found["conv"]["bias"], [3, 4])
    assert_close(found["conv"]["kernel"], expected.reshape(shape))
    assert float(share) == pytest.approx((2 + numbers) / (2 + leaf.size))


@together(("energy", "rank"), [(0.0, 1), (0.49, 1), (0.5, 2), (0.9, 5), (1.0, 5)])
def test_the_energy_is_exceeded(energy, rank):
    matrix = tf.constant(np.diag(np.float32([1, 1, 2, 1, 1])))
    found, share = low_rank({"a": {"kernel": matrix}}, tf.constant(energy))
    assert np.linalg.matrix_rank(found["a"]["kernel"], tol=1e-3) == rank
    assert float(share) == pytest.approx(min(1, rank * 11 / 25))


def test_nothing_is_lost_of_zeros_and_of_numbers_that_are_not_finite():
    matrix = tf.constant([[0.0, 1.0], [np.nan, 0.0]])
    found, _ = low_rank({"a": {"kernel": matrix, "zeros": tf.zeros([2, 3])}}, tf.constant(0.9))
    assert not np.all(np.isfinite(found["a"]["kernel"]))
    np.testing.assert_array_equal(found["a"]["zeros"], np.zeros([2, 3]))
