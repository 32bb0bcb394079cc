"""Compares client work of an operation in a context with one client at a time: a fuzz case."""

import dataclasses
import enum

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests.runtime.graph.fuzz.catalogue import Operation
from tff_pfl.runtime.graph import compilation
from tff_pfl.runtime.graph.clients import client_values, compiled_loops, lanes, vectorization
from tff_pfl.runtime.graph.clients.pfor_convolutions import GROUPED, own_filters

# Raised for operations that do not support a context, or types with unknown shapes.
UNTRACEABLE = (TypeError, ValueError, LookupError, NotImplementedError)


class Shapes(enum.Enum):
    """The knowledge of shapes in the types of clients' values."""

    KNOWN = "known"
    OPEN = "of known rank"
    UNKNOWN = "unknown"


class Way(enum.Enum):
    """The way in which the runtime computes clients."""

    VECTORIZED = "vectorized"
    COMPILED = "vectorized, compiled by XLA"
    LOOP = "a loop over clients, compiled by XLA"
    LANES = "side by side"
    COMPILED_LANES = "side by side, compiled by XLA"

    @property
    def is_compiled(self) -> bool:
        return self not in (Way.VECTORIZED, Way.LANES)

    @property
    def has_lanes(self) -> bool:
        return self in (Way.LANES, Way.COMPILED_LANES)


class Outcome(enum.Enum):
    """The outcome of a case; for all outcomes except the first, the runtime uses a loop."""

    EQUAL = "equal"
    REFUSED = "refused when the graph is made"
    FAILS = "fails when it runs"
    INAPPLICABLE = "inapplicable to this operation"


@dataclasses.dataclass(frozen=True)
class Case:
    """An operation and the conditions under which it is tried.

    Attributes:
        operation: The operation that clients compute.
        variant: The index of its operands.
        context: A name in `CONTEXTS` or `SMOOTH_CONTEXTS`.
        stacked: For each operand, whether clients have their own values.
        constant: Whether shared values are known when the graph is made.
        shapes: The knowledge of shapes in the types.
        num_clients: The number of clients, at least 1.
        size: The length of the axes `"n"`.
        seed: The seed of the values.
        way: The way in which clients are computed.
    """

    operation: Operation
    variant: int
    context: str
    stacked: tuple[bool, ...]
    constant: bool
    shapes: Shapes
    num_clients: int
    size: int
    seed: int
    way: Way


def run(case: Case) -> Outcome:
    """Compares the graph of all clients with one client at a time.

    Raises:
        AssertionError: The results differ.
    """
    stacks, shared = _values(case)
    alone = _alone(case, shared)
    specs = [_spec(stack, case.shapes) for stack in stacks]
    try:
        graph = tf.function(alone, autograph=False).get_concrete_function(*specs)
    except UNTRACEABLE:
        return Outcome.INAPPLICABLE
    rows = [[stack[client] for stack in stacks] for client in range(case.num_clients)]
    try:
        expected = [[x.numpy() for x in graph(*map(tf.constant, row))] for row in rows]
    except tf.errors.OpError:
        if not case.operation.fails:
            return Outcome.INAPPLICABLE
        expected = None
    try:
        together, inputs = _together(case, stacks, shared, specs)
    except Exception:  # as in the runtime, since TensorFlow's rules fail in many ways
        return Outcome.REFUSED
    try:
        actual = together(*inputs)
    except tf.errors.OpError:
        return Outcome.FAILS
    assert expected is not None, "Alone, a client fails."
    for index, result in enumerate(actual):
        wanted = [client[index] for client in expected]
        _assert_same(np.asarray(result), wanted, _tolerance(case))
    return Outcome.EQUAL


def _values(case):
    """Returns the stacks, and the values that clients share (`None` for their own values)."""
    rng = np.random.default_rng(case.seed)
    sizes = {"n": case.size}
    stacks, shared = [], []
    for draw, is_stacked in zip(case.operation.variants[case.variant], case.stacked, strict=True):
        if is_stacked:
            stacks.append(np.stack([draw(rng, sizes) for _ in range(case.num_clients)]))
        shared.append(None if is_stacked else draw(rng, sizes))
    steps = rng.integers(0, 4, case.num_clients).astype(np.int32)
    return [*stacks, steps], shared


