"""Tests FedFomo: against NumPy on quadratics, the weights of models, and against Local."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.algorithms.rounds import DIMS, QUADRATIC, as_rows, each_round, personal, stacked
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
from tests.quadratics import spd, vector_of, weights_of
from tff_pfl.algorithms.fedfomo import FedFomoServer
from tff_pfl.local import Examples, split_examples

N, DIM = 4, 3
RATE, STEPS, SEED = 0.15, 3, 2
NUM_EXAMPLES = (5, 8, 10, 6)
COHORTS = ((0, 1, 2), (1, 3), (0, 1, 2, 3), (2, 0), (3, 1, 2))
rng = np.random.default_rng(8)
CENTRES = rng.normal(size=(N, DIM))
# Each example is its own quadratic `(A, c)`, with `c` near the centre of its client.
A = [[spd(DIM, 100 * i + k) for k in range(n)] for i, n in enumerate(NUM_EXAMPLES)]
C = [c + 0.3 * rng.normal(size=(n, DIM)) for c, n in zip(CENTRES, NUM_EXAMPLES, strict=True)]
MODELS = rng.normal(size=(N, DIM)).astype(np.float32)
REFERENCES = (3 * rng.normal(size=(N, DIM))).astype(np.float32)  # worse than most models
MODEL = tiny_model()


@functools.cache
def process_of(rate=RATE, **options):
    options = {"num_models": N} | options
    local = local_sgd(rate, STEPS, max(NUM_EXAMPLES))  # all examples are one batch
    return traced("fedfomo", QUADRATIC, local, num_clients=N, **options, seed=SEED)


def examples_of(i):
    rows = [np.concatenate([np.ravel(a), c, [0.0]]) for a, c in zip(A[i], C[i], strict=True)]
    return Examples(np.float32(rows), np.zeros(len(rows), np.int32), np.int32(len(rows)))


def clients_of(process, models=MODELS, references=REFERENCES):
    clients = []
    for i in range(N):
        client = make_client(process, i, examples_of(i))
        state = client.state._replace(
            model=weights_of(models[i], *DIMS), reference=weights_of(references[i], *DIMS)
        )
        clients.append(client._replace(state=state))
    return clients


def server_of(process, models=MODELS, **fields):
    state = process.initialize()
    return state._replace(algorithm=state.algorithm._replace(models=stacked(models), **fields))


@functools.cache
def parts_of(i, share=0.2):
    """Returns a client's examples for training, and those for validation."""
    n = NUM_EXAMPLES[i]
    examples = Examples(tf.zeros([n, 1]), tf.range(n), tf.constant(n))
    return [part.y.numpy() for part in split_examples(examples, share, seed=(SEED, i))]


def loss(w, i, rows):
    return np.mean([0.5 * (w - C[i][k]) @ A[i][k] @ (w - C[i][k]) for k in rows])


class Reference:
    """FedFomo in NumPy, with mixtures written as differences."""

    def __init__(self, affinity="normalized", fallback="own", validation_share=0.2):
        self.kind, self.fallback, self.share = affinity, fallback, validation_share
        self.theta, self.ref = MODELS.astype(np.float64), REFERENCES.astype(np.float64)
        self.affinity = np.eye(N)

    def next(self, received):
        """Runs a round; `received` maps clients to the ids of the models that they receive."""
        before = self.theta.copy()
        positive = 0
        for i, ids in received.items():
            training, validation = parts_of(i, self.share)
            ids = [i, *ids]
            gain = [loss(self.ref[i], i, validation) - loss(before[j], i, validation) for j in ids]
            away = np.array([before[j] - self.ref[i] for j in ids])
            omega = np.array(gain) / (np.linalg.norm(away, axis=1) + 1e-5)
            helps = np.maximum(omega, 0.0)
            positive += np.sum(omega > 0)
            if helps.sum() > 0:
                self.ref[i] = self.ref[i] + helps @ away / helps.sum()
            elif self.fallback == "own":
                self.ref[i] = before[i]
            w = self.ref[i]
            for _ in range(STEPS):
                w = w - RATE * np.mean([A[i][k] @ (w - C[i][k]) for k in training], axis=0)
            self.theta[i] = w
            divisor = {
                "raw": 1.0,
                "normalized": abs(omega.sum()) or 1.0,
                "clipped": helps.sum() or 1.0,
            }[self.kind]
            added = helps if self.kind == "clipped" else omega
            self.affinity[i, ids] += added / divisor
        return positive / len(received)


OPTIONS = {
    "default": {},
    "raw": {"affinity": "raw", "fallback": "reference", "validation_share": 0.4},
    "last_cohort": {"affinity": "clipped", "candidates": "last_cohort"},
    "two models": {"num_models": 2, "exploration": 0.5, "exploration_decay": 0.1},
}


def received_by(options, state, cohort, t):
    """Returns the ids of the models that clients receive; `test_server` tests the choice."""
    choice = {"exploration": 0.3, "exploration_decay": 0.05, "candidates": "all"}
    choice = {key: options.get(key, default) for key, default in choice.items()}
    others = options.get("num_models", N) - 1
    server = FedFomoServer(N, others, **choice, affinity="raw")
    assert state.round_num == t
    result = {}
    for i in cohort:
        own = server.own(tf.nest.map_structure(tf.constant, state), tf.constant(i))
        result[i] = own.client_ids.numpy()[own.exists.numpy()].tolist()
    return result


