"""Tests values that clients carry between exchanges, and states that change their length."""

from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.federation import assert_equal
from tests.marks import together
from tests.templates.mean_process import Visits, algorithm, clients, compose, examples, mean_value
from tff_pfl.aggregators import StackFactory
from tff_pfl.local import trees
from tff_pfl.templates import ClientOutput, Exchange, Personalization
from tff_pfl.testing.eager import EagerProcess

pytestmark = pytest.mark.usefixtures("clients_in_a_loop")


class Kept(NamedTuple):
    """A carry with unsorted names and values of several types."""

    value: Any
    about: Any


def exchange(name, work) -> Exchange:
    """Makes an exchange that sends nothing to clients and sums their uploads."""

    def finalize(server, stack, round_num):
        return server, {"total": tf.reduce_sum(stack.value), "weights": stack.weight}

    return Exchange(
        name=name,
        client_work=lambda message, state, data, context: work(state, data, context),
        aggregator=StackFactory(),
        finalize=finalize,
    )


def three_exchanges(*work):
    """Makes a process that runs block by block."""
    return EagerProcess(algorithm(*map(exchange, ("first", "second", "third"), work)))


def totals(metrics):
    """Returns the server's sum in each exchange."""
    return {
        name: measured["server"]["total"]
        for name, measured in metrics.items()
        if isinstance(measured, dict)
    }


def counts(metrics, what):
    return [measured[what] for measured in metrics.values() if isinstance(measured, dict)]


def next_of(process, *data, ids=None):
    return process.next(process.initialize(), clients(process, *data, ids=ids))


@pytest.mark.thorough
@pytest.mark.usefixtures("each_runtime")
def test_exchange_receives_the_carry_of_the_previous_one():
    def first(state, data, context):
        about = {"z": context.client_id, "a": [tf.constant(True), tf.fill([2], mean_value(data))]}
        return ClientOutput(state, mean_value(data), carry=Kept(mean_value(data), about))

    def second(state, data, context):
        assert isinstance(context.carry, Kept)
        value, about = context.carry
        check = tf.cast(about["a"][0], tf.float32) * about["a"][1][1]
        carry = (value * 10.0, about["z"] * 100)
        return ClientOutput(state, check, carry=carry)

    def third(state, data, context):
        tenfold, hundredfold = context.carry
        return ClientOutput(Visits(hundredfold), tenfold)

    process = compose(exchange("a", first), exchange("b", second), exchange("c", third))
    output = next_of(process, examples(1.0, 3.0), examples(5.0), examples(4.0), ids=[7, 2, 5])
    assert totals(output.metrics) == {"a": 11.0, "b": 11.0, "c": 110.0}
    assert [client.count for client in output.clients] == [700, 200, 500]


@pytest.mark.thorough
def test_carry_may_differ_in_length_between_clients():
    def first(state, data, context):
        return ClientOutput(state, data.size, carry=tf.boolean_mask(data.x, data.x > 2.0))

    def second(state, data, context):
        return ClientOutput(Visits(tf.shape(context.carry)[0]), tf.reduce_sum(context.carry))

    process = compose(exchange("first", first), exchange("second", second))
    output = next_of(process, examples(1.0, 3.0, 4.0), examples(1.0), examples(9.0, 2.0))
    assert [client.count for client in output.clients] == [2, 0, 1]
    assert totals(output.metrics) == {"first": 6, "second": 16.0}


# Rejected clients. Each exchange counts a visit, uploads the mean value and carries it.


def visit(upload=lambda carried, data: mean_value(data), carry=mean_value):
    def work(state, data, context):
        return ClientOutput(Visits(state.count + 1), upload(context.carry, data), carry=carry(data))

    return work


def reciprocal(carried, data):
    """Returns an upload that is not finite if a rejected client has a carry of zeros."""
    del data
    return 1.0 / carried


def log_of_first(data):
    return tf.math.log(data.x[0])  # NaN of a negative number


@together(
    "first",
    [
        visit(upload=lambda carried, data: log_of_first(data)),
        visit(carry=log_of_first),
        visit(carry=lambda data: {"counts": tf.constant([1, 2]), "log": [log_of_first(data)]}),
    ],
)
def test_client_rejected_in_the_first_exchange_is_rejected_in_all(first):
    process = three_exchanges(first, visit(), visit(upload=reciprocal))
    output = next_of(process, examples(2.0), examples(-8.0), examples(4.0))
    assert [client.count for client in output.clients] == [3, 0, 3]
    assert counts(output.metrics, "num_nonfinite") == [1, 0, 0]
    assert counts(output.metrics, "num_clients") == [2, 2, 2]
    assert counts(output.metrics, "num_examples") == [2, 2, 2]
    assert counts(output.metrics, "num_empty") == [0, 0, 0]
    assert totals(output.metrics)["second"] == 6.0
    assert totals(output.metrics)["third"] == 0.75


