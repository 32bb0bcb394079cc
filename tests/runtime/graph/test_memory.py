"""Tests the memory of long runs: graphs are reused, and values are not copied."""

import copy
import gc
import itertools
import pickle
import weakref

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow.python.eager import context as eager_context

from tests.federation import assert_equal
from tests.marks import together
from tests.runtime.graph.subprocesses import run_script
from tff_pfl.runtime import create_graph_context
from tff_pfl.runtime.graph import executor, memory, results
from tff_pfl.runtime.graph.clients import vectorization

SLACK = 10.0  # megabytes
# Disables caches of other libraries: a kernel per shape in oneDNN, an arena per thread in malloc.
_ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",
    "MALLOC_ARENA_MAX": "1",
    "TF_ENABLE_ONEDNN_OPTS": "0",
}


@pytest.mark.slow
def test_memory_stays_constant_over_rounds():
    lines = run_script("memory", 300, env=_ENVIRONMENT, timeout=280).splitlines()
    samples = np.array([list(map(float, line.split())) for line in lines])
    settled = samples[samples[:, 0] >= 50]
    before, after = (np.median(part, axis=0) for part in (settled[:8], settled[-8:]))
    assert (samples[-1, 0], after[2]) == (300, before[2])  # the number of functions is the same
    assert after[1] - before[1] < SLACK


def run_another(factor):
    """Builds and runs a computation with a large constant."""
    table = np.full([100, 1000], factor, np.float32)
    scaled = tff.tensorflow.computation(lambda x: tf.reduce_sum(table * x), VECTOR)

    @tff.federated_computation(tff.types.FederatedType(VECTOR, tff.CLIENTS))
    def of_clients(x):
        return tff.federated_sum(tff.federated_map(scaled, x))

    assert of_clients([np.ones(1000, np.float32)] * 3) == 300_000 * factor


@pytest.mark.thorough
def test_old_computations_leave_no_functions(monkeypatch):
    monkeypatch.setattr(executor, "_MAX_PROGRAMS", 2)
    numbers = []
    gc.freeze()  # spares the collection TensorFlow's many objects, which take seconds
    for index in range(6):
        run_another(index)
        if index in (3, 5):
            gc.collect()  # graphs are reference cycles
            numbers.append(len(eager_context.context().list_function_names()))
    assert numbers[1] == numbers[0]


def test_graphs_of_large_computations_are_released(monkeypatch):
    monkeypatch.setattr(executor, "_MANY_OPERATIONS", 0)

    @tff.tensorflow.computation(np.int32)
    def power(n):
        return tf.while_loop(lambda i, _: i < n, lambda i, x: (i + 1, 3 * x), (0, 1))[1]

    @tff.federated_computation(tff.types.FederatedType(np.int32, tff.CLIENTS))
    def of_clients(n):
        return tff.federated_sum(tff.federated_map(power, n))

    def graphs():
        found = [each for each in gc.get_objects() if isinstance(each, tf.__internal__.FuncGraph)]
        return {id(graph) for graph in found if graph.get_operations()}

    gc.collect()
    before = graphs()
    assert of_clients([1, 2, 3]) == 39
    assert not graphs() - before
    assert of_clients([2, 2]) == 18


VECTOR = tff.types.TensorType(np.float32, (1000,))
UNKNOWN = tff.types.TensorType(np.float32, (None,))


@tff.federated_computation(tff.types.FederatedType(VECTOR, tff.SERVER))
def identity(x):
    return x


@tff.tensorflow.computation(VECTOR, np.float32)
def add(x, y):
    return x + y


@tff.federated_computation(
    tff.types.FederatedType(VECTOR, tff.SERVER), tff.types.FederatedType(np.float32, tff.CLIENTS)
)
def next_state(state, values):
    """Returns the state after a round, and the state before it."""
    return tff.federated_map(add, (state, tff.federated_sum(values))), state


@tff.tensorflow.computation(UNKNOWN)
def total(x):
    return tf.reduce_sum(x)


@tff.federated_computation(tff.types.FederatedType(UNKNOWN, tff.CLIENTS))
def total_of_all(x):
    return tff.federated_sum(tff.federated_map(total, x))


def installed(**options):
    """Installs a context on the CPU, whose memory can be inspected."""
    context = create_graph_context(devices=["CPU:0"], **options)
    return tff.framework.get_context_stack().install(context)


@pytest.fixture(autouse=True)
def on_the_cpu():
    with installed():
        yield


@pytest.fixture
def traces(monkeypatch):
    """A list with an element for each traced graph."""
    made, trace = [], executor.Program._trace

    def counting(*args):
        made.append(args)
        return trace(*args)

    monkeypatch.setattr(executor.Program, "_trace", counting)
    return made


def address(array_or_tensor):
    return np.asarray(array_or_tensor).__array_interface__["data"][0]


@pytest.mark.parametrize("vectorize", ["auto", "never"])
def test_cohorts_and_clients_of_all_sizes_share_a_graph(traces, vectorize):
    with installed(vectorize=vectorize):
        for size, rows in [(3, 4), (1, 4), (7, 4), (2, 9), (40, 0)]:
            assert total_of_all([np.ones(rows, np.float32)] * size) == size * rows
        assert len(traces) == 1
        for sizes in [(1, 2), (0, 3, 5)]:  # shapes differ by client
            assert total_of_all([np.ones(rows, np.float32) for rows in sizes]) == sum(sizes)
        assert len(traces) == 2
        assert total_of_all([]) == 0
        assert len(traces) == 3


