"""Tests FML: its limit of FedAvg beside Local, and its rounds against NumPy."""

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
from tests.federation import assert_close, eager
from tff_pfl.local import LocalTraining

IN, CLASSES, SEED = 3, 3, 2
RATE, MOMENTUM, EPOCHS, BATCH, CLIP = 0.2, 0.6, 2, 4, 0.7
BATCHES = {"epochs": EPOCHS, "batch_size": BATCH, "seed": SEED}
SIZES = (5, 7, 4, 0)  # with partial batches, and a client without examples
COHORTS = ((0, 1), (0, 2, 3), (1, 0))
XS, YS = drawn(SIZES, IN, CLASSES)
OWN, SHARED = linear_network(IN, has_bias=True), linear_network(IN, has_bias=False)


def local_training(**options):
    optimizer = tff.learning.optimizers.build_sgdm(RATE, MOMENTUM)
    return LocalTraining(optimizer, epochs=EPOCHS, batch_size=BATCH, **options)


def federation(model, name="fml", local=None, **options):
    """Returns a process and its clients."""
    process = eager(name, model, local or local_training(), **options, seed=SEED)
    return process, clients_with(process, XS, YS)


@pytest.mark.thorough_but_one
@pytest.mark.parametrize(
    "model", [lambda: OWN, lambda: normalized_network(IN)], ids=["linear", "normalized"]
)
def test_with_labels_alone_it_is_fedavg_beside_local(model):
    """Covers moving statistics, and optimizers and clipping of each model's own."""
    model, found = model(), {}
    local = local_training(clip_norm=0.5, weight_decay=0.1, persist_optimizer_state=True)
    for name, options in (("fml", {"alpha": 1.0, "beta": 1.0}), ("fedavg", {}), ("local", {})):
        *_, found[name] = each_round(*federation(model, name, local, **options), COHORTS)
    shared = [found[name].state.algorithm.weights for name in ("fml", "fedavg")]
    assert_close(*shared, 1e-6)
    own = [[client.state.model for client in found[name].clients[:3]] for name in ("fml", "local")]
    assert_close(*own, 1e-6)


@pytest.mark.thorough
def test_models_that_are_equal_learn_from_labels_alone():
    """Covers outputs to learn from, which are those of training."""
    model, found = normalized_network(IN), []
    for name, share in (("fml", 1.0), ("local", 0.5)):
        optimizer = tff.learning.optimizers.build_sgdm(share * RATE, MOMENTUM)
        local = LocalTraining(optimizer, epochs=EPOCHS, batch_size=BATCH)
        (end,) = each_round(*federation(model, name, local), [(1,)])
        found.append(end.clients[1].state.model)
    assert_close(*found, 1e-6)


def softmax(logits):
    return np.exp(logits) / np.sum(np.exp(logits), axis=1, keepdims=True)


def logits_of(model, x):
    body, *bias, kernel = model
    return x @ body @ kernel + sum(bias)


def stepped(model, velocity, x, slope, longest):
    """Returns the model and the velocity after a step; `slope` is the gradient by the logits."""
    body, *bias, kernel = model
    gradient = [
        x.T @ slope @ kernel.T,
        *(slope.sum(axis=0) for _ in bias),
        (x @ body).T @ slope,
    ]
    norm = np.sqrt(sum(np.sum(g**2) for g in gradient))
    gradient = [g * min(1, longest / norm) for g in gradient]
    velocity = [MOMENTUM * v + g for v, g in zip(velocity, gradient, strict=True)]
    return [w - RATE * v for w, v in zip(model, velocity, strict=True)], velocity


def client_round(i, own, shared, round_num, alpha, beta, longest):
    """Returns both models after training: the body, perhaps a bias, and the kernel of the head."""
    fast_own, fast_shared = [0.0] * len(own), [0.0] * len(shared)
    for rows in batches_of(SIZES[i], i, round_num, **BATCHES):
        x, y = XS[i][rows], YS[i][rows]
        z_own, z_shared = logits_of(own, x), logits_of(shared, x)
        (_, to_own), (_, to_shared) = cross_entropy(z_own, y), cross_entropy(z_shared, y)
        apart = (softmax(z_own) - softmax(z_shared)) / len(y)
        slope = alpha * to_own + (1 - alpha) * apart
        own, fast_own = stepped(own, fast_own, x, slope, longest)
        slope = beta * to_shared - (1 - beta) * apart
        shared, fast_shared = stepped(shared, fast_shared, x, slope, longest)
    return own, shared


OTHERS = {"alpha": 0.3, "beta": 0.8, "network": SHARED}


@pytest.mark.thorough_but_one
@pytest.mark.parametrize(
    ("options", "clip_norm"), [(OTHERS, CLIP), ({}, None)], ids=["others", "defaults"]
)
def test_rounds_agree_with_numpy(options, clip_norm):
    process, clients = federation(OWN, local=local_training(clip_norm=clip_norm), **options)
    start = start_of(OWN)
    own, shared = [start] * len(SIZES), start_of(SHARED) if options else start
    shares = options.get("alpha", 0.5), options.get("beta", 0.5), clip_norm or np.inf
    for round_num, (cohort, state, now, _) in enumerate(each_round(process, clients, COHORTS)):
        both = {i: client_round(i, own[i], shared, round_num, *shares) for i in cohort}
        own = [both[i][0] if i in both else model for i, model in enumerate(own)]
        sizes = [SIZES[i] for i in cohort]
        shared = [
            np.average(leaves, axis=0, weights=sizes)
            for leaves in zip(*(pair[1] for pair in both.values()), strict=True)
        ]
        assert_close(state.algorithm.weights, shared)
        assert_close([client.state.model for client in now], own)
    newcomer = own[3] if options else shared  # of the same network
    assert_close(process.personalize(state, now), [*own[:3], newcomer])
    assert_close(process.global_weights(state), shared)


def start_of(model):
    return [np.float64(leaf) for leaf in tf.nest.flatten(model.init(SEED))]
