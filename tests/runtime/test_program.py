"""Tests federated programs whose clients have states."""

import asyncio
import collections
import gc

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.federation import assert_close, assert_equal, make_clients, random_examples, tiny_process
from tff_pfl.algorithms import build_ditto
from tff_pfl.clients import ClientStateStore, CohortDataSource
from tff_pfl.data import FederatedDataset
from tff_pfl.runtime import (
    ProgramContext,
    create_async_cpp_context,
    create_async_graph_context,
    materialized,
)


def process():
    return tiny_process(build_ditto)


def make_source():
    data = [random_examples(5 + i, seed=i) for i in range(4)]
    dataset = FederatedDataset.from_client_arrays([(d.x, d.y, d.x, d.y) for d in data], 3)
    store = ClientStateStore(process().initialize_clients, process().client_state_type)
    return CohortDataSource(dataset, store, process().client_type, seed=5)


async def program(source):
    iterator, state = source.iterator(), process().initialize()
    for _ in range(2):
        state, clients, metrics = process().next(state, iterator.select(2))
        iterator.update(await tff.program.materialize_value(clients))
    return await tff.program.materialize_value(state), await tff.program.materialize_value(metrics)


def run_in_program(coroutine_function, *args, create_context=create_async_graph_context):
    with tff.framework.get_context_stack().install(ProgramContext(create_context())):
        return asyncio.run(coroutine_function(*args))


@pytest.mark.thorough
def test_program_trains_as_a_plain_loop_does():
    """Compares up to rounding, since different runtimes execute them."""
    source, plain = make_source(), make_source()
    iterator, state = plain.iterator(), process().initialize()
    for _ in range(2):
        state, clients, metrics = process().next(state, iterator.select(2))
        iterator.update(clients)
    found = run_in_program(program, source, create_context=create_async_cpp_context)
    assert_close(found, (state, metrics))
    assert_close(source.store.get(range(4)), plain.store.get(range(4)))


def test_materialized_works_inside_and_outside_a_program():
    async def called():
        return materialized(process().initialize_client, 2)

    assert_equal(run_in_program(called), materialized(process().initialize_client, 2))


@pytest.mark.thorough
def test_results_are_references():
    async def invoke(clients):
        output = process().next(process().initialize(), clients)
        for reference in (output.state.round_num, output.clients):
            assert isinstance(reference, tff.program.MaterializableValueReference)
        return await tff.program.materialize_value(output.clients)

    states = run_in_program(invoke, make_clients(process(), [4, 6]))
    assert [int(state.participations) for state in states] == [1, 1]


@tff.tensorflow.computation(np.float32)
def nested(value):
    return value, (value + 1.0, value + 2.0)


@pytest.mark.thorough
def test_error_is_not_reported_for_each_reference():
    async def fail():
        reports = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: reports.append(context["message"]))
        with pytest.raises(TypeError, match="found dtype str"):
            await tff.program.materialize_value(nested("1")[0])
        gc.collect()
        return reports

    assert run_in_program(fail) == []


def test_references_can_be_read_again():
    async def call():
        first, (second, third) = nested(1.0)
        values = await tff.program.materialize_value([third, first, third])
        return values, await tff.program.materialize_value((first, (second, third)))

    assert run_in_program(call) == ([3.0, 1.0, 3.0], (1.0, (2.0, 3.0)))


@tff.tensorflow.computation(collections.OrderedDict(a=np.float32, b=np.float32))
def difference(values):
    return values["a"] - values["b"]


async def called(computation, argument):
    return await tff.program.materialize_value(computation(argument))


@pytest.mark.parametrize("values", [{"b": 1.0, "a": 3.0}, [3.0, 1.0]])
def test_elements_of_an_argument_are_matched_by_name_or_position(values):
    assert run_in_program(called, difference, values) == difference(values) == 2.0


def test_argument_with_other_elements_is_refused():
    with pytest.raises(TypeError, match="Expected a structure of 2 elements, .* found 3 elements"):
        run_in_program(called, difference, {"a": 3.0, "b": 1.0, "c": 5.0})


@pytest.mark.parametrize("value", [tf.data.Dataset.range(3), (1.0, 2.0, 3.0)])
def test_client_with_other_elements_is_named(value):
    at_clients = tff.FederatedType(difference.type_signature.parameter, tff.CLIENTS)
    mapped = tff.federated_computation(lambda x: tff.federated_map(difference, x), at_clients)
    kind = type(value).__name__
    message = f"^The value of client 1 must have the elements a, b, found {kind}.$"
    with pytest.raises(TypeError, match=message):
        run_in_program(called, mapped, [{"a": 1.0, "b": 2.0}, value])


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (lambda a, b: collections.OrderedDict(a=a, b=b), collections.OrderedDict(a=2.0, b=1.0)),
        (lambda a, b: (a, collections.OrderedDict(b=b)), (2.0, collections.OrderedDict(b=1.0))),
    ],
)
def test_results_without_a_container_get_tffs_container(result, expected):
    made = tff.tensorflow.computation(result, np.float32, np.float32)
    read = tff.framework.deserialize_computation(tff.framework.serialize_computation(made))
    assert read.type_signature.result.python_container is None

    async def call():
        return await tff.program.materialize_value(read(2.0, 1.0))

    assert run_in_program(call) == expected