def test_leaves_whose_shapes_differ_share_a_graph(traces):
    """Tries all subsets of leaves in which clients differ."""
    parts = tff.types.to_type([UNKNOWN] * 3)

    @tff.tensorflow.computation(parts)
    def totals(x):
        return [tf.reduce_sum(part) for part in x]

    @tff.federated_computation(
        tff.types.FederatedType(parts, tff.CLIENTS), tff.types.FederatedType(UNKNOWN, tff.CLIENTS)
    )
    def compute(x, y):
        return tff.federated_map(totals, x), y

    for lengths in itertools.product((1, 2), repeat=4):
        first, second = (np.ones(n, np.float32) for n in (1, 2))
        *x, y = (np.ones(n, np.float32) for n in lengths)
        results, given = compute([x, [first] * 3], [y, second])
        assert list(map(list, results)) == [list(lengths[:3]), [1.0, 1.0, 1.0]]
        assert list(map(len, given)) == [lengths[3], 2]
    assert len(traces) == 2


def test_normalizations_leave_no_graphs_behind():
    """Checks that TensorFlow's cache of normalizations, which keeps graphs alive, is cleared."""

    def normalized(x):
        return tf.raw_ops.FusedBatchNormV3(
            x=x, scale=[1.0], offset=[0.0], mean=[0.0], variance=[1.0]
        ).y

    images = np.random.default_rng(0).normal(size=(3, 2, 2, 2, 1)).astype(np.float32)
    specs = [tf.TensorSpec(images.shape[1:])]
    function = tf.function(lambda x: [normalized(x)]).get_concrete_function(*specs)
    gc.freeze()  # spares the collection TensorFlow's many objects, which take seconds
    graph = tf.Graph()
    with graph.as_default():
        vectorization.vectorize(function, tf.constant(3), [tf.constant(images)])
    graph = weakref.ref(graph)
    gc.collect()
    assert graph() is None


def test_arrays_tensors_lists_and_variables_share_a_graph(traces):
    ones = np.ones(1000, np.float32)
    state, _ = next_state(ones, [np.float32(1)])
    for value in (state, state.tensor, state + 1, list(ones), tf.Variable(ones)):
        next_state(value, [np.float32(1), np.float32(2)])
    assert len(traces) == 1


def test_state_is_not_copied():
    state = identity(np.arange(1000, dtype=np.float32))
    for _ in range(3):
        before = state
        state, given = next_state(before, [np.float32(1)])
        assert address(given) == address(before) == address(before.tensor)
        np.testing.assert_array_equal(state, before + 1)


def test_kept_tensors_are_not_copied():
    with installed(keep_tensors=True):
        state = identity(np.zeros(1000, np.float32))
        after, given = next_state(state, [np.float32(1)])
        count, text, clients = scalars_and_clients([np.float32(1.5)])
    assert isinstance(after, tf.Tensor)
    assert address(given) == address(state)
    np.testing.assert_array_equal(after, np.ones(1000))
    assert (type(count), text, type(clients[0])) == (np.int32, b"x", np.float32)


@tff.federated_computation(tff.types.FederatedType(np.float32, tff.CLIENTS))
def scalars_and_clients(x):
    return tff.federated_value(3, tff.SERVER), tff.federated_value("x", tff.SERVER), x


def test_numbers_of_a_type_come_back_together():
    tensors = list(map(tf.constant, [1.5, [1.0, 2.0], 3, "x", True, 2.5, 4]))
    packed, unpacked = results.packed(tensors)
    assert [tensor.shape.rank for tensor in packed] == [1, 0, 1, 1, 1]  # the others, and vectors
    assert_equal(list(unpacked(iter(packed))), tensors)


def pickled(array):
    return pickle.loads(pickle.dumps(array))


@together("derive", [copy.deepcopy, pickled, lambda array: array[::-1]])
def test_derived_arrays_do_not_keep_the_tensor(derive):
    derived = derive(identity(np.random.default_rng(0).normal(size=1000).astype(np.float32)))
    assert getattr(derived, "tensor", None) is None
    np.testing.assert_array_equal(identity(derived), np.array(derived))


@together("copied", [copy.deepcopy, pickled])
def test_copies_can_be_changed(copied):
    array = copied(identity(np.ones(1000, np.float32)))
    array += 1
    np.testing.assert_array_equal(identity(array), np.full(1000, 2))


@together("view", [lambda x: x, lambda x: x[3:], np.asarray])
def test_results_are_read_only(view):
    result = identity(np.ones(1000, np.float32))
    with pytest.raises(ValueError, match="read-only"):
        view(result)[5] = 2
    with pytest.raises(ValueError, match="WRITEABLE"):
        view(result).flags.writeable = True


@pytest.mark.parametrize("dtype", [np.int32, np.float16, bool, object])
@pytest.mark.parametrize("shape", [(), (2, 0), (5, 2)])
def test_tensors_of_copies(dtype, shape):
    memory_of_all = np.zeros(100, dtype)[1:]  # not aligned, as tensors must be
    array = memory_of_all[: np.prod(shape, dtype=int)].reshape(shape)
    value = b"text" if dtype is object else 1
    array[...] = value
    tensor = memory.tensor_on("/device:CPU:0", array)
    stack = memory.stack_on("/device:CPU:0", [array, array])
    array[...] = b"" if dtype is object else 0
    assert tensor.dtype == stack.dtype == (tf.string if dtype is object else dtype)
    np.testing.assert_array_equal(tf.identity(tensor), np.full(shape, value))
    np.testing.assert_array_equal(stack, np.full((2, *shape), value))
