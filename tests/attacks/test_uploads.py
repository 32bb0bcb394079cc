"""Attackers scale what they upload, and nothing else changes; FedPG withstands them."""

import contextlib
import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.federation import (
    EXAMPLES_TYPE,
    assert_close,
    assert_equal,
    leaves,
    local_sgd,
    make_clients,
    tiny_model,
)
from tests.quadratics import quadratic_examples, quadratic_model, quadratic_type, spd
from tests.templates.mean_process import Visits, clients, compose, examples, mean_exchange
from tff_pfl.algorithms import build_fedavg, build_fedpg
from tff_pfl.attacks import scaled_uploads
from tff_pfl.local import evaluate, trees
from tff_pfl.templates import Client, ClientContext, ClientOutput, exchanges_changed_by


@functools.cache
def fedavg(attacked=True):
    """Clients 1, 2, 3 scale by 0, -1, 1e6, client 4 sends no number."""
    with contextlib.ExitStack() as attacks:
        for i, factor in enumerate((0.0, -1.0, 1e6, float("nan")), start=1):
            if attacked:
                attacks.enter_context(exchanges_changed_by(scaled_uploads([i], factor)))
        return build_fedavg(
            tiny_model(), EXAMPLES_TYPE, local_sgd(), weighting="uniform", personalized="local"
        )


def round_of(process, *client_ids):
    cohort = make_clients(process, (6, 9, 4, 7, 5, 8))
    return process.next(process.initialize(), [cohort[i] for i in client_ids])


def upload_of(client_id):
    """What a client uploads if nobody attacks."""
    process = fedavg(attacked=False)
    after = round_of(process, client_id).state.algorithm.weights
    return trees.subtract(after, process.initialize().algorithm.weights)


@pytest.mark.parametrize(("attacker", "factor"), [(1, 0.0), (2, -1.0), (3, 1e6)])
def test_the_attackers_upload_is_multiplied(attacker, factor):
    output = round_of(fedavg(), 0, attacker, 5)
    change = trees.subtract(output.state.algorithm.weights, fedavg().initialize().algorithm.weights)
    total = trees.add(upload_of(0), upload_of(5))
    total = trees.add(total, trees.scale(upload_of(attacker), factor))
    shrink = 1 / max(1.0, factor)
    assert_close(trees.scale(change, shrink), trees.scale(total, shrink / 3))
    honest = round_of(fedavg(attacked=False), 0, attacker, 5)
    assert_equal(output.clients, honest.clients)  # what a client keeps is not scaled
    assert output.metrics["train"]["num_clients"] == 3


def test_an_upload_of_no_numbers_leaves_the_client_out():
    output = round_of(fedavg(), 0, 4, 5)
    without = round_of(fedavg(attacked=False), 0, 5)
    assert_close(output.state.algorithm.weights, without.state.algorithm.weights, 1e-6)
    assert output.metrics["train"]["num_nonfinite"] == 1
    assert output.metrics["train"]["num_clients"] == 2
    assert [int(client.participations) for client in output.clients] == [1, 0, 1]


def test_others_are_not_affected():
    assert_equal(round_of(fedavg(), 0, 5), round_of(fedavg(attacked=False), 0, 5))


# By hand: the server starts at [1, 2], a client uploads its value less that.


def server_after(process, *values):
    cohort = clients(process, *map(examples, values))
    return process.next(process.initialize(), cohort).state.algorithm.weights


def test_nothing_is_changed_outside():
    with exchanges_changed_by(scaled_uploads([0, 2], 10.0)):
        attacked = compose(mean_exchange())
    with pytest.raises(KeyError), exchanges_changed_by(scaled_uploads([0, 2], 10.0)):
        raise KeyError
    process = compose(mean_exchange())
    # [1, 2] + ((4 - 1) + (7 - 1) + (1 - 1)) / 3 and so on.
    np.testing.assert_allclose(server_after(process, 4.0, 7.0, 1.0), [4.0, 4.0], rtol=1e-6)
    np.testing.assert_allclose(
        server_after(attacked, 4.0, 7.0, 1.0), [1.0 + 36.0 / 3, 2.0 + 15.0 / 3], rtol=1e-6
    )


def test_attacks_add_up():
    with (
        exchanges_changed_by(scaled_uploads([0], 5.0)),
        exchanges_changed_by(scaled_uploads([0, 1], -1.0)),
    ):
        process = compose(mean_exchange())
    np.testing.assert_allclose(
        server_after(process, 3.0, 5.0), [1 + (-10 - 4) / 2, 2 + (-5 - 3) / 2], rtol=1e-6
    )


def test_without_attackers_the_exchange_is_as_it_was():
    exchange = mean_exchange()
    assert scaled_uploads([], -1.0)(exchange) is exchange
    assert scaled_uploads([0], -1.0, exchange_name="other")(exchange) is exchange


