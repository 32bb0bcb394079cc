"""Tests FedRep: its rounds on quadratics, against plain NumPy."""

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.algorithms.rounds import (
    COPIES,
    START,
    A,
    C,
    clients_of,
    each_round,
    on_quadratics,
    personal,
)
from tests.federation import assert_close
from tests.marks import slow
from tests.quadratics import vector_of
from tff_pfl.local import LocalTraining

BODY, HEAD = slice(0, 2), slice(2, 3)
RATE, MOMENTUM = 0.2, 0.6


class NumPyFedRep:
    """FedRep with momentum steps along exact gradients."""

    def __init__(self, weighting, persist):
        self.body, self.heads = START[BODY], [START[HEAD]] * 3
        self.head_velocities, self.body_velocities = [np.zeros(1)] * 3, [np.zeros(2)] * 3
        self.sizes = COPIES if weighting == "num_examples" else (1, 1, 1)
        self.persist = persist

    def phase(self, i, w, rows, steps, velocity):
        """Trains `rows`; returns `(weights, velocity, the loss before each step)`."""
        losses = []
        for _ in range(steps):
            gradient = A[i] @ (w - C[i])
            losses.append(0.5 * (w - C[i]) @ gradient)
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
    sgdm = tff.learning.optimizers.build_sgdm(RATE, MOMENTUM)
    local = LocalTraining(sgdm, 2, max(COPIES), persist_optimizer_state=persist)
    options = {"head_epochs": 3, "evaluation_head_epochs": 4, "weighting": weighting}
    process = on_quadratics("fedrep", local, **options)
    expected = NumPyFedRep(weighting, persist)
    cohorts = ((0, 1), (1,), (0, 1), (1, 2))
    for cohort, state, clients, metrics in each_round(process, clients_of(process), cohorts):
        losses = expected.next(cohort, head_steps=3, body_steps=2)
        assert_close(vector_of(state.algorithm.weights), expected.body)
        assert_close([vector_of(c.state.head) for c in clients], expected.heads)
        assert_close([metrics["train"][name] for name in ("head_loss", "loss")], losses)
        evaluated = [expected.evaluated(i, steps=4) for i in range(3)]
        assert_close(personal(process, state, clients), evaluated)
