"""Tests intrinsics for which a plausible lowering would be wrong."""

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.runtime.conformance.cases import at_clients, at_server
from tff_pfl import runtime
from tff_pfl.runtime.graph import results
from tff_pfl.runtime.graph.clients.client_values import Clients, Ragged, Shard, Stacked
from tff_pfl.runtime.graph.clients.groups import Rows

VECTOR = tff.types.TensorType(np.int32, [None])


@pytest.fixture(autouse=True)
def graph_context():
    context = runtime.create_graph_context()
    with tff.framework.get_context_stack().install(context):
        yield


def test_each_leaf_of_a_secure_sum_has_its_own_bound():
    @tff.federated_computation(at_clients(np.int32))
    def twice(values):
        pairs = tff.federated_map(tff.federated_computation(lambda x: (x, x), np.int32), values)
        return tff.federated_secure_sum(pairs, (np.int32(5), np.int32(100)))

    assert twice([4, 3]) == (7, 7)
    with pytest.raises(tf.errors.InvalidArgumentError, match="larger than maximum"):
        twice([7, 3])


def test_secure_sums_accept_vectors_of_unknown_length():
    @tff.federated_computation(at_clients(VECTOR))
    def total(values):
        add = tff.tensorflow.computation(lambda x: x + 1, VECTOR)
        return tff.federated_secure_sum(tff.federated_map(add, values), np.int32(100))

    np.testing.assert_array_equal(total([np.int32([1, 2]), np.int32([3, 4])]), [6, 8])
    np.testing.assert_array_equal(total([np.zeros([0], np.int32)] * 2), [])
    with pytest.raises(tf.errors.InvalidArgumentError, match="differ by client"):
        total([np.int32([1, 2]), np.int32([3])])


def test_secure_sums_have_at_most_62_bits():
    @tff.federated_computation(at_clients(np.int64))
    def total(values):
        return [tff.federated_secure_sum_bitwidth(values, bits) for bits in (62, 63)][-1]

    with pytest.raises(tf.errors.InvalidArgumentError, match="at most 62 bits"):
        total([np.int64(1)])


@pytest.mark.parametrize(
    ("dtype", "num_clients", "expected"),
    [(np.float16, 2049, 6148.0), (ml_dtypes.bfloat16, 257, 772.0)],
)
def test_half_precision_sums_of_a_shared_value_are_rounded_once(dtype, num_clients, expected):
    """Uses more clients than numbers of this type can count."""

    @tff.federated_computation(at_clients(np.int32), at_server(dtype))
    def total(clients, value):
        return tff.federated_sum(tff.federated_broadcast(value))

    assert total([1] * num_clients, dtype(3.0)) == dtype(expected)


def test_lambda_may_capture_a_value():
    @tff.tensorflow.computation
    def constant():
        return np.float32(5.0)

    @tff.federated_computation(at_clients(np.float32))
    def with_constant(values):
        captured = constant()
        pair = tff.federated_computation(lambda x: (x, captured), np.float32)
        mapped = tff.federated_map(pair, values)
        return mapped, tff.federated_sum(mapped)

    assert with_constant([1.0, 2.0]) == ([(1.0, 5.0), (2.0, 5.0)], (3.0, 10.0))


def test_clients_may_share_keys():
    @tff.tensorflow.computation
    def keys():
        return tf.constant([0, 2])

    @tff.tensorflow.computation(tff.types.TensorType(np.float32, [3]), np.int32)
    def take(table, key):
        return table[key]

    @tff.federated_computation(
        at_server(tff.types.TensorType(np.float32, [3])), at_server(np.int32), at_clients(np.int32)
    )
    def select(table, max_key, unused):
        del unused
        return tff.federated_select(tff.federated_eval(keys, tff.CLIENTS), max_key, table, take)

    selected = select(np.float32([1, 2, 3]), 3, [0, 0])
    assert [list(map(float, dataset)) for dataset in selected] == [[1.0, 3.0]] * 2


def test_random_work_on_a_broadcast_value_differs_by_client():
    @tff.tensorflow.computation(np.float32)
    def noisy(x):
        return x + tf.random.uniform([])

    @tff.federated_computation(at_server(np.float32), at_clients(np.int32))
    def draw(x, unused):
        del unused
        call = tff.federated_computation(lambda y: noisy(y), np.float32)
        return tff.federated_map(call, tff.federated_broadcast(x))

    assert len(set(draw(0.0, [0, 0, 0]))) == 3


def test_results_of_a_loop_and_of_a_stack_are_combined():
    """Covers results with an unknown dimension; a CPU and a GPU differ so for convolutions."""
    member = tff.types.TensorType(np.float32, [None, 2])
    rows = tf.reshape(tf.range(12.0), [3, 2, 2])
    looped = Ragged.make(tf.reshape(rows[:1], [-1]), tf.constant([[2, 2]], tf.int64), member)
    shards = [Shard("CPU:0", 1, (looped,)), Shard("GPU:0", 2, (Stacked(rows[1:]),))]
    for ordered in (shards, shards[::-1]):
        placed = at_clients(member)
        layout, tensors = results.emit(Clients(member, tuple(ordered)), placed)
        cohort = [Rows(shard.device, np.arange(shard.size)) for shard in ordered]
        clients = results.reader(placed, layout, keep_tensors=False)(iter(tensors), cohort)
        expected = rows if ordered is shards else tf.roll(rows, -1, axis=0)
        np.testing.assert_array_equal(clients, expected)
