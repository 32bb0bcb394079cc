"""Tests that digests of computations notice each edit, but no other names."""

import functools
import re

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from google.protobuf import any_pb2
from hypothesis import strategies

from tests.federation import EXAMPLES_TYPE, local_sgd, tiny_model
from tests.marks import together
from tff_pfl import AGGREGATORS, compose, make
from tff_pfl.experiment.fingerprint import fingerprint

INTS = np.int32, np.int32
AT_CLIENTS = tff.types.FederatedType(np.float32, tff.CLIENTS)


def traced(function, *types):
    """Traces a function of scalars, or of the given types."""
    return tff.tensorflow.computation(function, *(types or [np.float32]))


def aggregating(aggregate, started=1.0):
    """Returns a federated computation that adds a constant to an aggregate of clients' numbers."""

    @tff.federated_computation(AT_CLIENTS)
    def aggregated(x):
        doubled = tff.federated_map(traced(lambda x: 2 * x), x)
        return aggregate(doubled), tff.federated_value(np.float32(started), tff.SERVER)

    return aggregated


def switching(*branches):
    return traced(
        lambda x: tf.switch_case(
            tf.cast(x, tf.int32), [functools.partial(branch, x) for branch in branches]
        )
    )


def calling(first, second):
    """Returns a computation that calls two functions in this order."""
    first, second = tf.function(first), tf.function(second)
    return traced(lambda x: second(first(x)))


def twice(x):
    return 2 * x


def next_to(x):
    return x + 1


def process_of(aggregator):
    algorithm = make("fedavg", tiny_model(), local_sgd(), aggregator=aggregator)
    return compose(algorithm, EXAMPLES_TYPE).next


def clipped(norm):
    return tff.aggregators.clipping_factory(norm, tff.aggregators.MeanFactory())


@together(
    ("before", "after"),
    [
        (switching(twice, next_to, tf.abs), switching(twice, tf.abs, next_to)),
        (calling(twice, next_to), calling(next_to, twice)),
        (aggregating(tff.federated_sum), aggregating(tff.federated_mean)),
        (aggregating(tff.federated_sum, 1.0), aggregating(tff.federated_sum, 1.5)),
        (traced(lambda x, y: (x, y), *INTS), traced(lambda x, y: (y, x), *INTS)),
    ],
)
def test_edits_of_computations_are_noticed(before, after):
    assert fingerprint(before) != fingerprint(after)


@pytest.mark.thorough
@pytest.mark.parametrize("factory", [clipped, lambda norm: AGGREGATORS["clipped"](norm=norm)])
def test_constants_of_aggregators_are_noticed(factory):
    before, again, after = (fingerprint(process_of(factory(norm))) for norm in (100.0, 100.0, 0.01))
    assert before == again != after


def test_names_do_not_matter():
    """The second trace has other numbers in its names, and Keras' own names for layers."""

    def network(x):
        layers = tf.keras.layers
        inputs = tf.keras.Input((4, 3))
        zeros = {"kernel_initializer": "zeros"}  # by default, initial weights are random
        hidden = layers.LSTM(2, recurrent_initializer="zeros", **zeros)(inputs)
        outputs = layers.Dense(1, **zeros)(hidden)
        model = tf.keras.Model(inputs, outputs)
        weights = [tf.ones(weight.shape) for weight in model.weights]
        with tf.control_dependencies([tf.debugging.assert_less(x, 9.0)]):
            return tf.add_n(list(map(tf.reduce_sum, weights))) + tf.vectorized_map(twice, x)

    vector = tff.TensorType(np.float32, [3])
    assert fingerprint(traced(network, vector)) == fingerprint(traced(network, vector))


def whole(x, y):
    """Computes with branches, a loop, calls and constants."""
    chosen = tf.cond(x > y, lambda: x * 2.0, lambda: y - 3.0)
    looped = tf.while_loop(lambda z: z < 10.0, lambda z: z * z + chosen, [tf.abs(x) + 1.5])[0]
    return looped, tf.function(next_to)(tf.function(twice)(y - x))


@tff.federated_computation(AT_CLIENTS, tff.types.FederatedType(np.float32, tff.SERVER))
def one_round(x, y):
    mapped = tff.federated_map(
        traced(whole, np.float32, np.float32), (x, tff.federated_broadcast(y))
    )
    total = tff.federated_sum(mapped[0]), tff.federated_mean(mapped[1])
    return tff.federated_map(traced(whole, np.float32, np.float32), total), tff.federated_value(
        1, tff.SERVER
    )


