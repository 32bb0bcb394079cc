"""Tests `compose` on processes that can be computed by hand."""

import collections
import types
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.federation import assert_equal, leaves
from tests.templates.mean_process import (
    EXAMPLES_TYPE,
    Visits,
    algorithm,
    clients,
    compose,
    examples,
    mean_exchange,
)
from tff_pfl import templates
from tff_pfl.arguments.kinds import KindError
from tff_pfl.templates import ClientOutput, Exchange, Message, Personalization
from tff_pfl.testing.eager import EagerProcess

pytestmark = pytest.mark.usefixtures("clients_in_a_loop")


@pytest.fixture(scope="module")
def process():
    return compose(mean_exchange())


class TestOneExchange:
    @pytest.mark.thorough
    def test_round_agrees_with_numpy(self, process):
        state = process.initialize()
        np.testing.assert_array_equal(state.algorithm, [1.0, 2.0])
        output = process.next(state, clients(process, examples(1.0, 2.0, 3.0), examples(6.0)))
        # (3 * mean(1, 2, 3) + 1 * 6) / 4 = 3
        np.testing.assert_allclose(output.state.algorithm, [3.0, 3.0], rtol=1e-6)
        assert output.state.round_num == 1
        assert [c.count for c in output.clients] == [1, 1]
        assert isinstance(output.clients[0], Visits)

    def test_metrics_count_clients_and_bytes(self, process):
        data = examples(1.0, 2.0, 3.0), examples(), examples(np.nan), examples(6.0)
        metrics = process.next(process.initialize(), clients(process, *data)).metrics
        assert metrics["train"] == {
            "value": 3.0,
            "num_clients": 2,
            "num_examples": 4,
            "num_nonfinite": 1,
            "num_empty": 1,
            "server_kept": 0,
            "server": {"change": pytest.approx(np.sqrt(5.0), rel=1e-6)},
        }
        assert metrics["bytes_down_per_client"] == 8
        assert metrics["bytes_up_per_client"] == 8 + 4

    @pytest.mark.thorough
    def test_bool_metric_becomes_an_integer(self):
        def finalize(server, change, round_num):
            return server + change, {"late": round_num > 0, "parts": [True, 2.5]}

        process = compose(mean_exchange(finalize=finalize))
        state = process.initialize()
        for expected in (0, 1):
            state, _, metrics = process.next(state, clients(process, examples(1.0)))
            measured = metrics["train"]["server"]
            assert (measured["late"], measured["late"].dtype) == (expected, np.int32)
            assert list(measured["parts"]) == [1, 2.5]

    def test_personalize_and_global_weights_return_models(self, process):
        state = process.initialize()
        models = process.personalize(state, clients(process, examples(1.0), examples(2.0, 4.0)))
        np.testing.assert_allclose(models, [[2.0, 3.0], [4.0, 5.0]])
        np.testing.assert_allclose(process.global_weights(state), [1.0, 2.0], rtol=1e-6)

    def test_server_keeps_its_state_if_the_new_one_is_not_finite(self, process):
        state = process.initialize()
        # Each upload is finite, but the sum of both overflows float32.
        output = process.next(state, clients(process, examples(3e38), examples(3e38)))
        assert_equal(output.state.algorithm, state.algorithm)
        assert output.metrics["train"]["server_kept"] == 1
        assert output.metrics["train"]["num_nonfinite"] == 0


def test_examples_may_be_given_by_a_data_set():
    dataset = types.SimpleNamespace(examples_type=EXAMPLES_TYPE)
    composed = templates.compose(algorithm(mean_exchange()), dataset)
    assert composed.client_type.data == EXAMPLES_TYPE
    with pytest.raises(KindError, match="A FederatedDataset has it as its examples_type."):
        templates.compose(algorithm(mean_exchange()), np.zeros(3))


@pytest.mark.thorough
def test_exchange_starts_from_the_states_of_the_previous_one():
    second = Exchange(
        name="second",
        distribute=lambda server: server[0],
        client_work=lambda first, state, data, context: ClientOutput(
            state=Visits(state.count * 10), upload={"sum": first + tf.cast(state.count, tf.float32)}
        ),
        aggregator=tff.aggregators.SumFactory(),
        finalize=lambda server, aggregate, round_num: (
            server * aggregate["sum"],
            collections.OrderedDict(),
        ),
    )
    process = compose(mean_exchange(), second)
    output = process.next(process.initialize(), clients(process, examples(3.0), examples(3.0)))
    # The first exchange makes the server [3, 3] and the counts 1, the second multiplies the server
    # by (3 + 1) + (3 + 1).
    np.testing.assert_allclose(output.state.algorithm, [24.0, 24.0], rtol=1e-6)
    assert [c.count for c in output.clients] == [10, 10]
    assert set(output.metrics) == {
        "train",
        "second",
        "bytes_down_per_client",
        "bytes_up_per_client",
    }
    assert output.metrics["bytes_down_per_client"] == 8 + 4
    assert output.metrics["bytes_up_per_client"] == (8 + 4) + 4


