"""Tests FedCP: its rounds against NumPy, and its limits FedPer and FedBABU."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.algorithms.rounds import (
    batches_of,
    by_name,
    clients_with,
    cross_entropy,
    drawn,
    each_round,
    linear_network,
    slopes,
)
from tests.federation import (
    assert_close,
    last,
    run_rounds,
    traced,
    with_shared,
)
from tff_pfl.local import LocalTraining

IN, CLASSES, SEED = 3, 3, 2
RATE, MOMENTUM, EPOCHS, BATCH = 0.2, 0.6, 2, 4
BATCHES = {"epochs": EPOCHS, "batch_size": BATCH, "seed": SEED}
SIZES = (5, 7, 4, 0)  # with partial batches, and a client without examples
COHORTS = ((0, 1), (0, 2, 3), (1, 0))
XS, YS = drawn(SIZES, IN, CLASSES)
HEAD = ("head/bias", "head/kernel")


def run(name, has_bias=True, **options):
    """Returns a process and its clients, with the data above."""
    local = LocalTraining(
        tff.learning.optimizers.build_sgdm(RATE, MOMENTUM), epochs=EPOCHS, batch_size=BATCH
    )
    process = traced(name, linear_network(IN, has_bias), local, seed=SEED, **options)
    clients = clients_with(process, XS, YS)
    return process, clients


def discrepancy(one, other):
    """Returns the squared maximum mean discrepancy of the rows of two matrices."""

    def kernel(a, b):
        squared = np.sum((a[:, np.newaxis] - b) ** 2, axis=-1, keepdims=True)
        return np.sum(np.exp(-squared / (2 * np.array([10, 15, 20, 50]))), axis=-1)

    return np.mean(kernel(one, one) + kernel(other, other) - 2 * kernel(one, other))


def vector_of(kernel):
    return np.sum(kernel, axis=1) / np.linalg.norm(np.sum(kernel, axis=1))


def logits_of(w, shared, vector, x):
    """Returns the outputs of a client's body, policy and head beside the global head."""
    features = x @ w["body/kernel"]
    hidden = (features * vector) @ w["policy/kernel"] + w["policy/bias"]
    hidden = hidden - np.mean(hidden, axis=1, keepdims=True)
    hidden = hidden / np.sqrt(np.mean(hidden**2, axis=1, keepdims=True) + 1e-5)
    hidden = np.maximum(hidden * w["policy/scale"] + w["policy/shift"], 0)
    own, others = np.exp(hidden[:, :2]), np.exp(hidden[:, 2:])
    share = own / (own + others)
    of_own = (share * features) @ w["head/kernel"] + w["head/bias"]
    return of_own + ((1 - share) * features) @ shared["head/kernel"] + shared["head/bias"]


def client_round(i, shared, head, round_num, lambda_):
    """Returns the body, the policy and the client's head after training."""
    weights, velocity = shared | head, dict.fromkeys(shared, 0.0)
    vector = vector_of(head["head/kernel"])
    for rows in batches_of(SIZES[i], i, round_num, **BATCHES):
        x, y = XS[i][rows], YS[i][rows]

        def loss(w, x=x, y=y):
            apart = discrepancy(x @ w["body/kernel"], x @ shared["body/kernel"])
            return cross_entropy(logits_of(w, shared, vector, x), y)[0] + lambda_ * apart

        gradient = slopes(loss, weights)
        velocity = {name: MOMENTUM * velocity[name] + gradient[name] for name in weights}
        weights = {name: weights[name] - RATE * velocity[name] for name in weights}
    return weights


def with_other_head(client):
    """Gives a client a random head, because steps of SGD do not change its sum over classes."""
    rng = np.random.default_rng(client.client_id)
    head = tf.nest.map_structure(
        lambda leaf: np.float32(rng.normal(size=leaf.shape)), client.state.head
    )
    return client._replace(state=client.state._replace(head=head))


@pytest.mark.thorough_but_one
@pytest.mark.parametrize("options", [{}, {"lambda_": 0.5, "weighting": "uniform"}])
def test_rounds_agree_with_numpy(options):
    process, clients = run("fedcp", **options)
    clients = list(map(with_other_head, clients))
    shared = by_name(process.initialize().algorithm.weights)
    heads = [by_name(client.state.head) for client in clients]
    for round_num, (cohort, state, now, _) in enumerate(each_round(process, clients, COHORTS)):
        lambda_ = options.get("lambda_", 5.0)
        new = {i: client_round(i, shared, heads[i], round_num, lambda_) for i in cohort}
        heads = [{name: new.get(i, head)[name] for name in HEAD} for i, head in enumerate(heads)]
        sent = {
            i: w | {name: (w[name] + shared[name]) / 2 for name in HEAD} for i, w in new.items()
        }
        sizes = [SIZES[i] for i in cohort]
        counts = np.sign(sizes) if "weighting" in options else sizes
        shared = {
            name: np.average([sent[i][name] for i in cohort], axis=0, weights=counts)
            for name in shared
        }
        assert_close(by_name(state.algorithm.weights), shared)
        assert_close([by_name(client.state.head) for client in now], heads)
    for i, weights in enumerate(process.personalize(state, now)):
        model = process._algorithm.evaluated_model
        vector = vector_of(heads[i]["head/kernel"])
        expected = logits_of(shared | heads[i], shared, vector, XS[0])
        assert_close(model.apply(weights, np.float32(XS[0])), expected)


def with_policy(state, shift):
    """Returns the server's state with a policy that gives the same shares to all examples."""
    policy = state.algorithm.weights["policy"]
    same = policy | {"scale": tf.zeros([4]), "shift": tf.constant(shift)}
    return with_shared(state, state.algorithm.weights | {"policy": same})


def limits(shift, other):
    """Returns what FedCP ends with that starts with such a policy, and another method."""
    process, clients = run("fedcp", has_bias=False, lambda_=0.0)
    start = with_policy(process.initialize(), shift)
    found = last(run_rounds(process, clients, COHORTS[:2], start))
    process, clients = run(other, has_bias=False)
    return start, *found, *last(run_rounds(process, clients, COHORTS[:2]))


def test_a_policy_for_the_personal_head_is_fedper():
    _, found, clients, expected, others = limits([200.0, 200.0, 0.0, 0.0], "fedper")
    assert_close(found.algorithm.weights["body"], expected.algorithm.weights["body"], 1e-6)
    assert_close([client.state for client in clients], [client.state for client in others], 1e-6)


@pytest.mark.thorough
def test_a_policy_for_the_global_head_trains_the_body_of_fedbabu():
    start, found, _, expected, _ = limits([0.0, 0.0, 200.0, 200.0], "fedbabu")
    assert_close(found.algorithm.weights["body"], expected.algorithm.weights["body"], 1e-6)
    assert_close(found.algorithm.weights["head"], start.algorithm.weights["head"], 1e-6)
