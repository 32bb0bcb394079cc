"""Tests FedRep: its rounds on quadratics, against plain NumPy."""

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.federation import (
    assert_close,
    eager,
    make_client,
)
from tests.marks import slow
from tests.quadratics import objectives, quadratic_examples, quadratic_model, vector_of
from tff_pfl.local import LocalTraining

N, DIMS = 3, (2, 1)
BODY, HEAD = slice(0, 2), slice(2, 3)
RATE, MOMENTUM = 0.2, 0.6
COPIES = (1, 3, 2)
A, C = objectives()


def copies(client_id):
    """Returns all copies of the client's example, which make one batch."""
    return quadratic_examples(A[client_id], C[client_id], 0.5, copies=COPIES[client_id])


class NumPyFedRep:
    """FedRep with momentum steps along exact gradients."""

    def __init__(self, start, weighting, persist):
        self.body, self.heads = start[BODY], [start[HEAD]] * N
        self.head_velocities, self.body_velocities = [np.zeros(1)] * N, [np.zeros(2)] * N
        self.sizes = COPIES if weighting == "num_examples" else (1,) * N
        self.persist = persist

    def phase(self, i, w, rows, steps, velocity):
        """Trains `rows`; returns `(weights, velocity, the loss before each step)`."""
        losses = []
        for _ in range(steps):
            gradient = A[i] @ (w - C[i])
            losses.append(0.5 * (w - C[i]) @ gradient + 0.5)
            velocity = MOMENTUM * velocity + gradient[rows]
            w = w.copy()
            w[rows] -= RATE * velocity
        return w, velocity, losses

    def next(self, cohort, head_steps, body_steps):
        """Runs a round, and returns the mean losses of both phases."""
        bodies, head_losses, body_losses = [], [], []
        for i in cohort:
            w, u, losses = np.append(self.body, self.heads[i]), self.head_velocities[i], []
            w, u, losses = self.phase(i, w, HEAD, head_steps, u)
            head_losses += losses * COPIES[i]
            self.head_velocities[i] = u if self.persist else 0 * u
            w, u, losses = self.phase(i, w, BODY, body_steps, self.body_velocities[i])
            body_losses += losses * COPIES[i]
            self.body_velocities[i] = u if self.persist else 0 * u
            bodies.append(w[BODY])
            self.heads[i] = w[HEAD]
        self.body = np.average(bodies, axis=0, weights=[self.sizes[i] for i in cohort])
        return np.mean(head_losses), np.mean(body_losses)

    def evaluated(self, i, steps):
        return self.phase(i, np.append(self.body, self.heads[i]), HEAD, steps, np.zeros(1))[0]


@pytest.mark.parametrize(
    ("persist", "weighting"), [slow(False, "num_examples"), (True, "uniform")], ids=str
)
def test_rounds_match_numpy_on_quadratics(persist, weighting):
    """Each phase has its own optimizer, which starts anew in each round or persists."""
    model = quadratic_model(*DIMS)
    process = eager(
        "fedrep",
        model,
        LocalTraining(
            tff.learning.optimizers.build_sgdm(RATE, MOMENTUM),
            epochs=2,
            batch_size=max(COPIES),
            persist_optimizer_state=persist,
        ),
        head_epochs=3,
        evaluation_head_epochs=4,
        weighting=weighting,
        seed=2,
    )
    state = process.initialize()
    clients = [make_client(process, i, copies(i)) for i in range(N)]
    expected = NumPyFedRep(vector_of(model.init(2)), weighting, persist)
    for cohort in ((0, 1), (1,), (0, 1), (1, 2)):
        head_loss, body_loss = expected.next(cohort, head_steps=3, body_steps=2)
        state, states, metrics = process.next(state, [clients[i] for i in cohort])
        for i, client_state in zip(cohort, states, strict=True):
            clients[i] = clients[i]._replace(state=client_state)
        assert_close(vector_of(state.algorithm.weights), expected.body)
        assert_close([vector_of(c.state.head) for c in clients], expected.heads)
        assert_close(metrics["train"]["loss"], body_loss)
        assert_close(metrics["train"]["head_loss"], head_loss)
        for i, evaluated in enumerate(process.personalize(state, clients)):
            assert_close(vector_of(evaluated), expected.evaluated(i, steps=4))