def changed(value, edit):
    """Returns a copy of a computation or a part of it in which `edit` changed each graph."""
    if isinstance(value, any_pb2.Any):
        graph = tf.compat.v1.GraphDef()
        value.Unpack(graph)
        edit(graph)
        value.Pack(graph)
        return
    for field, content in value.ListFields():
        if field.message_type is not None:
            for part in content if field.label == field.LABEL_REPEATED else [content]:
                changed(part, edit)


def edited(edit):
    proto = tff.framework.serialize_computation(one_round)
    proto = type(proto).FromString(proto.SerializeToString())
    changed(proto, edit)
    return tff.framework.deserialize_computation(proto)


def reached(graph):
    """Yields the nodes of a graph and of the functions that it calls."""
    definitions, waiting = {it.signature.name: it for it in graph.library.function}, [graph.node]
    while waiting:
        for node in waiting.pop():
            yield node
            called = [value.func.name for value in node.attr.values() if value.HasField("func")]
            waiting += [definitions.pop(name).node_def for name in called if name in definitions]


def swap_inputs(node):
    if len(node.input) > 1 and node.input[0] != node.input[1]:
        node.input[0], node.input[1] = node.input[1], node.input[0]
        return True


def change_constant(node):
    if node.op == "Const" and node.attr["dtype"].type == tf.float32.as_datatype_enum:
        node.attr["value"].tensor.float_val[0] += 0.5
        return True


def change_operation(node):
    other = {"Mul": "AddV2", "AddV2": "Mul", "Sub": "Mul", "Less": "Greater", "Greater": "Less"}
    node.op, before = other.get(node.op, node.op), node.op
    return node.op != before


def swap_functions(node):
    for first, second in (("then_branch", "else_branch"), ("cond", "body")):
        if first in node.attr and second in node.attr:
            one, two = node.attr[first].func, node.attr[second].func
            one.name, two.name = two.name, one.name
            return True


EDITS = (swap_inputs, change_constant, change_operation, swap_functions)


@hypothesis.settings(deadline=None, max_examples=60, derandomize=True)
@hypothesis.given(edit=strategies.sampled_from(EDITS), place=strategies.integers(0, 200))
def test_each_small_edit_of_a_graph_is_noticed(edit, place):
    """Edits one node that the edit can change, of all those of the computation."""
    number = -1
    wanted = place % sum(edit(node) is True for graph in graphs() for node in reached(graph))

    def edit_one(graph):
        nonlocal number
        for node in reached(graph):
            before = node.SerializeToString()
            number += edit(node) is True
            if number != wanted:
                node.ParseFromString(before)

    assert fingerprint(edited(edit_one)) != fingerprint(one_round)


@hypothesis.settings(deadline=None, max_examples=10, derandomize=True)
@hypothesis.given(seed=strategies.integers(0, 1000))
def test_new_names_and_orders_of_functions_are_not_noticed(seed):
    def rename(graph):
        rng = np.random.default_rng(seed)
        new = {it.signature.name: f"f_{rng.integers(10**9)}" for it in graph.library.function}
        for node in reached(graph):
            for value in node.attr.values():
                if value.HasField("func"):
                    value.func.name = new[value.func.name]
        functions = list(graph.library.function)
        for function in functions:
            function.signature.name = new[function.signature.name]
            operations = {node.name: f"n_{rng.integers(10**9)}" for node in function.node_def}

            def renamed(tensor, operations=operations):
                waits, name, output = re.fullmatch(r"(\^?)([^:]*)(.*)", tensor).groups()
                return waits + operations.get(name, name) + output

            for node in function.node_def:
                node.name = renamed(node.name)
                node.input[:] = list(map(renamed, node.input))
            for returned in (function.ret, function.control_ret):
                returned.update({key: renamed(name) for key, name in returned.items()})
        del graph.library.function[:]
        graph.library.function.extend(functions[i] for i in rng.permutation(len(functions)))

    assert fingerprint(edited(rename)) == fingerprint(one_round)


def graphs():
    found = []
    edited(lambda graph: found.append(type(graph).FromString(graph.SerializeToString())))
    return found