def _alone(case, shared):
    """Returns the function that one client computes from its rows of the stacks."""
    context = (CONTEXTS | SMOOTH_CONTEXTS)[case.context]

    def alone(*rows):
        *rows, steps = rows
        rows = iter(rows)
        operands = [
            next(rows) if value is None else tf.convert_to_tensor(value) for value in shared
        ]
        results = tf.nest.flatten(context(case.operation.function, operands, steps))
        return [tf.convert_to_tensor(result) for result in results]

    return alone


def _spec(stack, shapes) -> tf.TensorSpec:
    shape = {
        Shapes.KNOWN: stack.shape[1:],
        Shapes.OPEN: [None] * (stack.ndim - 1),
        Shapes.UNKNOWN: None,
    }[shapes]
    return tf.TensorSpec(shape, stack.dtype)


def _together(case, stacks, shared, specs):
    """Returns the function of all clients, and its arguments."""
    stack_specs = [
        tf.TensorSpec([None, *spec.shape], spec.dtype)
        if spec.shape.rank is not None
        else tf.TensorSpec(None, spec.dtype)
        for spec in specs
    ]
    present = [value for value in shared if value is not None and not case.constant]
    shared_specs = [tf.TensorSpec(value.shape, value.dtype) for value in present]

    def outer(size, *tensors):
        stacks, captured = tensors[: len(specs)], iter(tensors[len(specs) :])
        values = [value if value is None or case.constant else next(captured) for value in shared]
        one = tf.function(_alone(case, values), autograph=False).get_concrete_function(*specs)
        if case.way is Way.LOOP:
            return _looped_over(one, size, stacks)
        is_compiled = case.way.is_compiled
        names = {} if is_compiled else None
        # Clients in lanes are also few enough for several prefixes, and not sorted.
        prefixes = lanes.prefixes(case.num_clients, False, 1 << 20, is_gpu=False)
        vectorized = tf.function(
            lambda *tensors: vectorization.vectorize(
                one, tensors[0], tensors[1:], is_compiled, names, prefixes * case.way.has_lanes
            ),
            autograph=False,
            jit_compile=is_compiled,
        )
        if is_compiled:
            graph = vectorized.get_concrete_function(size, *stacks).graph
            compilation.check_compilable(graph, "CPU:0")
        results = vectorized(size, *stacks)
        return compilation.raising(results, names) if is_compiled else results

    # On a CPU, only XLA has all gradients of grouped channels.
    with own_filters(*[GROUPED] * case.way.is_compiled):
        function = tf.function(outer, autograph=False).get_concrete_function(
            tf.TensorSpec([], tf.int32), *stack_specs, *shared_specs
        )
    return function, map(tf.constant, [np.int32(case.num_clients), *stacks, *present])


def _looped_over(one, size, stacks):
    """Returns the results of a compiled loop over clients, in parts of at most two clients."""
    ends = tf.minimum(tf.range(2, size + 2, 2), size)
    groups = client_values.Groups(ends, tf.range(size), tf.fill(tf.shape(ends), 3))
    loop = compiled_loops.CompiledLoop(client_values.Shard("/CPU:0", size, (), groups), None)
    types = [tff.types.TensorType(x.dtype.as_numpy_dtype, x.shape) for x in one.outputs]
    leaves = loop.add(
        lambda rows, alone: one(*rows), list(map(client_values.Stacked, stacks)), types
    )
    results = [leaf.tensor for leaf in leaves]
    loop.build()
    return results


def _tolerance(case) -> float:
    return 2e-3 if case.way.is_compiled or case.context in _SECOND_ORDER else 2e-4


def _assert_same(actual, wanted, tolerance):
    if any(array.shape != wanted[0].shape for array in wanted):
        raise AssertionError(
            f"Shapes {[array.shape for array in wanted]} became a stack of shape {actual.shape}."
        )
    wanted = np.stack(wanted)
    if wanted.dtype == object or not np.issubdtype(wanted.dtype, np.inexact):
        np.testing.assert_array_equal(actual, wanted, strict=True)
        return
    assert actual.dtype == wanted.dtype
    double = np.complex128 if np.iscomplexobj(wanted) else np.float64
    if wanted.dtype.itemsize == 2:
        tolerance = 2e-2
    scale = np.nanmax(np.abs(wanted), initial=1, where=np.isfinite(wanted))
    np.testing.assert_allclose(
        actual.astype(double),
        wanted.astype(double),
        rtol=tolerance,
        atol=tolerance * float(scale) / 10,
    )


