"""Tests that clients which join fit an embedding by gradient descent, in closed form."""

import numpy as np
import pytest
import tensorflow as tf

from tests.federation import local_sgd
from tests.quadratics import quadratic_examples, quadratic_model
from tff_pfl.algorithms import make
from tff_pfl.evaluation.fine_tuning import fine_tuning
from tff_pfl.local import ClientContext

DIMS, DIM, RATE, EPOCHS = (2, 3), 5, 0.05, 7
MODEL, LOCAL = quadratic_model(*DIMS), local_sgd(RATE)
CONTEXT = ClientContext(tf.constant(0), tf.constant(9), tf.constant([1, 2]))


def vector_of(structure):
    return np.concatenate([np.ravel(leaf) for leaf in tf.nest.flatten(structure)])


@pytest.fixture(params=["pfedhn", "pfedhn_pc", "plgu_ghn"])
def joining(request):
    """Returns `(new clients' model, message, initial parameters, J)` of a linear hypernetwork.

    `J` maps the parameters, an embedding and any personal layer, to the model's weights.
    """
    options = {"hidden_layers": 0, "bias": False, "embedding_dim": 2, "num_clients": 3}
    algorithm = make(request.param, MODEL, LOCAL, **options)
    server = algorithm.server_init(1)
    new = algorithm.personalize.new_clients
    message, own = new.distribute(server), new.init(new.distribute(server), 1)
    assert vector_of(own)[:2] == pytest.approx(np.mean(server.embeddings, axis=0))
    size = len(vector_of(own))
    assert size == (5 if request.param == "pfedhn_pc" else 2)

    def weights_at(vector):
        leaves = np.split(vector.astype(np.float32), np.cumsum([2, size - 2])[:-1])
        packed = [leaf for leaf in leaves if leaf.size]
        return vector_of(new.weights(message, tf.nest.pack_sequence_as(own, packed)))

    return new, message, own, np.stack([weights_at(row) for row in np.eye(size)], axis=1)


@pytest.mark.thorough_but_one
def test_embeddings_descend_the_loss_of_the_generated_weights(joining):
    new, message, own, jacobian = joining
    rng = np.random.default_rng(3)
    root = rng.normal(size=(DIM, DIM))
    a, centre = root @ root.T / DIM, rng.normal(size=DIM)
    examples = quadratic_examples(a, centre)

    def weights_of(parameters):
        return new.weights(message, parameters)

    tune = fine_tuning(MODEL, LOCAL, EPOCHS, weights_of)
    tuned = tune(own, examples, CONTEXT)
    # Gradient descent of 1/2 (J p - c)^T A (J p - c).
    hessian = jacobian.T @ a @ jacobian
    best = np.linalg.solve(hessian, jacobian.T @ a @ centre)
    step = np.eye(len(hessian)) - RATE * hessian
    end = best + np.linalg.matrix_power(step, EPOCHS) @ (vector_of(own) - best)
    assert np.abs(jacobian @ end - vector_of(weights_of(own))).max() > 0.05
    np.testing.assert_allclose(vector_of(tuned), jacobian @ end, atol=1e-5)
