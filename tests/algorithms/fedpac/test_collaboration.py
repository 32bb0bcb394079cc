"""Tests the weights of heads against closed forms and a general optimizer."""

import numpy as np
import pytest
import scipy.optimize

from tests.federation import NUM_CLASSES, random_examples, tiny_model
from tests.marks import together
from tff_pfl.algorithms.fedpac.collaboration import class_moments, combinations
from tff_pfl.local import Examples

MODEL = tiny_model()
WEIGHTS = MODEL.init(0)


@together("size", [1, 7, 230])  # 230 is more than one batch
def test_moments_agree_with_numpy(size):
    examples = random_examples(size)
    padded = Examples(
        np.concatenate([examples.x, examples.x[:1] + 7]), np.append(examples.y, 0), examples.size
    )
    found = class_moments(MODEL, WEIGHTS, padded, NUM_CLASSES)
    features = np.asarray(MODEL.features(WEIGHTS, examples.x), np.float64)
    of_class = np.eye(NUM_CLASSES)[examples.y]
    np.testing.assert_allclose(found.features, of_class.T @ features, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(found.counts, of_class.sum(axis=0))
    # V_i is the trace of the covariance of e_y f(x)^T, over n_i.
    products = np.einsum("nc,nd->ncd", of_class, features).reshape(size, -1)
    np.testing.assert_allclose(
        found.mean, products.mean(axis=0).reshape(NUM_CLASSES, -1), rtol=1e-5
    )
    variance = products.var(axis=0).sum() / size
    np.testing.assert_allclose(found.variance, variance, rtol=1e-4, atol=1e-6)


def test_moments_of_no_examples_are_0():
    found = class_moments(
        MODEL, WEIGHTS, random_examples(3)._replace(size=np.int32(0)), NUM_CLASSES
    )
    assert not np.any(found.mean)
    assert found.variance == 0.0


def drawn(k, seed=0):
    rng = np.random.default_rng([k, seed])
    means = rng.normal(size=(k, 3, 4)).astype(np.float32)
    return means, rng.uniform(0.1, 2.0, k).astype(np.float32)


def risk(alpha, i, means, variances):
    """Computes `sum_j alpha_j^2 V_j + ||sum_j alpha_j (h_i - h_j)||^2`."""
    apart = np.tensordot(alpha, means[i] - means, axes=1)
    return np.sum(alpha**2 * variances) + np.sum(apart**2)


def test_weights_of_two_clients_have_a_closed_form():
    means, variances = drawn(2)
    apart = np.sum((means[0] - means[1]) ** 2)
    own = np.array([variances[1] + apart, variances[0] + apart]) / (variances.sum() + apart)
    expected = [[own[0], 1 - own[0]], [1 - own[1], own[1]]]
    np.testing.assert_allclose(combinations(means, variances), expected, rtol=1e-5)


def test_weights_of_one_client_and_of_no_client():
    assert combinations(*drawn(1)).numpy() == [[1.0]]
    assert combinations(np.zeros((0, 3, 4), np.float32), np.zeros(0)).shape == (0, 0)


@pytest.mark.thorough
@pytest.mark.parametrize("scale", [0.1, 0.5, 1.0])
def test_weights_are_distributions_with_the_least_risk(scale):
    means, variances = drawn(5, seed=3)
    means *= scale
    found = combinations(means, variances).numpy()
    assert np.all(found >= 0.0)
    np.testing.assert_allclose(found.sum(axis=1), np.ones(5), rtol=1e-12)
    for i, alpha in enumerate(found):
        best = scipy.optimize.minimize(
            risk,
            np.full(5, 0.2),
            args=(i, means.astype(np.float64), variances),
            method="SLSQP",
            bounds=[(0.0, 1.0)] * 5,
            constraints={"type": "eq", "fun": lambda w: np.sum(w) - 1.0},
            options={"ftol": 1e-14, "maxiter": 300},
        )
        assert abs(risk(alpha, i, means.astype(np.float64), variances) - best.fun) < 1e-7
        np.testing.assert_allclose(alpha, best.x, atol=1e-4)
