"""Tests of `tff_pfl.templates.aggregators`: those that can be chosen by name."""

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
# Of one leaf: aggregators do the same for each, and secure sums take long to build.
MODEL, LOCAL = quadratic_model(DIM), local_sgd(RATE, epochs=1, batch_size=4)
SIZES = (1, 3, 2)  # of clients that have the same example several times
BY_SIZE = np.array(SIZES) / sum(SIZES)
PRIVATE = {"clients_per_round": len(SIZES), "noise_multiplier": 0.0}


def clients_of(process):
    """Those above, and one whose change is not finite."""
    for i, size in enumerate([*SIZES, 2]):
        data = quadratic_examples(
            np.eye(DIM), np.full(DIM, float(i) if i < len(SIZES) else np.nan), copies=size
        )
        yield make_client(process, i, data)


@functools.cache
def change_of(aggregator=None, **options):
    """How the model changes in a round; without a name, with the aggregator of the method."""
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
    """One step of each client is `RATE (c - w)`."""
    start = vector_of(MODEL.init(1))
    return sum(p * RATE * (float(i) - start) for i, p in enumerate(shares))


def test_the_mean_is_what_there_is_without():
    assert_equal(change_of("mean"), change_of())
    assert_close(change_of() / RATE, mean_change(BY_SIZE) / RATE)


@pytest.mark.parametrize(
    ("name", "options", "shares", "tolerance"),
    [
        # Without outliers, and of changes that are shorter than the first clipping norm.
        ("robust", {}, BY_SIZE, 1e-5),
        slow("secure", {"zeroing": False, "clipping": False}, BY_SIZE, 1e-4),
        slow("secure", {}, BY_SIZE, 1e-4),
        # Of changes that are shorter than the norm.
        ("clipped", {"norm": 1.0}, BY_SIZE, 1e-5),
        # Whose weight is in the middle; the one that is left out is none of three.
        ("median", {}, (0.0, 1.0, 0.0), 1e-5),
        # Of changes that are quantized.
        slow("compression", {"zeroing": False, "clipping": False}, BY_SIZE, 1e-2),
        slow("compression", {}, BY_SIZE, 1e-2),
        # To unweighted ones, who is left out is a change of zeros; this one divides by how many are
        # expected,
        ("dp", {**PRIVATE, "zeroing": False}, (1 / 3, 1 / 3, 1 / 3), 1e-5),
        slow("dp", PRIVATE, (1 / 3, 1 / 3, 1 / 3), 1e-5),
        # and this one by how many there are.
        slow("ddp_secure", {**PRIVATE, "zeroing": False}, (1 / 4, 1 / 4, 1 / 4), 1e-2),
    ],
)
def test_of_ordinary_changes_they_make_the_mean(name, options, shares, tolerance):
    found, expected = change_of(name, **options), mean_change(shares)
    assert_close(found / RATE, expected / RATE, tolerance)


def test_all_of_them_are_tried_here():
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
    message = (
        r"num_attackers=2 needs 2 \* num_attackers \+ 3 = 7 clients a round or more, found .*6"
    )
    with pytest.raises(ValueError, match=message):
        AGGREGATORS[name](clients_per_round=6, num_attackers=2)
    assert AGGREGATORS[name](clients_per_round=7, num_attackers=2).fewest == 7


def test_another_rule_does_not_take_the_place_of_one():
    once = with_aggregator(make("fedavg", MODEL, LOCAL), AGGREGATORS["median"]())
    with pytest.raises(errors.AggregatorError, match="replaced: another one was chosen before"):
        with_aggregator(once, robust())


@pytest.mark.parametrize("name", ["fedavg", "pfedmb"])
def test_a_mean_of_secure_sums_is_none_that_could_be_replaced(name):
    """As these are what the server must not see the uploads for."""
    secure = AGGREGATORS["secure"](zeroing=False, clipping=False)
    assert isinstance(secure, tff.aggregators.MeanFactory)
    once = with_aggregator(make(name, tiny_model(), LOCAL, num_clients=3), secure)
    with pytest.raises(errors.AggregatorError, match="replaced: another than the mean was chosen"):
        with_aggregator(once, robust())


def test_an_exchange_that_uploads_nothing_stays_as_it_is():
    silent = Exchange(client_work=mean_exchange().client_work, name="silent")
    sum_ = tff.aggregators.SumFactory()
    changed = with_aggregator(algorithm_of(silent, mean_exchange()), sum_)
    assert changed.exchanges[0] is silent
    assert changed.exchanges[1].aggregator is sum_


REFUSED = {
    "pgfed": "of every upload by itself",
    "fedpg": "every upload by itself",
    "fedamp": "every upload by itself",
    "local": "clients upload nothing",
}


@pytest.mark.parametrize("name", REFUSED)
def test_who_needs_more_than_the_mean_refuses_by_name(name):
    algorithm = make(name, tiny_model(), LOCAL, num_clients=4, clients_per_round=2)
    message = f"The aggregator of .*{name}.* cannot be replaced: .*{REFUSED[name]}"
    with pytest.raises(errors.AggregatorError, match=message):
        with_aggregator(algorithm, robust())


def test_pfedmb_takes_another_one_for_its_pairs_or_without_them_as_it_is():
    another = robust()
    for alpha_weighted in (True, False):
        algorithm = make("pfedmb", tiny_model(), LOCAL, branches=2, alpha_weighted=alpha_weighted)
        (exchange,) = with_aggregator(algorithm, another).exchanges
        is_placed = exchange.aggregator.pairs if alpha_weighted else exchange.aggregator
        assert is_placed is another