@pytest.mark.usefixtures("each_runtime")
class TestMessages:
    @pytest.mark.thorough
    def test_clients_receive_their_own_messages(self):
        def client_work(message, state, data, context):
            assert isinstance(message, Message)
            return ClientOutput(Visits(tf.cast(message.own["row"][1], tf.int32)), message.shared)

        exchange = mean_exchange(
            distribute=lambda server: server,
            select=lambda server, client_id: {
                "row": tf.stack([server[0], tf.cast(client_id, tf.float32)]),
                "id": client_id,
            },
            client_work=client_work,
        )
        process = compose(exchange)
        cohort = clients(process, *[examples(1.0)] * 3, ids=[4, 0, 9])
        output = process.next(process.initialize(), cohort)
        assert [c.count for c in output.clients] == [4, 0, 9]
        assert output.metrics["bytes_down_per_client"] == 8 + 8 + 4

    @pytest.mark.thorough
    def test_selected_message_keeps_its_structure(self):
        """Tests names out of order: TFF's runtime selects by a data set, which reorders them."""

        class Own(NamedTuple):
            b: Any
            a: Any

        def client_work(message, state, data, context):
            assert message.shared == ()
            assert isinstance(message.own, Own)
            total = 7 * message.own.b + 5 * message.own.a[0] + 2 * message.own.a[1]
            return ClientOutput(Visits(total), message.own.b)

        exchange = Exchange(
            select=lambda server, client_id: Own(b=client_id, a=[client_id * 10, client_id * 100]),
            client_work=client_work,
            aggregator=tff.aggregators.SumFactory(),
        )
        process = compose(exchange)
        output = process.next(process.initialize(), clients(process, examples(1.0), ids=[3]))
        assert [c.count for c in output.clients] == [7 * 3 + 5 * 30 + 2 * 300]

    def test_personalization_selects_too(self):
        process = compose(
            mean_exchange(),
            personalize=Personalization(
                select=lambda server, client_id: server * tf.cast(client_id, tf.float32),
                client_work=lambda message, state, data, context: message.own,
            ),
        )
        cohort = clients(process, *[examples(1.0)] * 2, ids=[2, 5])
        models = process.personalize(process.initialize(), cohort)
        np.testing.assert_allclose(models, [[2.0, 4.0], [5.0, 10.0]])


def by_blocks(*exchanges, seed=0):
    return EagerProcess(algorithm(*exchanges), seed)


def _draw(message, state, data, context):
    draw = tf.random.stateless_uniform([], context.seed, minval=None, maxval=None, dtype=tf.int32)
    return ClientOutput(Visits(draw))


DRAW = Exchange(client_work=_draw)
KEEP = Exchange(client_work=lambda message, state, data, context: ClientOutput(state), name="keep")


def draws(seed, ids, state=None, exchanges=(DRAW,), composed=False):
    """Returns the state after a round, and the random integer of each client."""
    process = compose(*exchanges, seed=seed) if composed else by_blocks(*exchanges, seed=seed)
    state = process.initialize() if state is None else state
    output = process.next(state, clients(process, *[examples(1.0)] * len(ids), ids=ids))
    return output.state, [int(c.count) for c in output.clients]


class TestSeeds:
    @pytest.mark.thorough
    def test_seed_depends_on_run_round_client_and_exchange(self):
        state, numbers = draws(0, [0, 1, 2])
        assert len(set(numbers)) == 3
        assert draws(0, [0, 1, 2])[1] == numbers
        assert draws(0, [2, 1, 7])[1][:2] == [numbers[2], numbers[1]]
        assert not set(draws(1, [0, 1, 2])[1]) & set(numbers)
        assert not set(draws(0, [0, 1, 2], state)[1]) & set(numbers)
        after_another = draws(0, [0, 1, 2], exchanges=(KEEP, DRAW))[1]
        assert not set(after_another) & set(numbers)
        assert draws(0, [0, 1, 2], exchanges=(KEEP, DRAW), composed=True)[1] == after_another

    def test_client_and_server_receive_the_round_number(self):
        exchange = mean_exchange(
            client_work=lambda server, state, data, context: ClientOutput(
                Visits(context.round_num * 100 + context.client_id), server * 0.0
            ),
            finalize=lambda server, change, round_num: (
                tf.fill([2], tf.cast(round_num, tf.float32)),
                {},
            ),
        )
        process = by_blocks(exchange)
        state = process.initialize()._replace(round_num=np.int32(6))
        output = process.next(state, clients(process, examples(1.0), ids=[5]))
        assert output.clients[0].count == 605
        np.testing.assert_allclose(output.state.algorithm, [6.0, 6.0], rtol=1e-6)
        assert output.state.round_num == 7


def test_measurements_of_aggregators_are_metrics():
    factory = tff.aggregators.add_measurements(
        tff.aggregators.SumFactory(),
        client_measurement_fn=lambda values: collections.OrderedDict(
            largest=tff.federated_max(tff.federated_map(_first, values))
        ),
    )
    process = compose(mean_exchange(aggregator=factory))
    metrics = process.next(process.initialize(), clients(process, examples(5.0))).metrics
    assert metrics["train"]["aggregator"] == {"largest": 4.0}


@tff.tensorflow.computation(tff.types.TensorType(np.float32, [2]))
def _first(value):
    return value[0]


@pytest.mark.thorough
def test_aggregator_keeps_its_state_if_the_server_does():
    process = compose(mean_exchange(aggregator=tff.learning.robust_aggregator(clipping=False)))
    state = process.initialize()
    kept = process.next(state, clients(process, examples(), examples(np.nan))).state
    assert_equal(kept.aggregators, state.aggregators)
    changed = process.next(state, clients(process, examples(5.0))).state
    assert not all(map(np.array_equal, leaves(changed.aggregators), leaves(state.aggregators)))


def test_metric_without_measurements_is_nan(process):
    metrics = process.next(process.initialize(), clients(process, examples())).metrics
    assert np.isnan(metrics["train"]["value"])
