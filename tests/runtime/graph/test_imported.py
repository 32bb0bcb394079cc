"""Tests imports of TensorFlow from TFF computations: resources, initialization, names, pruning."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.runtime.graph import imported, values


def import_function(computation) -> imported.ImportedFunction:
    parameter = computation.type_signature.parameter
    leaves = [] if parameter is None else values.leaf_types(parameter)
    proto = tff.framework.ConcreteComputation.get_proto(computation)
    return imported.ImportedFunction(proto.tensorflow, list(map(values.tensor_spec, leaves)))


def test_each_run_has_its_own_variables():
    @tff.tensorflow.computation(np.float32)
    def accumulate(x):
        variable = tf.Variable(1.0)
        with tf.control_dependencies([variable.assign_add(x)]):
            return variable.read_value()

    function = import_function(accumulate)
    assert function.is_stateful
    assert [function(tf.constant(x))[0].numpy() for x in (2.0, 3.0)] == [3.0, 4.0]
    # All runs of one graph are simultaneous.
    many = tf.function(lambda xs: tf.map_fn(lambda x: function(x)[0], xs, parallel_iterations=50))
    np.testing.assert_array_equal(many(tf.range(50.0)), np.arange(50.0) + 1)


def test_reductions_of_data_sets_may_read_variables():
    """Covers a step that loses the shapes of its results."""

    @tff.tensorflow.computation(tff.types.SequenceType(tff.types.TensorType(np.float32, [None, 2])))
    def weighted_sum(rows):
        weights = tf.Variable([1.0, 2.0])
        return rows.reduce(0.0, lambda total, x: total + tf.reduce_sum(x * weights))

    batches = [np.ones([2, 2], np.float32), np.ones([1, 2], np.float32)]
    assert weighted_sum(batches) == 3 * (1 + 2)


def test_initialization_comes_before_everything_else():
    """Repeats the call, since an uninitialized variable or table would fail only sometimes.

    The table of each call has other values.
    """

    @tff.tensorflow.computation(np.float32)
    def initialized(x):
        variables = [tf.Variable(tf.fill([1000], x + i)) for i in range(5)]
        rows = tf.lookup.KeyValueTensorInitializer(["a"], tf.stack([x]))
        found = tf.lookup.StaticHashTable(rows, 0.0).lookup(tf.constant("a"))
        return found, [tf.reduce_mean(variable) for variable in variables]

    function = import_function(initialized)
    for x in range(50):
        results = function(tf.constant(float(x)))
        assert [result.numpy() for result in results] == [x, x, x + 1, x + 2, x + 3, x + 4]


KEYS, VALUES = np.arange(5000), np.arange(5000.0)


def variable(x):
    return tf.Variable(VALUES).assign_add(tf.fill([5000], x))[7:8]


def table(x):
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float64, 0.0)
    with tf.control_dependencies([table.insert(KEYS, VALUES + x)]):
        return table.lookup(tf.constant([7], tf.int64))


def data_set(x):
    rows = tf.data.Dataset.from_tensor_slices(tf.tile(VALUES + x, [5])).batch(1000).take(1)
    return rows.reduce(tf.constant(0.0, tf.float64), lambda s, row: s + row[7])


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("function", "runs"),
    [
        (variable, 1000),
        (table, 1000),
        (data_set, 60),  # slow, and takes 200 kB a run
    ],
)
def test_many_runs_leave_no_resources(function, runs):
    """Measures the memory; each run takes 40 kB or more."""

    def resident_mib():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096 / 2**20

    run = tf.function(import_function(tff.tensorflow.computation(function, np.float64)))
    x = tf.constant(5.0, tf.float64)
    for _ in range(10):
        assert run(x)[0].numpy() == 12.0
    before = resident_mib()
    for _ in range(runs):
        run(x)
    assert resident_mib() - before < 10


def test_functions_of_the_same_name_do_not_clash():
    def build(factor):
        @tff.tensorflow.computation(np.float32)
        def scaled(x):
            @tf.function
            def inner(x):
                return x * factor

            return inner(x)

        return import_function(scaled)

    twice, thrice = build(2.0), build(3.0)

    @tf.function
    def both(x):
        return twice(x)[0], thrice(x)[0]

    assert [x.numpy() for x in both(tf.constant(5.0))] == [10.0, 15.0]


@pytest.mark.parametrize(
    ("rows", "expected"), [(np.arange(5), [30, 32]), (np.zeros([0], np.int64), [0, 1])]
)
def test_reductions_of_data_sets_are_loops(rows, expected):
    """Checks that `ReduceDataset`, which prepares its function in each run, is replaced."""

    @tff.tensorflow.computation(tff.types.SequenceType(np.int64), np.int64)
    def reduced(rows, factor):
        @tf.function
        def train(rows):
            return rows.reduce(
                (np.int64(0), np.int64(1)),
                lambda state, row: (state[0] + row * factor, state[1] * 2),
            )

        return train(rows)

    function = import_function(reduced)
    variant = tf.data.experimental.to_variant(tf.data.Dataset.from_tensor_slices(rows))
    assert [x.numpy() for x in function(variant, tf.constant(3, tf.int64))] == expected
    graph = function._function.graph.as_graph_def()
    nodes = [*graph.node, *(n for f in graph.library.function for n in f.node_def)]
    assert "ReduceDataset" not in {node.op for node in nodes}


def test_state_of_a_reduction_may_grow():
    @tff.tensorflow.computation(tff.types.SequenceType(np.int64))
    def collected(rows):
        return rows.reduce(
            tf.zeros([0], tf.int64), lambda state, row: tf.concat([state, [row]], axis=0)
        )

    variant = tf.data.experimental.to_variant(tf.data.Dataset.range(4))
    np.testing.assert_array_equal(import_function(collected)(variant)[0], np.arange(4))


@pytest.mark.parametrize("is_argument", [False, True])
def test_files_of_the_computation_itself_are_read(is_argument, tmp_path):
    """Covers reads like those of frozen weights."""
    path = tmp_path / "numbers"
    path.write_bytes(np.arange(6, dtype=np.float32).tobytes())

    @tff.tensorflow.computation(tf.string)
    def read(given):
        content = tf.io.read_file(given if is_argument else str(path))
        return tf.reshape(tf.io.decode_raw(content, tf.float32), [2, 3])

    (found,) = import_function(read)(tf.constant(str(path)))
    np.testing.assert_array_equal(found, np.arange(6).reshape(2, 3))
