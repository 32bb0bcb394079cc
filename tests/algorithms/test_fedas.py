"""Tests FedAS: its limit FedPer, and its rounds and its weights against NumPy."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.algorithms.rounds import batches_of, cross_entropy, drawn, each_round, linear_network
from tests.federation import assert_close, assert_equal, differ, eager, make_client, trained
from tff_pfl.algorithms.fedas import batch_fisher_trace, fisher_trace
from tff_pfl.local import Examples, LocalTraining, trees
from tff_pfl.models.example_weights import with_weights

IN, CLASSES, SEED = 3, 3, 2
RATE, MOMENTUM, EPOCHS, BATCH = 0.2, 0.6, 2, 4
SIZES = (5, 7, 4, 0)  # with partial batches, and a client without examples
COHORTS = ((0, 1), (0, 2, 3), (1, 0))
XS, YS = drawn(SIZES, IN, CLASSES)
AS_FEDPER = {"personalized": "current", "weighting": "num_examples"}


def test_without_alignment_and_with_weights_of_fedper_it_is_fedper():
    found, expected = trained("fedas", **AS_FEDPER, alignment_epochs=0), trained("fedper")
    assert_equal(found.shared, expected.shared)
    assert_equal(found.personal, expected.personal)


@pytest.mark.thorough
def test_before_a_second_participation_bodies_are_not_aligned():
    options = {**AS_FEDPER, "alignment_learning_rate": 1.0}
    found, expected = (
        trained(name, cohorts=((0, 1), (2,)), **own)
        for name, own in (("fedas", options), ("fedper", {}))
    )
    assert_equal(found.shared, expected.shared)
    assert differ(trained("fedas", **options).shared, trained("fedper").shared)


@pytest.mark.thorough
def test_any_layers_can_be_personal():
    """Features may depend on personal layers, or the body may be empty."""
    for layers in (("dense1",), (), ("dense1", "head")):
        own = {**AS_FEDPER, "alignment_epochs": 0, "personal_layers": layers}
        assert_equal(
            trained("fedas", **own).shared, trained("fedper", personal_layers=layers).shared
        )
        trained("fedas", personal_layers=layers)


def gradients(model, x, y):
    """Returns the gradient of the mean loss."""
    body, bias, kernel = model
    features = x @ body
    _, error = cross_entropy(features @ kernel + bias, y)
    return [x.T @ error @ kernel.T, np.sum(error, axis=0), features.T @ error]


def aligned(body, last, i, batches, rate):
    centres = {y: np.mean((XS[i] @ last)[YS[i] == y], axis=0) for y in set(YS[i])}
    velocity = 0.0
    for rows in batches:
        x = XS[i][rows]
        apart = x @ body - np.array([centres[y] for y in YS[i][rows]])
        velocity = MOMENTUM * velocity + x.T @ (2 * apart / apart.size)
        body = body - rate * velocity
    return body


def descended(model, velocity, i, batches):
    for rows in batches:
        gradient = gradients(model, XS[i][rows], YS[i][rows])
        velocity = [MOMENTUM * v + g for v, g in zip(velocity, gradient, strict=True)]
        model = [w - RATE * v for w, v in zip(model, velocity, strict=True)]
    return model, velocity


def squared_norms(model, i, size):
    """Returns the squared norm of the gradient of each batch of this size."""
    batches = [np.arange(SIZES[i])[k : k + size] for k in range(0, SIZES[i], size)]
    return [
        sum(np.sum(g**2) for g in gradients(model, XS[i][rows], YS[i][rows])) for rows in batches
    ]


def weight_of(model, i, weighting):
    if weighting == "batch_fisher":
        return np.sum(squared_norms(model, i, BATCH))
    return np.mean(squared_norms(model, i, 1) or [0.0])


def examples_of(i):
    return Examples(np.float32(XS[i]), np.int32(YS[i]), np.int32(SIZES[i]))


OTHERS = {"weighting": "batch_fisher", "alignment_epochs": 2, "alignment_learning_rate": 0.3}


@pytest.mark.thorough_but_one
@pytest.mark.parametrize(("options", "persists"), [({}, False), (OTHERS, True)])
def test_rounds_agree_with_numpy(options, persists):
    model = linear_network(IN, has_bias=True)
    local = LocalTraining(
        tff.learning.optimizers.build_sgdm(RATE, MOMENTUM),
        epochs=EPOCHS,
        batch_size=BATCH,
        persist_optimizer_state=persists,
    )
    process = eager("fedas", model, local, seed=SEED, **options)
    clients = [make_client(process, i, examples_of(i)) for i in range(len(SIZES))]
    epochs, rate = options.get("alignment_epochs", 1), options.get("alignment_learning_rate", 0.01)
    initial = [np.float64(leaf) for leaf in tf.nest.flatten(model.init(SEED))]
    body, own, velocities = initial[0], {}, {}
    for round_num, (cohort, state, now, _) in enumerate(each_round(process, clients, COHORTS)):
        bodies, weights = [], []
        for i in cohort:
            batches, alignment_batches = (
                batches_of(SIZES[i], i, round_num, epochs=number, batch_size=BATCH, seed=SEED)
                for number in (EPOCHS, epochs)
            )
            start = aligned(body, own[i][0], i, alignment_batches, rate) if i in own else body
            new, velocity = descended(
                [start, *own.get(i, initial)[1:]], velocities.get(i, [0.0] * 3), i, batches
            )
            bodies.append(new[0])
            weights.append(weight_of(new, i, options.get("weighting")))
            if SIZES[i]:
                own[i] = new
                velocities |= {i: velocity} if persists else {}
        body = np.average(bodies, axis=0, weights=weights)
        assert_close(state.algorithm.weights, [body])
        assert_close([now[i].state.model for i in own], list(own.values()))
    expected = [own.get(i, [body, *initial[1:]]) for i in range(len(SIZES))]
    assert_close(process.personalize(state, now), expected)


@pytest.mark.parametrize(
    ("trace", "options"), [(fisher_trace, {}), (batch_fisher_trace, {"batch_size": BATCH})]
)
def test_weights_of_examples_count_but_penalties_and_sums_of_losses_do_not(trace, options):
    """A weight of 2 counts as two equal examples, which are in the same batch here."""
    x, y, rows = np.float32(XS[2][:3]), np.int32(YS[2][:3]), [0, 1, 1, 2]
    model = linear_network(IN, has_bias=True)
    changed = dataclasses.replace(
        model,
        task=dataclasses.replace(model.task, reduction="sum"),
        penalty=lambda weights: trees.dot(weights, weights),
    )
    weighted = Examples(x, with_weights(y, np.float32([1, 2, 1])), np.int32(3))
    found = trace(changed, model.init(SEED), weighted, **options)
    twice = Examples(x[rows], y[rows], np.int32(4))
    assert_close(found, trace(model, model.init(SEED), twice, **options))
