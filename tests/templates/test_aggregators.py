"""Tests of `tff_pfl.templates.aggregators`, the aggregators by name."""

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.federation import assert_close, assert_equal, local_sgd, make_client, tiny_model
from tests.marks import slow
from tests.quadratics import quadratic_examples, quadratic_model, quadratic_type, vector_of
from tests.templates.mean_process import algorithm as algorithm_of
from tests.templates.mean_process import mean_exchange
from tff_pfl.aggregators import Stack
from tff_pfl.algorithms import make
from tff_pfl.templates import AGGREGATORS, Exchange, compose, errors, with_aggregator
from tff_pfl.templates.aggregators import robust

pytestmark = pytest.mark.usefixtures("clients_in_a_loop")
DIM = 3
RATE = 0.01
# A model of one tensor: aggregators treat all tensors alike, and secure sums take long to build.
MODEL, LOCAL = quadratic_model(DIM), local_sgd(RATE, epochs=1, batch_size=4)
SIZES = (1, 3, 2)  # each client has copies of one example
BY_SIZE = np.array(SIZES) / sum(SIZES)
PRIVATE = {"clients_per_round": len(SIZES), "noise_multiplier": 0.0}


def clients_of(process):
    """Yields clients of these sizes, and one whose change is not finite."""
    for i, size in enumerate([*SIZES, 2]):
        data = quadratic_examples(
            np.eye(DIM), np.full(DIM, float(i) if i < len(SIZES) else np.nan), copies=size
        )
        yield make_client(process, i, data)


@functools.cache
def change_of(aggregator=None, **options):
    """Returns the change of the model in a round; default: the method's own aggregator."""
    algorithm = make("fedavg", MODEL, LOCAL)
    if aggregator is not None:
        algorithm = with_aggregator(algorithm, AGGREGATORS[aggregator](**options))
    process = compose(algorithm, quadratic_type(DIM), seed=1)
    state = process.initialize()
    output = process.next(state, list(clients_of(process)))
    assert output.metrics["train"]["num_clients"] == len(SIZES)
    assert output.metrics["train"]["num_nonfinite"] == 1
    return vector_of(output.state.algorithm.weights) - vector_of(state.algorithm.weights)


def mean_change(shares):
    """Computes the weighted mean of the clients' steps, `RATE (c - w)`."""
    start = vector_of(MODEL.init(1))
    return sum(p * RATE * (float(i) - start) for i, p in enumerate(shares))


@pytest.mark.thorough
def test_mean_equals_the_default_aggregator():
    assert_equal(change_of("mean"), change_of())
    assert_close(change_of() / RATE, mean_change(BY_SIZE) / RATE)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "options", "shares", "tolerance"),
    [
        # No outliers, and changes are shorter than the first clipping norm.
        slow("robust", {}, BY_SIZE, 1e-5),
        slow("secure", {"zeroing": False, "clipping": False}, BY_SIZE, 1e-4),
        slow("secure", {}, BY_SIZE, 1e-4),
        # Changes are shorter than the norm.
        ("clipped", {"norm": 1.0}, BY_SIZE, 1e-5),
        # The client in the middle; the rejected one does not count.
        ("median", {}, (0.0, 1.0, 0.0), 1e-5),
        # Changes are quantized.
        slow("compression", {"zeroing": False, "clipping": False}, BY_SIZE, 1e-2),
        slow("compression", {}, BY_SIZE, 1e-2),
        # For unweighted aggregators, a rejected client's change is 0. This one divides by the
        # expected number of clients,
        ("dp", {**PRIVATE, "zeroing": False}, (1 / 3, 1 / 3, 1 / 3), 1e-5),
        slow("dp", PRIVATE, (1 / 3, 1 / 3, 1 / 3), 1e-5),
        # and this one by the actual number.
        slow("ddp_secure", {**PRIVATE, "zeroing": False}, (1 / 4, 1 / 4, 1 / 4), 1e-2),
    ],
)
def test_aggregator_of_ordinary_changes_is_the_mean(name, options, shares, tolerance):
    found, expected = change_of(name, **options), mean_change(shares)
    assert_close(found / RATE, expected / RATE, tolerance)


def test_all_aggregators_are_tested_here():
    of_tff = {"mean", "robust", "compression", "dp", "secure", "ddp_secure", "clipped"}
    of_stacks = {"trimmed_mean", "median", "geometric_median", "krum", "multi_krum"}
    assert set(AGGREGATORS) == of_tff | of_stacks


