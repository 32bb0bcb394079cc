"""Tests that functions of client work are inlined, and which steps become functions."""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests.marks import together
from tff_pfl.runtime.graph import imported, values
from tff_pfl.tracing.alone import Alone, alone_or, branch_if_alone

SCALAR = tf.TensorSpec([])
IMAGES = tf.constant(np.random.default_rng(0).normal(size=(2, 4, 4, 3)), tf.float32)


def thrice(step, *specs, alone=Alone.NOT):
    """Imports a loop of three steps; returns it and the functions of its graph."""

    @tf.function(input_signature=specs, autograph=False)
    def loop(*args):
        return tf.while_loop(lambda i, *_: i < 3, step, (tf.constant(0), *args))[1]

    types = [tff.types.tensorflow_to_type((spec.dtype, spec.shape)) for spec in specs]
    if len(specs) == 1:
        computation = tff.tensorflow.computation(lambda x: loop(x), *types)
    else:
        computation = tff.tensorflow.computation(lambda x, y: loop(x, y), *types)
    proto = tff.framework.ConcreteComputation.get_proto(computation)
    specs = list(map(values.tensor_spec, values.leaf_types(computation.type_signature.parameter)))
    function = imported.ImportedFunction(proto.tensorflow, specs, alone)
    return function, function._function.graph.as_graph_def().library.function


def operations_of(functions, kind):
    return [node for function in functions for node in function.node_def if node.op == kind]


def test_calls_in_calls_become_operations_of_the_loop():
    @tf.function(input_signature=[SCALAR, SCALAR], autograph=False)
    def inner(x, y):
        return y, x - y  # the first output is an argument

    @tf.function(input_signature=[SCALAR, SCALAR], autograph=False)
    def outer(x, y):
        first, second = inner(x, y)
        return inner(2.0 * second, first)

    function, functions = thrice(lambda i, x, y: (i + 1, *outer(x, y)), SCALAR, SCALAR)
    assert not operations_of(functions, "PartitionedCall")
    x, y = 5.0, 2.0
    for _ in range(3):
        x, y = y, 2 * (x - y) - y
    assert function(tf.constant(5.0), tf.constant(2.0))[0].numpy() == x


VECTOR = tf.TensorSpec([3])


@together(
    ("kept", "between", "num_casts"),
    [(tf.bfloat16, tf.float32, 1), (tf.float32, tf.bfloat16, 2)],
)
def test_casts_that_change_nothing_are_skipped(kept, between, num_casts):
    numbers = [1.0, 2.0**-9, 1.0 + 2.0**-9]  # the last needs float32

    @tf.function(input_signature=[tf.TensorSpec([3], between)], autograph=False)
    def layer(x):
        return tf.cast(tf.stop_gradient(x), kept)

    def step(i, total):
        weights = tf.identity(tf.cast(tf.constant(numbers, kept), between))
        return i + 1, total + tf.cast(layer(weights), tf.float32)

    function, functions = thrice(step, VECTOR)
    rounded = tf.cast(tf.cast(numbers, tf.bfloat16), tf.float32)
    np.testing.assert_array_equal(function(tf.zeros([3]))[0], 3 * rounded)
    (body,) = (each for each in functions if any(n.op == "AddV2" for n in each.node_def))
    nodes = {node.name: node for node in body.node_def}
    waiting, casts = list(body.ret.values()), set()
    while waiting:
        node = nodes.get(waiting.pop().split(":")[0])
        if node is not None:
            waiting += node.input
            casts |= {node.name} & {cast.name for cast in operations_of([body], "Cast")}
    assert len(casts) == num_casts


def test_compiled_functions_stay_functions():
    @tf.function(input_signature=[SCALAR], autograph=False, jit_compile=True)
    def compiled(x):
        return 2.0 * x

    function, functions = thrice(lambda i, x: (i + 1, compiled(x)), SCALAR)
    calls = operations_of(functions, "PartitionedCall")
    calls += operations_of(functions, "StatefulPartitionedCall")
    assert len(calls) == 1
    assert function(tf.constant(1.0))[0].numpy() == 8.0


def pooled_gradient(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(tf.nn.max_pool2d(x, 2, 2, "VALID") ** 2)
    return x - 0.1 * tape.gradient(loss, x)


@together("alone", [Alone.FULLY, Alone.NOT])
def test_steps_with_max_pooling_are_functions_where_clients_are_computed_alone(alone):
    spec = tf.TensorSpec(IMAGES.shape)
    function, functions = thrice(lambda i, x: (i + 1, pooled_gradient(x)), spec, alone=alone)
    assert len(operations_of(functions, "MaxPoolGrad")) == 1
    assert len(operations_of(functions, "PartitionedCall")) == (alone is Alone.FULLY)
    expected = pooled_gradient(pooled_gradient(pooled_gradient(IMAGES)))
    np.testing.assert_allclose(function(IMAGES)[0], expected, rtol=1e-6)


@together("alone", [Alone.FULLY, Alone.NOT])
def test_branches_with_max_pooling_are_functions_where_clients_are_computed_alone(alone):
    def step(i, x):
        first, rest = x[:1], lambda: pooled_gradient(x)
        some = lambda: tf.concat([pooled_gradient(first), x[1:]], axis=0)  # noqa: E731
        return i + 1, branch_if_alone(i < 2, some, rest)

    function, functions = thrice(step, tf.TensorSpec(IMAGES.shape), alone=alone)
    assert len(operations_of(functions, "MaxPoolGrad")) == 1 + bool(alone)
    assert len(operations_of(functions, "PartitionedCall")) == 2 * bool(alone)
    rows = [IMAGES[:1], IMAGES[1:]]
    for row, steps in enumerate([3, 1 if alone else 3]):
        for _ in range(steps):
            rows[row] = pooled_gradient(rows[row])
    np.testing.assert_allclose(function(IMAGES)[0], tf.concat(rows, axis=0), rtol=1e-6)


@together(("alone", "expected"), [(Alone.FULLY, 3.0), (Alone.IN_LOOPS, 3.0), (Alone.NOT, 4.0)])
def test_marked_choices_are_made_when_work_is_imported(alone, expected):
    step = lambda i, x, y: (i + 1, alone_or(x, y), y)  # noqa: E731
    function, functions = thrice(step, SCALAR, SCALAR, alone=alone)
    assert not operations_of(functions, "SelectV2")
    assert function(tf.constant(3.0), tf.constant(4.0))[0].numpy() == expected


@together(("alone", "expected"), [(Alone.FULLY, 6.0), (Alone.IN_LOOPS, 12.0), (Alone.NOT, 12.0)])
def test_marked_branches_are_taken_when_work_is_imported(alone, expected):
    def step(i, x, y):
        return i + 1, branch_if_alone(i < 2, lambda: x + y / 4, lambda: x + y), y

    function, functions = thrice(step, SCALAR, SCALAR, alone=alone)
    assert bool(operations_of(functions, "StatelessIf")) == (alone is Alone.FULLY)
    assert function(tf.constant(0.0), tf.constant(4.0))[0].numpy() == expected
