"""Tests robust rules against NumPy implementations."""

import numpy as np
import pytest
import scipy.optimize
import tensorflow as tf

from tests.federation import vector
from tests.marks import together
from tff_pfl.aggregators import Stack
from tff_pfl.aggregators.robust_rules import (
    geometric_median,
    krum,
    median,
    trimmed_mean,
    weighted_mean,
)


def random_stack(seed):
    """Returns uploads of 1 to 9 clients: a vector and a matrix, with some equal values."""
    rng = np.random.default_rng(seed)
    number = int(rng.integers(1, 10))
    value = {
        "vector": np.round(rng.normal(size=(number, 5)), 1).astype(np.float32),
        "matrix": (100.0 * rng.normal(size=(number, 2, 3))).astype(np.float32),
    }
    weight = np.ones(number) if seed % 2 else rng.integers(1, 6, number)
    return stack_of(value, weight)


def stack_of(value, weight=None):
    value = tf.nest.map_structure(lambda leaf: tf.constant(leaf, tf.float32), value)
    number = len(tf.nest.flatten(value)[0])
    return Stack(value, tf.constant(np.ones(number) if weight is None else weight, tf.float32))


def vectors(stack):
    """Returns the uploads as float64 `[m, n]`."""
    number = len(stack.weight)
    leaves = [np.reshape(leaf, [number, -1]) for leaf in tf.nest.flatten(stack.value)]
    return np.concatenate(leaves, axis=1).astype(np.float64)


@tf.function(autograph=False)
def traced_with_measurements(stack):
    """Traces the rule, which is a hundred times faster than an eager loop."""
    return geometric_median(stack, 1000, 1e-6, 1e-6)


def traced_geometric_median(stack):
    return traced_with_measurements(stack)[0]


# The following functions implement the rules in NumPy.


def numpy_trimmed_mean(values, weights, fraction):
    cut = int(fraction * len(values) + 1e-9)
    order = np.argsort(values, axis=0, kind="stable")[cut : len(values) - cut]
    kept = np.take_along_axis(values, order, axis=0)
    return (weights[order] * kept).sum(0) / weights[order].sum(0)


def numpy_median(values, weights):
    """Computes the median for integer weights, by repeating each client."""
    return np.median(np.repeat(values, weights.astype(int), axis=0), axis=0)


def numpy_scores(values, num_attackers):
    scores = []
    for own in values:
        distances = np.sort(np.sum((values - own) ** 2, axis=1))[1:]
        scores.append(distances[: len(values) - num_attackers - 2].sum())
    return np.array(scores)


@together("seed", range(3))
def test_coordinate_rules_match_numpy(seed):
    stack = random_stack(seed)
    values, weights = vectors(stack), stack.weight.numpy()
    for fraction in (0.2, 0.34, 0.49):
        expected = numpy_trimmed_mean(values, weights, fraction)
        found = vector(trimmed_mean(stack, fraction))
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(
        vector(median(stack)), numpy_median(values, weights), rtol=1e-6, atol=1e-6
    )


@together(("seed", "num_attackers"), [(0, 0), (1, 1), (2, 3)])
def test_krum_averages_the_lowest_scores(seed, num_attackers):
    rng = np.random.default_rng(seed)
    number = 2 * num_attackers + 3 + seed % 3
    stack = stack_of({"a": rng.normal(size=(number, 4))}, rng.integers(1, 6, number))
    values, weights = vectors(stack), stack.weight.numpy()
    order = np.argsort(numpy_scores(values, num_attackers))
    for num_selected in (1, 2, None):
        chosen = order[: num_selected or number - num_attackers]
        expected = np.average(values[chosen], axis=0, weights=weights[chosen])
        found = vector(krum(stack, num_attackers, num_selected))
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_multi_krum_excludes_attackers_if_few_clients_report():
    """Selects eight uploads, as for a cohort of ten, although seven clients report."""
    honest = np.random.default_rng(0).normal(size=(5, 3))
    stack = stack_of({"a": np.concatenate([np.full((2, 3), 1e6), honest])})
    found = krum(stack, num_attackers=2, num_selected=8)["a"]
    np.testing.assert_allclose(found, honest.mean(axis=0), rtol=1e-4, atol=1e-5)


@together("number", [1, 2, 9, 10])
def test_trimmed_mean_keeps_the_middle(number):
    stack = stack_of({"a": np.full((number, 3), 5.0)})
    np.testing.assert_array_equal(trimmed_mean(stack, 0.4999999999)["a"], np.full(3, 5.0))


RULES = {
    "trimmed_mean": lambda stack: trimmed_mean(stack, 0.3),
    "median": median,
    "geometric_median": traced_geometric_median,
    "krum": lambda stack: krum(stack, 3, 1),
    "multi_krum": lambda stack: krum(stack, 3, None),
}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
class TestEachRule:
    def test_three_attackers_of_ten_have_little_effect(self, rule):
        honest = np.random.default_rng(1).normal(1.0, 0.1, size=(7, 6))
        for attack in (-1e3, 1e30):
            uploads = np.concatenate([np.full((3, 6), attack), honest])
            result = rule(stack_of({"a": uploads}))["a"].numpy()
            assert np.linalg.norm(result - 1.0) < 0.5
            mean = vector(weighted_mean(stack_of({"a": uploads})))
            assert not np.linalg.norm(mean - 1.0) < 100.0

    def test_order_of_clients_has_no_effect(self, rule):
        values = np.random.default_rng(2).normal(size=(9, 6))
        weights = np.arange(1, 10)
        order = [8, 1, 4, 0, 2, 7, 3, 6, 5]
        first, second = stack_of([values], weights), stack_of([values[order]], weights[order])
        np.testing.assert_allclose(rule(first)[0], rule(second)[0], rtol=1e-4, atol=1e-5)

    def test_shapes_and_data_types_are_kept(self, rule):
        value = {"b": tf.ones([9, 2, 3], tf.float64), "a": (tf.ones([9]), tf.ones([9, 1]))}
        result = rule(Stack(value, tf.ones([9])))
        assert list(result) == ["b", "a"] and isinstance(result["a"], tuple)
        shapes_and_types = [
            (leaf.shape.as_list(), leaf.dtype) for leaf in (result["b"], *result["a"])
        ]
        assert shapes_and_types == [([2, 3], tf.float64), ([], tf.float32), ([1], tf.float32)]