def test_options_reach_the_rules():
    values = tf.constant([0.0, 1.0, 2.0, 3.0, 9.0])
    stack = Stack(values, tf.ones([5]))
    for expected, name, options in (
        (2.0, "trimmed_mean", {}),
        (3.0, "trimmed_mean", {"fraction": 0.0}),
        (2.0, "geometric_median", {"iterations": 0}),
        (2.0, "geometric_median", {"smoothing": 100.0, "tolerance": 2.0}),
        (3.0, "geometric_median", {"smoothing": 100.0}),
        (1.0, "krum", {"clients_per_round": 5}),
        (1.5, "multi_krum", {"clients_per_round": 5}),
        (1.5, "multi_krum", {"clients_per_round": 5, "num_selected": 2}),
    ):
        found = float(AGGREGATORS[name](**options).of(stack))
        assert found == pytest.approx(expected, abs=1e-5), name


@pytest.mark.parametrize("name", ["krum", "multi_krum"])
def test_krum_needs_enough_clients_a_round(name):
    message = r"num_attackers=2 needs at least 2 \* num_attackers \+ 3 = 7 clients a .*=6"
    with pytest.raises(ValueError, match=message):
        AGGREGATORS[name](clients_per_round=6, num_attackers=2)
    assert AGGREGATORS[name](clients_per_round=7, num_attackers=2).fewest == 7


def test_rule_cannot_be_replaced_again():
    once = with_aggregator(make("fedavg", MODEL, LOCAL), AGGREGATORS["median"]())
    with pytest.raises(errors.AggregatorError, match="replaced: an aggregator .* before"):
        with_aggregator(once, robust())


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["fedavg", "pfedmb"])
def test_mean_of_secure_sums_cannot_be_replaced(name):
    """Tests that an aggregator which hides uploads from the server is kept."""
    secure = AGGREGATORS["secure"](zeroing=False, clipping=False)
    assert isinstance(secure, tff.aggregators.MeanFactory)
    once = with_aggregator(make(name, tiny_model(), LOCAL, num_clients=3), secure)
    with pytest.raises(errors.AggregatorError, match="replaced: .* other than the mean was chosen"):
        with_aggregator(once, robust())


class Twice(tff.aggregators.UnweightedAggregationFactory):
    """Two aggregators, which says how another one takes their place."""

    reason = None

    def __init__(self, mean):
        self.pair = mean, mean

    def around(self, mean):
        return Twice(mean)

    def create(self, value_type):
        raise NotImplementedError


def test_aggregator_of_ones_own_says_how_its_mean_is_replaced():
    once = algorithm_of(dataclasses.replace(mean_exchange(), aggregator=Twice("mean")))
    (exchange,) = with_aggregator(once, rule := robust()).exchanges
    assert exchange.aggregator.pair == (rule, rule)


def test_exchange_without_uploads_stays_unchanged():
    silent = Exchange(client_work=mean_exchange().client_work, name="silent")
    sum_ = tff.aggregators.SumFactory()
    changed = with_aggregator(algorithm_of(silent, mean_exchange()), sum_)
    assert changed.exchanges[0] is silent
    assert changed.exchanges[1].aggregator is sum_


REFUSED = {
    "pgfed": "each field of its uploads has its own aggregator",
    "fedpg": "every upload by itself",
    "local": "clients upload nothing",
}


@pytest.mark.parametrize("name", REFUSED)
def test_method_that_needs_more_than_the_mean_raises(name):
    algorithm = make(name, tiny_model(), LOCAL, num_clients=4, clients_per_round=2)
    message = f"The aggregator of .*{name}.* cannot be replaced: .*{REFUSED[name]}"
    with pytest.raises(errors.AggregatorError, match=message):
        with_aggregator(algorithm, robust())


def test_pfedmb_uses_another_aggregator_inside_or_instead_of_its_own():
    another = robust()
    for alpha_weighted in (True, False):
        algorithm = make("pfedmb", tiny_model(), LOCAL, branches=2, alpha_weighted=alpha_weighted)
        (exchange,) = with_aggregator(algorithm, another).exchanges
        is_placed = exchange.aggregator.pairs if alpha_weighted else exchange.aggregator
        assert is_placed is another
