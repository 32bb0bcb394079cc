"""Decides which client work XLA compiles: all that has the same results when it is compiled."""

import functools
from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from tff_pfl.runtime.graph import devices, internals
from tff_pfl.runtime.graph.operations import operations

# Substrings of the types of operations that draw random numbers.
_RANDOM = ("Random", "Multinomial", "TruncatedNormal", "Shuffle")
# Operations that check values, and that XLA drops.
_CHECKS = ("Assert", "CheckNumerics", "CheckNumericsV2")
# Operations that fail for some matrices, or give NaN, for which XLA computes numbers.
_OF_MATRICES = ("MatrixInverse", "MatrixSolve", "MatrixTriangularSolve")
# Operations that take many times as long as TensorFlow's.
_SLOW = ("SelfAdjointEigV2", "Svd")
# Operations, the second derivatives of max pooling, whose inputs XLA rounds to bfloat16.
_ROUNDED = ("MaxPoolGradGrad", "MaxPoolGradGradV2", "MaxPool3DGradGrad")
FAILS = "Client work fails in "
"""The beginning of the message of an operation that fails in compiled client work."""

# The sizes that a number of clients is padded to, for each doubling of the number: few for groups,
# whose sizes differ in each cohort; more for cohorts, which are often of one size.
_SIZES_OF_GROUPS, _SIZES_OF_COHORTS = 2, 8
_MOST_CLIENTS = 1 << 30


class NotCompilableError(ValueError):
    """An error for a graph that XLA cannot compile, or whose results would be others."""


def check_compilable(graph: tf.Graph, device: str) -> None:
    """Checks that XLA can compile a graph for a device, with the same results.

    Args:
        graph: A vectorized graph, whose draws of random numbers are arithmetic if they can be; see
            `pfor_random.rules`.
        device: The name of a device.

    Raises:
        NotCompilableError: An operation draws other numbers when it is compiled, or is an
            assertion, which XLA drops, or XLA does not have it.
    """
    compiler = "XLA_GPU_JIT" if devices.is_gpu(device) else "XLA_CPU_JIT"
    for operation in operations(graph):
        kind = operation.type
        if any(word in kind for word in _RANDOM):
            raise NotCompilableError(f"XLA draws other numbers for {kind}")
        if kind in _CHECKS:
            raise NotCompilableError(f"XLA drops {kind}")
        if kind in _OF_MATRICES:
            raise NotCompilableError(f"XLA computes {kind} of singular matrices")
        if kind in _SLOW:
            raise NotCompilableError(f"XLA's {kind} is slow")
        if kind in _ROUNDED:
            raise NotCompilableError(f"XLA rounds the inputs of {kind}")
        if any(tensor.dtype.is_complex for tensor in operation.outputs):
            raise NotCompilableError("XLA computes other functions of complex numbers")
        is_node = kind != "Placeholder" and not operation.graph._is_function(kind)
        if is_node and compiler not in _compilers(kind):
            raise NotCompilableError(f"XLA has no {kind}")


def raising(results: Sequence[tf.Tensor], names: Mapping[str, int]) -> list[tf.Tensor]:
    """Returns the results of compiled client work, or raises the error of an operation.

    Args:
        results: The results, and the number of an operation that fails, or 0.
        names: The names of operations that can fail, in the order of their numbers.
    """
    *results, failed = results
    if not names:
        return results
    texts = tf.constant(["", *(f"{FAILS}{name}." for name in names)])
    assertion = tf.debugging.Assert(tf.equal(failed, 0), [tf.gather(texts, failed)])
    with tf.control_dependencies([assertion]):
        return list(map(tf.identity, results))


def with_few_sizes(
    function: Callable, names: Mapping[str, int], are_groups: bool, limit: int | None
) -> Callable:
    """Returns a function of any number of clients that calls a compiled one with few numbers.

    XLA compiles a function again for each number of clients. Missing clients are copies of the last
    one, and their results are dropped.

    Args:
        function: A function of a number of clients and stacks of their tensors, to stacks and the
            number of an operation that fails, or 0.
        names: See `raising`.
        are_groups: Whether the clients are a group of a cohort, and not all of it.
        limit: The largest number of clients, or `None`.
    """
    sizes = _sizes(_SIZES_OF_GROUPS if are_groups else _SIZES_OF_COHORTS, limit or _MOST_CLIENTS)

    def padded(count, *stacks):
        size = tf.gather(sizes, tf.searchsorted(sizes, count[tf.newaxis])[0])
        rows = tf.minimum(tf.range(size), count - 1)
        results = function(size, *(tf.gather(stack, rows) for stack in stacks))
        return [result[:count] for result in raising(results, names)]

    return tf.function(padded, autograph=False)


def _sizes(each_doubling: int, limit: int) -> list[int]:
    """Returns the sizes up to a limit: for 2 sizes in each doubling 1, 2, 3, 4, 6, 8, 12, ..."""
    sizes, step = list(range(1, 2 * each_doubling)), 1
    while sizes[-1] < limit:
        sizes += [step * number for number in range(2 * each_doubling, 4 * each_doubling, 2)]
        step *= 2
    return [size for size in sizes if size < limit] + [limit]


@functools.cache
def _compilers(kind: str) -> frozenset[str]:
    """Returns the types of devices and compilers that have a type of operation."""
    _start_xla()
    return frozenset(kernel.device_type for kernel in internals.kernels_of(kind).kernel)


@functools.cache
def _start_xla() -> None:
    """Lets XLA register its operations, which it does at the first compilation."""
    with tf.init_scope(), tf.device("CPU:0"):
        tf.function(tf.negative, autograph=False, jit_compile=True)(tf.constant(0.0))