def test_rules_have_known_values():
    stack = stack_of(np.array([0.0, 1.0, 2.0, 3.0, 100.0]))
    assert trimmed_mean(stack, 0.2) == median(stack) == 2.0
    assert float(weighted_mean(stack)) == pytest.approx(21.2)
    # With one attacker, scores are of two neighbours: 5, 2, 2, 5 and 97^2 + 98^2.
    assert krum(stack, 1, 1) == 1.0  # The first of equal scores.
    assert krum(stack, 1, 2) == 1.5


@together("weight", [0.1, 1 / 3, 0.7, 1.0, 12.0])
def test_median_of_an_even_number_is_between_the_middle_two(weight):
    """Includes weights whose sums are rounded in float32."""
    assert float(median(Stack(tf.range(8.0), tf.fill([8], weight)))) == 3.5


def test_geometric_median_has_golden_values():
    """Uses the Fermat point of a triangle with angles of 90, 45 and 45 degrees."""
    expected = (3 - np.sqrt(3)) / 6
    points = stack_of(np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]))
    found = traced_geometric_median(points)
    np.testing.assert_allclose(found, [expected, expected], rtol=1e-5)
    # A client with more than half of the total weight determines the median.
    heavy = traced_geometric_median(Stack(points.value, tf.constant([1.0, 3.0, 1.0])))
    np.testing.assert_allclose(heavy, [1.0, 0.0], atol=1e-4)


@pytest.mark.thorough_but_one
@pytest.mark.parametrize(
    ("number", "attackers", "distance", "dim", "weighting"),
    [
        (21, 0, 10, 5, "random"),
        (21, 8, 1e9, 5, "random"),
        (101, 50, 1e6, 200, "uniform"),
        (101, 49, 10, 200, "random"),
    ],
)
def test_geometric_median_is_optimal(number, attackers, distance, dim, weighting):
    """Compares with SciPy, for attackers at a `distance` on one side and honest clients near 0."""
    rng = np.random.default_rng(attackers)
    uploads = rng.normal(size=(number, dim)) / np.sqrt(dim)
    uploads[:attackers] += distance / np.sqrt(dim)
    weights = np.ones(number)
    if weighting == "random":
        weights = rng.uniform(0.5, 2.0, number)
        most = 0.99 * weights[attackers:].sum()
        weights[:attackers] *= min(1.0, most / max(weights[:attackers].sum(), 1.0))
    stack = stack_of(uploads, weights)
    found, measured = traced_with_measurements(stack)
    assert measured["residual"] <= 1e-6, measured

    values, weights = vectors(stack), np.float64(stack.weight)

    def objective(point):
        """Returns the weighted distance to all uploads, minus that of 0, and its gradient."""
        apart = point - values
        lengths = np.linalg.norm(apart, axis=1)
        return weights @ (lengths - np.linalg.norm(values, axis=1)), weights / lengths @ apart

    start = np.median(values[attackers:], axis=0)
    optimum = scipy.optimize.minimize(objective, start, jac=True, method="BFGS", tol=1e-9).x
    assert np.linalg.norm(found - optimum) < 2e-3


def test_geometric_median_without_iterations_is_the_median():
    stack = random_stack(4)
    found, measured = geometric_median(stack, 0, tolerance=1e-6, smoothing=1e-6)
    np.testing.assert_allclose(vector(found), vector(median(stack)), rtol=1e-6)
    assert measured["iterations"] == 0 < measured["residual"] < 1


def test_trimmed_mean_without_trimming_is_the_mean():
    stack = random_stack(4)
    expected = np.average(vectors(stack), axis=0, weights=stack.weight)
    for result in (trimmed_mean(stack, 0.0), weighted_mean(stack)):
        np.testing.assert_allclose(vector(result), expected, rtol=1e-5, atol=1e-5)


def test_geometric_median_with_large_smoothing_is_the_mean():
    stack = random_stack(6)
    found = vector(geometric_median(stack, 5, tolerance=1e-6, smoothing=1e6)[0])
    np.testing.assert_allclose(found, vector(weighted_mean(stack)), rtol=1e-5, atol=1e-5)


@together(
    ("weights", "expected"),
    [
        ([1.0, 1.0, 1.0], 2.0),
        ([1.0, 1.0, 2.0], 2.5),  # Half of the weight is reached between two values.
        ([1.0, 1.0, 2.5], 3.0),
        ([0.3, 0.1, 0.1], 1.0),
    ],
)
def test_weights_move_the_median(weights, expected):
    assert median(Stack(tf.constant([1.0, 2.0, 3.0]), tf.constant(weights))) == expected