def test_client_rejected_later_keeps_its_state_and_stays_rejected():
    process = three_exchanges(visit(), visit(carry=log_of_first), visit())
    output = next_of(process, examples(2.0), examples(-8.0), examples(4.0))
    assert [client.count for client in output.clients] == [3, 1, 3]
    assert counts(output.metrics, "num_nonfinite") == [0, 1, 0]
    assert counts(output.metrics, "num_clients") == [3, 2, 2]
    np.testing.assert_array_equal(output.metrics["third"]["server"]["weights"], [1, 0, 1])
    assert totals(output.metrics)["third"] == 2 + 4


def test_client_without_examples_is_empty_in_each_exchange():
    process = three_exchanges(visit(), visit(upload=reciprocal), visit(upload=reciprocal))
    output = next_of(process, examples(), examples(4.0), examples(np.nan))
    assert [client.count for client in output.clients] == [0, 3, 0]
    assert counts(output.metrics, "num_empty") == [1, 1, 1]
    assert counts(output.metrics, "num_nonfinite") == [1, 0, 0]
    assert counts(output.metrics, "num_clients") == [1, 1, 1]
    assert totals(output.metrics) == {"first": 4.0, "second": 0.25, "third": 0.25}


# Server states with a field of unknown length.


class Growing(NamedTuple):
    values: Any
    rows: Any


@pytest.mark.thorough
@pytest.mark.usefixtures("each_runtime")
def test_server_state_may_change_its_length():
    def finalize(server, stack, round_num):
        values = stack.value
        return Growing(values, tf.tile(values[:, tf.newaxis], [1, 3])), {}

    process = compose(
        Exchange(
            distribute=lambda server: tf.reduce_sum(server.values),
            client_work=lambda total, state, data, context: ClientOutput(
                state, total + mean_value(data)
            ),
            aggregator=StackFactory(),
            finalize=finalize,
        ),
        server_init=lambda seed: Growing(
            trees.no_rows([], tf.float32), trees.no_rows([3], tf.float32)
        ),
        personalize=Personalization(
            distribute=lambda server: tf.reduce_sum(server.values),
            client_work=lambda total, state, data, context: total,
        ),
        global_weights=None,
    )
    state = process.initialize()
    assert state.algorithm.values.shape == (0,)
    assert state.algorithm.rows.shape == (0, 3)
    expected = 0.0
    for values in ([1.0, 2.0, 3.0], [4.0], [5.0, 6.0]):
        cohort = clients(process, *map(examples, values))
        state = process.next(state, cohort).state
        np.testing.assert_allclose(state.algorithm.values, expected + np.array(values))
        assert state.algorithm.rows.shape == (len(values), 3)
        expected = np.sum(state.algorithm.values)
        np.testing.assert_allclose(process.personalize(state, cohort), [expected] * len(values))
    # A round without an accepted client keeps the length, too.
    kept = process.next(state, clients(process, examples(np.nan))).state
    assert_equal(kept.algorithm, state.algorithm)


@pytest.mark.thorough
@pytest.mark.usefixtures("each_runtime")
def test_client_state_may_change_its_length():
    def append(message, state, data, context):
        means = tf.concat([state, [mean_value(data)]], axis=0)
        return ClientOutput(means, tf.reduce_sum(means))

    process = compose(
        Exchange(
            distribute=lambda server: server,
            client_work=append,
            aggregator=tff.aggregators.SumFactory(),
            finalize=lambda server, total, round_num: (server + total, {}),
        ),
        server_init=lambda seed: tf.constant(0.0),
        client_init=lambda client_id, seed: trees.no_rows([], tf.float32),
        personalize=Personalization(
            distribute=lambda server: server,
            client_work=lambda server, state, data, context: tf.reduce_sum(state),
        ),
        global_weights=None,
    )
    state, cohort = process.initialize(), clients(process, examples(1.0), examples(2.0))
    for data in ([3.0, 4.0], [np.nan, 5.0]):
        cohort = [
            client._replace(data=examples(value))
            for client, value in zip(cohort, data, strict=True)
        ]
        output = process.next(state, cohort)
        cohort = [
            client._replace(state=kept) for client, kept in zip(cohort, output.clients, strict=True)
        ]
    assert [np.array(client.state).tolist() for client in cohort] == [[3.0], [4.0, 5.0]]