# Contexts have the arguments `(function, operands, steps)`; `steps` is 0 to 3 for each client.


def _plain(function, operands, steps):
    return function(*operands)


def _called(function, operands, steps):
    return tf.function(function, autograph=False)(*operands)


def _total(function, operands):
    """Returns a number that depends on all real parts of the results."""
    results = [tf.convert_to_tensor(x) for x in tf.nest.flatten(function(*operands))]
    smooth = [tf.cast(tf.math.real(x), tf.float64) for x in results if _is_smooth(x)]
    if not smooth:
        raise NotImplementedError("Nothing has a gradient.")
    return tf.add_n([tf.reduce_sum(tf.sin(x + 0.3)) for x in smooth])


def _is_smooth(tensor) -> bool:
    return tensor.dtype.is_floating or tensor.dtype.is_complex


def _gradients(function, operands, steps):
    smooth = [x for x in operands if _is_smooth(x)]
    if not smooth:
        raise NotImplementedError("Nothing has a gradient.")
    with tf.GradientTape() as tape:
        tape.watch(smooth)
        total = _total(function, operands)
    return _present(tape.gradient(total, smooth))


def _present(gradients):
    gradients = [tf.convert_to_tensor(gradient) for gradient in gradients if gradient is not None]
    if not gradients:
        raise NotImplementedError("Nothing has a gradient.")
    return gradients


def _second_order(function, operands, steps):
    smooth = [x for x in operands if x.dtype.is_floating]
    with tf.GradientTape() as tape:
        tape.watch(smooth)
        gradients = [g for g in _gradients(function, operands, steps) if g.dtype.is_floating]
        total = _total(lambda: gradients, [])
    return _present(tape.gradient(total, smooth))


def _shrunk(operands, index):
    """Returns operands that differ at each step."""
    factor = 1 - 0.1 * tf.cast(index, tf.float64)
    return [x * tf.cast(factor, x.dtype) if _is_smooth(x) else x for x in operands]


def _looped(function, operands, steps):
    results = function(*operands)
    start = tf.nest.map_structure(tf.zeros_like, results)
    shapes = tf.nest.map_structure(lambda x: x.shape, start)
    return tf.while_loop(
        lambda index, _: index < steps,
        lambda index, _: (index + 1, function(*_shrunk(operands, index))),
        (tf.constant(0), start),
        shape_invariants=(tf.TensorShape([]), shapes),
    )


def _looped_alike(function, operands, steps):
    return _looped(function, operands, tf.constant(2))


def _branched(function, operands, steps):
    return tf.cond(
        steps > 1,
        lambda: function(*operands),
        lambda: function(*_shrunk(operands, 1)),
    )


def _gradients_of_loop(function, operands, steps):
    """Runs gradient descent in a loop, as clients do in training."""
    smooth = [x for x in operands if _is_smooth(x)]
    if not smooth:
        raise NotImplementedError("Nothing has a gradient.")
    moved = [tf.zeros_like(x) for x in smooth]

    def step(index, moved):
        rest = iter(moved)
        at = [x + next(rest) if _is_smooth(x) else x for x in operands]
        gradients = _gradients(function, at, steps)
        if len(gradients) != len(moved):
            raise NotImplementedError("Some operands have no gradient.")
        return index + 1, [
            m - 0.01 * tf.cast(g, m.dtype) for m, g in zip(moved, gradients, strict=True)
        ]

    return tf.while_loop(lambda index, _: index < steps, step, (tf.constant(0), moved))


CONTEXTS = {
    "plain": _plain,
    "in a function": _called,
    "in a loop": _looped_alike,
    "in a loop of more steps for some clients": _looped,
    "in a branch": _branched,
}
# Contexts for operations with operands that have gradients.
SMOOTH_CONTEXTS = {
    "gradients": _gradients,
    "second-order gradients": _second_order,
    "descent in a loop of more steps for some clients": _gradients_of_loop,
}
_SECOND_ORDER = ("second-order gradients", "descent in a loop of more steps for some clients")


def contexts_of(operands) -> list[str]:
    """Lists the contexts for an operation with these operands."""
    drawn = [draw(np.random.default_rng(0), {"n": 1}) for draw in operands]
    is_smooth = any(np.issubdtype(value.dtype, np.inexact) for value in drawn)
    return [*CONTEXTS, *(SMOOTH_CONTEXTS if is_smooth else ())]
