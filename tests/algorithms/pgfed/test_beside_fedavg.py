"""PGFed, PGFedMo and PGFed-CE on a network: what they have of FedAvg, and what they send."""

import functools
import math

import numpy as np
import tensorflow_federated as tff

from tests.algorithms.pgfed.reference import CE
from tests.federation import assert_close, eager, make_clients, tiny_model
from tff_pfl.algorithms.pgfed.server import PGFedServer
from tff_pfl.algorithms.pgfed.sparse_matrix import constant, dense
from tff_pfl.local import LocalTraining, trees

ALPHA_RATE = 0.1
TINY, TINY_SIZES = tiny_model(), (6, 9, 5)
TINY_LOCAL = LocalTraining(tff.learning.optimizers.build_sgdm(0.1, 0.9), epochs=2, batch_size=4)


@functools.cache
def tiny_process(mu, **options):
    return eager(
        "pgfed",
        TINY,
        TINY_LOCAL,
        num_clients=4,
        clients_per_round=4,
        mu=mu,
        alpha_learning_rate=ALPHA_RATE,
        seed=1,
        **options,
    )


def test_one_step_for_all_that_a_client_did_on_its_mini_batches():
    server = PGFedServer(4, 4, 4, 0.1, ALPHA_RATE)
    process = tiny_process(0.1, **CE)
    state, clients = process.initialize(), make_clients(process, TINY_SIZES)
    state = process.next(state, clients[:2]).state
    alpha = np.full([4, 4], 0.05, np.float32)
    state = state._replace(algorithm=state.algorithm._replace(alpha=constant(0.05)))
    found = dense(process.next(state, clients).state.algorithm.alpha, 4).numpy()
    shared = server.shared(state.algorithm)
    slopes = shared.intercepts[:2] + trees.dot(shared.mean_gradient, shared.weights)
    for i, size in enumerate(TINY_SIZES):
        for _ in range(2 * math.ceil(size / 4)):
            alpha[i, :2] = np.maximum(0, alpha[i, :2] - ALPHA_RATE * slopes)
    assert_close(found, alpha)
    assert found[1, :2].tolist() == [0, 0] and found[0, :2].min() > 0
