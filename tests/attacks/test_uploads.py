"""Tests that attackers scale their uploads, and that nothing else changes."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.federation import assert_close, assert_equal, eager, local_sgd, make_clients, tiny_model
from tests.templates.mean_process import (
    EXAMPLES_TYPE,
    Visits,
    algorithm,
    clients,
    examples,
    mean_exchange,
)
from tff_pfl.aggregators import Shares, StackFactory
from tff_pfl.algorithms import make
from tff_pfl.arguments.names import UnknownNameError
from tff_pfl.attacks import scaled_uploads
from tff_pfl.attacks.attackers import are_attacked
from tff_pfl.attacks.inner_product import inner_product
from tff_pfl.local import trees
from tff_pfl.templates import ClientOutput, compose
from tff_pfl.testing.eager import EagerProcess

pytestmark = pytest.mark.usefixtures("clients_in_a_loop")
OPTIONS = {"weighting": "uniform", "personalized": "local"}


def attacked(algorithm, factors, first=1):
    """Returns the algorithm with an attacker for each factor, with ids from `first` on."""
    for client_id, factor in enumerate(factors, start=first):
        algorithm = scaled_uploads(algorithm, client_ids=[client_id], factor=factor)
    return algorithm


@functools.cache
def fedavg(attack=True):
    """Returns FedAvg in which clients 1 to 4 scale their uploads by 0, -1, 1e6 and NaN."""
    if not attack:
        return eager("fedavg", tiny_model(), local_sgd(), **OPTIONS)
    honest = make("fedavg", tiny_model(), local_sgd(), **OPTIONS)
    return EagerProcess(attacked(honest, (0.0, -1.0, 1e6, float("nan"))))


@functools.cache
def round_of(process, *client_ids):
    cohort = make_clients(process, (6, 9, 4, 7, 5, 8))
    return process.next(process.initialize(), [cohort[i] for i in client_ids])


def upload_of(client_id):
    """Returns a client's upload without attacks."""
    process = fedavg(attack=False)
    after = round_of(process, client_id).state.algorithm.weights
    return trees.subtract(after, process.initialize().algorithm.weights)


@pytest.mark.thorough
@pytest.mark.parametrize(("attacker", "factor"), [(1, 0.0), (2, -1.0), (3, 1e6)])
def test_attackers_upload_is_multiplied(attacker, factor):
    output = round_of(fedavg(), 0, attacker, 5)
    change = trees.subtract(output.state.algorithm.weights, fedavg().initialize().algorithm.weights)
    total = trees.add(upload_of(0), upload_of(5))
    total = trees.add(total, trees.scale(upload_of(attacker), factor))
    shrink = 1 / max(1.0, factor)
    assert_close(trees.scale(change, shrink), trees.scale(total, shrink / 3))
    honest = round_of(fedavg(attack=False), 0, attacker, 5)
    assert_equal(output.clients, honest.clients)  # Client states are not scaled.
    assert output.metrics["train"]["num_clients"] == 3


def test_client_with_nan_upload_is_left_out():
    output = round_of(fedavg(), 0, 4, 5)
    without = round_of(fedavg(attack=False), 0, 5)
    assert_close(output.state.algorithm.weights, without.state.algorithm.weights, 1e-6)
    assert output.metrics["train"]["num_nonfinite"] == 1
    assert output.metrics["train"]["num_clients"] == 2
    assert [int(client.participations) for client in output.clients] == [1, 0, 1]


def test_honest_clients_are_not_affected():
    assert_equal(round_of(fedavg(), 0, 5), round_of(fedavg(attack=False), 0, 5))


# In the following tests, the server starts at [1, 2], which clients subtract from their values.


def server_after(algorithm, *values):
    process = EagerProcess(algorithm)
    cohort = clients(process, *map(examples, values))
    return process.next(process.initialize(), cohort).state.algorithm


def test_scaled_uploads_does_not_change_the_original_algorithm():
    honest = algorithm(mean_exchange())
    scaled = scaled_uploads(honest, client_ids=[0, 2], factor=10.0)
    # [1, 2] + ((4 - 1) + (7 - 1) + (1 - 1)) / 3 and so on.
    np.testing.assert_allclose(server_after(honest, 4.0, 7.0, 1.0), [4.0, 4.0], rtol=1e-6)
    np.testing.assert_allclose(
        server_after(scaled, 4.0, 7.0, 1.0), [1.0 + 36.0 / 3, 2.0 + 15.0 / 3], rtol=1e-6
    )


def test_attacks_can_be_combined():
    scaled = scaled_uploads(algorithm(mean_exchange()), client_ids=[0], factor=5.0)
    scaled = scaled_uploads(scaled, client_ids=[0, 1], factor=-1.0)
    expected = [1 + (-10 - 4) / 2, 2 + (-5 - 3) / 2]
    np.testing.assert_allclose(server_after(scaled, 3.0, 5.0), expected, rtol=1e-6)


def test_only_values_of_shares_are_attacked():
    upload = Shares({"w": tf.ones([2, 3])}, {"w": tf.ones([2])})
    assert are_attacked(upload) == [True, False]
    assert are_attacked({"n": tf.constant(1), "rows": tf.ones([3])}) == [False, True]


@pytest.mark.parametrize("attack", [scaled_uploads, inner_product])
def test_unknown_exchange_is_refused(attack):
    with pytest.raises(UnknownNameError, match="exchange 'trian'"):
        attack(algorithm(mean_exchange()), client_ids=[0], exchange_name="trian")


def test_only_the_named_exchange_is_attacked(attacked_name="second"):
    def finalize(server, change, round_num):
        return server, {"change": change}

    honest = algorithm(
        mean_exchange(name="first", finalize=finalize),
        mean_exchange(name="second", finalize=finalize),
    )
    process = EagerProcess(
        scaled_uploads(honest, client_ids=[0], factor=0.5, exchange_name=attacked_name)
    )
    metrics = process.next(process.initialize(), clients(process, examples(3.0))).metrics
    for name in ("first", "second"):
        expected = [1.0, 0.5] if name == attacked_name else [2.0, 1.0]
        np.testing.assert_allclose(metrics[name]["server"]["change"], expected)


@pytest.mark.thorough_but_one
@pytest.mark.parametrize(
    "attack",
    [
        functools.partial(scaled_uploads, factor=-3.0),
        functools.partial(inner_product, epsilon=3.0),  # -3 times the upload of the other client
    ],
)
def test_scalars_and_integers_are_not_changed(attack):
    def client_work(server, state, data, context):
        upload = {
            "vector": tf.constant([1.0, 2.0]),
            "matrix": tf.constant([[1.0], [2.0]], tf.float64),
            "loss": tf.constant(7.0),
            "counts": tf.constant([3, 4]),
        }
        return ClientOutput(Visits(state.count), upload)

    exchange = mean_exchange(
        client_work=client_work,
        aggregator=StackFactory(),
        finalize=lambda server, stack, round_num: (server, dict(stack.value)),
    )
    process = compose(attack(algorithm(exchange), client_ids=[1]), EXAMPLES_TYPE)
    cohort = clients(process, examples(1.0), examples(1.0))
    sent = process.next(process.initialize(), cohort).metrics["train"]["server"]
    np.testing.assert_allclose(sent["vector"], [[1.0, 2.0], [-3.0, -6.0]])
    np.testing.assert_allclose(sent["matrix"], [[[1.0], [2.0]], [[-3.0], [-6.0]]])
    np.testing.assert_array_equal(sent["loss"], [7.0, 7.0])
    np.testing.assert_array_equal(sent["counts"], [[3, 4], [3, 4]])