@pytest.mark.parametrize("attacked", ["first", "second"])
def test_only_the_named_exchange(attacked):
    def finalize(server, change, round_num):
        return server, {"change": change}

    with exchanges_changed_by(scaled_uploads([0], 0.5, exchange_name=attacked)):
        process = compose(
            mean_exchange(name="first", finalize=finalize),
            mean_exchange(name="second", finalize=finalize),
        )
    metrics = process.next(process.initialize(), clients(process, examples(3.0))).metrics
    for name in ("first", "second"):
        expected = [1.0, 0.5] if name == attacked else [2.0, 1.0]
        np.testing.assert_allclose(metrics[name]["server"]["change"], expected)


def test_scalars_and_integers_are_sent_as_they_are():
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
        aggregator=tff.aggregators.SumFactory(),
        finalize=lambda server, total, round_num: (server, dict(total)),
    )
    with exchanges_changed_by(scaled_uploads([1], -3.0)):
        process = compose(exchange)
    cohort = clients(process, examples(1.0), examples(1.0))
    total = process.next(process.initialize(), cohort).metrics["train"]["server"]
    np.testing.assert_allclose(total["vector"], [-2.0, -4.0])
    np.testing.assert_allclose(total["matrix"], [[-2.0], [-4.0]])
    assert total["loss"] == 14.0
    np.testing.assert_array_equal(total["counts"], [6, 8])


# FedPG: five honest clients with quadratic losses, and one of several attackers.

DIM = 12
HONEST = 5
FACTORS = (1e6, 1e-6, -1.0, float("nan"), 0.0)
QUADRATIC = quadratic_model(DIM)


@functools.cache
def fedpg():
    """`(process, exchange "train")`; clients from 5 on scale by `FACTORS`."""
    exchanges = []
    with contextlib.ExitStack() as attacks:
        for i, factor in enumerate(FACTORS):
            attacks.enter_context(exchanges_changed_by(scaled_uploads([HONEST + i], factor)))
        attacks.enter_context(exchanges_changed_by(lambda e: exchanges.append(e) or e))
        local = local_sgd(learning_rate=0.1)
        process = build_fedpg(QUADRATIC, quadratic_type(DIM), local, seed=3)
    return process, exchanges[0]


def quadratic_data():
    """Of five honest clients, and of an attacker."""
    rng = np.random.default_rng(5)
    return [
        quadratic_examples(spd(DIM, seed=i), 2.0 + rng.normal(size=DIM), 0.1)
        for i in range(HONEST + 1)
    ]


def losses(weights):
    """Of the honest clients."""
    data = quadratic_data()[:HONEST]
    return [float(evaluate(QUADRATIC, weights, examples)["loss"].mean) for examples in data]


def test_the_losses_of_fedpg_are_not_scaled():
    process, exchange = fedpg()
    weights = QUADRATIC.init(3)
    state, data = process.initialize_client(0), quadratic_data()[0]

    def upload(client_id):
        context = ClientContext(np.int32(0), np.int32(client_id), seed=tf.constant([0, 0]))
        return exchange.client_work(weights, state, data, context).upload

    honest, attack = upload(0), upload(HONEST + FACTORS.index(0.0))
    assert float(attack.loss) == float(honest.loss) > 0.1
    assert int(attack.client_id) == HONEST + FACTORS.index(0.0)
    assert bool(attack.is_new)
    np.testing.assert_array_equal(attack.gradient, np.zeros(DIM))
    assert np.linalg.norm(honest.gradient) > 0.1


@pytest.mark.parametrize("factor", FACTORS)
def test_fedpg_withstands_an_attacker(factor):
    process, _ = fedpg()
    ids = [*range(HONEST), HONEST + FACTORS.index(factor)]
    cohort = [
        Client(np.int32(i), process.initialize_client(i), data)
        for i, data in zip(ids, quadratic_data(), strict=True)
    ]
    state = process.initialize()
    before = losses(state.algorithm.weights)
    for _ in range(15):
        output = process.next(state, cohort)
        state = output.state
        cohort = [c._replace(state=s) for c, s in zip(cohort, output.clients, strict=True)]
    assert all(np.isfinite(leaf).all() for leaf in leaves(state, output.clients))
    assert np.mean(losses(state.algorithm.weights)) < 0.9 * np.mean(before)
    metrics = output.metrics["train"]
    assert metrics["num_nonfinite"] == (1 if np.isnan(factor) else 0)
    assert metrics["server"]["num_zero_gradients"] == (1 if factor == 0.0 else 0)
    assert metrics["server"]["num_outliers"] == (1 if factor == 1e6 else 0)
