"""FedRep: equality with plain NumPy, and the specification's invariants."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.federation import (
    SIZES,
    assert_close,
    assert_equal,
    eager,
    leaves,
    local_sgd,
    make_client,
    random_examples,
    tiny_model,
    trained,
)
from tests.quadratics import objectives, quadratic_examples, quadratic_model, vector_of
from tff_pfl.local import ClientContext, LocalTraining
from tff_pfl.local.seeds import client_seed
from tff_pfl.models import partition

MODEL = tiny_model()
PARTS = partition(MODEL)
ROUNDS = {"local": local_sgd(epochs=2), "cohorts": ((0,), (1,))}


def train(model, weights, client_id, round_num, epochs, exchange=0):
    context = ClientContext(
        tf.constant(round_num),
        tf.constant(client_id),
        client_seed((1, exchange), round_num, client_id),
    )
    examples = random_examples(SIZES[client_id], seed=client_id)
    return ROUNDS["local"].train(model, weights, examples, context, epochs=epochs).weights


def test_every_client_is_evaluated_with_its_head_on_the_current_body():
    process, state, clients = trained("fedrep", **ROUNDS)
    assert not np.allclose(leaves(clients[0].state.head)[0], leaves(clients[1].state.head)[0])
    assert_equal(clients[2].state.head, PARTS.split(MODEL.init(1))[1])
    for model, client in zip(process.personalize(state, clients), clients, strict=True):
        assert list(model) == ["dense1", "head"]
        assert_equal(model["dense1"], state.algorithm.weights["dense1"])
        assert_equal(model["head"], client.state.head["head"])
    assert process.global_weights is None


def test_an_evaluated_head_is_trained_and_the_stored_one_not():
    process, state, clients = trained("fedrep", **ROUNDS, evaluation_head_epochs=3)
    expected = trained("fedrep", **ROUNDS)
    assert_equal([state, [c.state for c in clients]], [expected.state, expected.client_states])
    model = PARTS.personal_model(MODEL, state.algorithm.weights)
    evaluated = process.personalize(state, clients)
    for i, client in enumerate(clients):
        assert_equal(evaluated[i]["dense1"], state.algorithm.weights["dense1"])
        expected = train(model, client.state.head, i, 2, epochs=3, exchange=1)
        assert_close(evaluated[i]["head"], expected["head"], tolerance=1e-6)
        assert not np.allclose(evaluated[i]["head"]["bias"], client.state.head["head"]["bias"])


N, DIMS = 3, (2, 1)
BODY, HEAD = slice(0, 2), slice(2, 3)
RATE, MOMENTUM = 0.2, 0.6
COPIES = (1, 3, 2)
A, C = objectives()


def copies(client_id):
    """The client's example, as often as it has it; all in one batch."""
    return quadratic_examples(A[client_id], C[client_id], 0.5, copies=COPIES[client_id])


class NumPyFedRep:
    """FedRep of steps with momentum along exact gradients."""

    def __init__(self, start, weighting, persist):
        self.body, self.heads = start[BODY], [start[HEAD]] * N
        self.head_velocities, self.body_velocities = [np.zeros(1)] * N, [np.zeros(2)] * N
        self.sizes = COPIES if weighting == "num_examples" else (1,) * N
        self.persist = persist

    def phase(self, i, w, rows, steps, velocity):
        """`(weights, velocity, the loss before each step)`, only `rows` being trained."""
        losses = []
        for _ in range(steps):
            gradient = A[i] @ (w - C[i])
            losses.append(0.5 * (w - C[i]) @ gradient + 0.5)
            velocity = MOMENTUM * velocity + gradient[rows]
            w = w.copy()
            w[rows] -= RATE * velocity
        return w, velocity, losses

    def next(self, cohort, head_steps, body_steps):
        """The mean losses of both phases."""
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
    ("persist", "weighting"), [(False, "num_examples"), (True, "uniform")], ids=str
)
def test_rounds_on_quadratics_are_those_of_numpy(persist, weighting):
    """Each phase with an optimizer of its own, new in each round or not at all."""
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