@pytest.mark.thorough_but_one
@pytest.mark.parametrize("name", OPTIONS)
def test_rounds_agree_with_numpy(name):
    options = OPTIONS[name]
    process = process_of(**options)
    of_client = ("affinity", "fallback", "validation_share")
    expected = Reference(**{key: options[key] for key in of_client if key in options})
    before, numbers, helped = server_of(process), [], []
    rounds = each_round(process, clients_of(process), COHORTS, before)
    for t, (cohort, state, clients, metrics) in enumerate(rounds):
        received = received_by(options, before.algorithm, cohort, t)
        helpers = expected.next(received)
        models = as_rows(state.algorithm.models)
        assert_close(models, expected.theta, tolerance=1e-4)
        assert_close(process.snapshot(state)["affinity"], expected.affinity, tolerance=1e-4)
        assert_close(metrics["train"]["server"]["helpers"], helpers)
        assert_equal(personal(process, state, clients), list(models))
        references = [vector_of(client.state.reference) for client in clients]
        assert_close(references, list(expected.ref), tolerance=1e-4)
        numbers += map(len, received.values())
        helped.append(helpers * len(cohort))
        before = state
    assert set(numbers) == {"two models": {1}, "last_cohort": {0, 1, 2, 3}}.get(name, {3})
    # Some models helped, others did not.
    assert 0 < sum(helped) < sum(numbers) + len(numbers)


def one_round(process, client_id=1, models=MODELS, references=REFERENCES, **fields):
    """Returns the gain of the affinity's row, and the new reference, of the only client."""
    state = server_of(process, models, **fields)
    client = clients_of(process, models, references)[client_id]
    output = process.next(state, [client])
    gained = output.state.algorithm.affinity[client_id] - state.algorithm.affinity[client_id]
    return np.array(gained), vector_of(output.clients[0].reference)


CLIPPED = {"affinity": "clipped"}


def minimum_of(client_id, share=0.2):
    """Returns the minimum of a client's validation loss."""
    rows = parts_of(client_id, share)[1]
    a, c = ([x[client_id][k] for k in rows] for x in (A, C))
    return np.linalg.solve(sum(a), sum(x @ y for x, y in zip(a, c, strict=True)))


@pytest.mark.thorough
@pytest.mark.parametrize("fallback", ["own", "reference"])
def test_fallback_if_no_model_helps_a_client(fallback):
    options = CLIPPED if fallback == "own" else OPTIONS["raw"]
    references = REFERENCES.copy()
    references[3] = minimum_of(3, options.get("validation_share", 0.2))
    gained, reference = one_round(process_of(**options), 3, MODELS, references)
    assert np.all(gained <= 0.0)
    assert_equal(reference, MODELS[3] if fallback == "own" else references[3])


def test_model_whose_loss_overflows_gets_no_weight():
    """Tests that its receiver is accepted, and that other models count as without it."""
    process = process_of(**CLIPPED)
    diverged = MODELS.copy()
    diverged[3] = 1e25
    shares, reference = one_round(process, 1, diverged)
    assert shares[3] == 0.0
    np.testing.assert_allclose(shares.sum(), 1.0, rtol=1e-6)
    assert np.all(np.isfinite(reference))
    worse = MODELS.copy()
    worse[3] = 100.0
    assert_equal(shares, one_round(process, 1, worse)[0])


def test_state_determines_the_validation_examples():
    """Tests that the seed of the split is made from the run's seed and the id, and stays."""
    process = process_of(**CLIPPED)
    state, client = server_of(process), clients_of(process)[2]
    np.testing.assert_array_equal(client.state.split_seed, [SEED, 2])
    own = process.next(state, [client]).clients[0]
    np.testing.assert_array_equal(own.split_seed, [SEED, 2])
    other = client._replace(state=client.state._replace(split_seed=np.int32([SEED, 0])))
    assert not np.allclose(
        vector_of(process.next(state, [other]).clients[0].reference), vector_of(own.reference)
    )
    of_large_seed = eager(
        "fedfomo", MODEL, local_sgd(), seed=2**31 + 5, num_clients=N, num_models=1
    )
    np.testing.assert_array_equal(of_large_seed.initialize_client(3).split_seed, [5, 3])


@pytest.mark.thorough
def test_own_model_alone_equals_local_on_the_training_part():
    sizes, cohorts = (6, 9, 1, 17), ((0, 1, 2), (3, 1), (0, 3, 2), (0, 1))
    process = eager("fedfomo", MODEL, local_sgd(), num_clients=N, num_models=1, seed=SEED)
    local, parts = eager("local", MODEL, local_sgd(), seed=SEED), []
    for i, client in enumerate(make_clients(local, sizes)):
        part, _ = split_examples(Examples(*map(tf.constant, client.data)), 0.2, seed=(SEED, i))
        assert part.size == max(sizes[i] * 4 // 5, 1)
        parts.append(client._replace(data=Examples(*map(np.asarray, part))))
    found = each_round(process, make_clients(process, sizes), cohorts)
    alone = each_round(local, parts, cohorts)
    for (_, state, clients, metrics), expected in zip(found, alone, strict=True):
        models = process.personalize(state, clients)
        assert_equal(models, [client.state.model for client in expected.clients])
        assert metrics["bytes_down_per_client"] == 0
