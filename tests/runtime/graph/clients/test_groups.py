"""Tests groups: clients whose tensors have equal shapes, which are computed at once."""

import logging
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.federation import assert_close
from tests.marks import slow, together
from tests.runtime.conformance.cases import at_clients, at_server, mapped, tensor
from tests.runtime.graph.clients.vectorizing import in_loop, run
from tff_pfl.runtime.graph import compilation
from tff_pfl.runtime.graph.clients import mapping
from tff_pfl.runtime.graph.clients.groups import Rows, are_on_a_ladder, grouped

VECTOR = tensor(np.float32, None)
NUMBERED = tff.types.to_type((VECTOR, np.int32))


def clients(*lengths):
    return [(np.arange(n, dtype=np.float32) + i, np.int32(i)) for i, n in enumerate(lengths)]


def way_of(caplog, computation, *args, **options):
    """Returns how the log says that clients were computed, and the result."""
    with caplog.at_level(logging.INFO, logger="absl"):
        result = run(computation, *args, **options)
    (message,) = [m for m in caplog.messages if m.startswith("Client work")]
    return message.rpartition("CPU:0: ")[2], result


@pytest.fixture(scope="module")
def round_of_several_steps():
    """Maps clients twice and aggregates them, in a way that shows their order."""

    @tff.tensorflow.computation(NUMBERED)
    def double(x, number):
        return 2 * x, number, tf.reduce_sum(x)

    @tff.tensorflow.computation(np.int32, double.type_signature.result)
    def write_number(number, client):
        return 10 * number + client[1]

    join = tff.tensorflow.computation(lambda x, y: 10_000 * x + y, (np.int32, np.int32))
    report = tff.tensorflow.computation(lambda x: x, np.int32)

    @tff.federated_computation(at_clients(NUMBERED))
    def work(cohort):
        once = tff.federated_map(double, cohort)
        twice = tff.federated_map(double, tff.federated_zip((once[0], once[1])))
        numbers = tff.federated_aggregate(once, np.int32(0), write_number, join, report)
        return once, twice, numbers, tff.federated_mean(once[2])

    return work


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_concurrent_clients": 2, "devices": ["CPU:0"] * 2},
        slow({"jit_compile": True}),
        slow({"jit_compile": True, "max_concurrent_clients": 3}),
    ],
)
def test_results_equal_those_of_a_loop_in_order(round_of_several_steps, options):
    cohort = clients(3, 1, 3, 0, 1, 3, 1, 3)
    expected = run(round_of_several_steps, cohort, vectorize="never")
    assert expected[2] == 1234567
    assert_close(run(round_of_several_steps, cohort, vectorize="always", **options), expected)


def test_groups_are_sorted_and_cut():
    shard = Rows("CPU:0", np.arange(2, 9, dtype=np.int32))
    found = grouped(shard, forms=[8, 1, 5, 3, 5, 5, 3, 5, 5], limit=2)
    assert found.clients.tolist() == [3, 6, 2, 4, 5, 7, 8]
    assert found.ends.tolist() == [2, 4, 6, 7]
    assert found.in_order("abcdefg") == list("cadebfg")


SUMS = mapped(lambda x, i: in_loop(tf.reduce_sum)(1, x), NUMBERED)
LOOP = "a loop over clients (shapes differ by client)."


@pytest.mark.parametrize(
    ("lengths", "method"),
    [
        ([1, 2] * 8, "vectorized over clients of equal shapes."),
        ([1, 2] * 7, LOOP),
        ([2] * 7, "vectorized over clients."),
    ],
)
def test_few_clients_of_each_shape_are_looped(caplog, lengths, method):
    found, _ = way_of(caplog, SUMS, clients(*lengths), devices="CPU:0")
    assert found == method


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("lengths", "method"),
    [
        ([4, 2, 6], "vectorized over clients of equal shapes, compiled by XLA."),
        ([1, 2, 5], LOOP),
    ],
)
def test_only_shapes_of_other_cohorts_are_compiled(caplog, lengths, method):
    cohort = clients(*lengths)
    with mock.patch.object(mapping.ClientMap, "compiles_loops", return_value=False):  # as on GPUs
        found, sums = way_of(caplog, SUMS, cohort, devices="CPU:0", jit_compile=True)
    assert found == method
    assert sums == [x.sum() for x, _ in cohort]


@pytest.mark.parametrize(
    ("are_groups", "limit", "sizes"),
    [
        (True, None, [1, 2, 3, 4, 6, 6, 8, 8, 12, 12, 12, 12, 16]),
        (True, 5, [1, 2, 3, 4, 5]),
        (False, None, [*range(1, 17), 18, 18, 20, 20]),
    ],
)
def test_compiled_work_is_called_with_few_sizes(are_groups, limit, sizes):
    """Checks the size of each call, and that clients that fill it up leave no results."""

    def work(size, stack):
        return [tf.fill([size], size), 2 * stack, tf.constant(0)]

    specs = tf.TensorSpec([], tf.int32), tf.TensorSpec([None], tf.int32)
    padded = compilation.with_few_sizes(work, {}, are_groups, limit)
    function = padded.get_concrete_function(*specs)
    for count, size in enumerate(sizes, start=1):
        called, doubled = function(tf.constant(count), tf.range(count))
        assert called.numpy().tolist() == [size] * count
        assert doubled.numpy().tolist() == [2 * i for i in range(count)]


@together(
    ("rows", "expected"),
    [
        ([20, 40, 60, 120], True),
        ([0, 7], True),
        ([1, 2, 3, 64, 96], True),
        ([20, 100], False),
        ([20, 40, 41], False),
    ],
)
def test_clients_on_a_ladder(rows, expected):
    assert are_on_a_ladder([((n, 4), (n,)) for n in rows]) == expected


def test_clients_with_large_tensors_are_looped_on_cpus(caplog):
    large = tensor(np.float32, 1 << 15)

    @tff.tensorflow.computation(NUMBERED, large)
    def add(client, weights):
        return client[0][:1] + weights[0]

    @tff.federated_computation(at_clients(NUMBERED), at_server(large))
    def work(cohort, weights):
        return tff.federated_map(add, (cohort, tff.federated_broadcast(weights)))

    cohort, weights = clients(*[1, 2] * 8), np.zeros([1 << 15], np.float32)
    found, _ = way_of(caplog, work, cohort, weights, devices="CPU:0")
    assert found == LOOP


def test_work_that_cannot_be_vectorized_is_looped():
    cohort = clients(*[1, 2] * 8)
    found = run(mapped(lambda x, i: (x, tf.strings.as_string(i)), NUMBERED), cohort)
    assert [int(text) for _, text in found] == list(range(16))
    assert [len(x) for x, _ in found] == [1, 2] * 8
