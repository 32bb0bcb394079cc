"""Decides which client work XLA compiles: all that has the same results when it is compiled."""

import functools

import tensorflow as tf

from tff_pfl.runtime.graph import devices, internals
from tff_pfl.runtime.graph.operations import operations

# Substrings of the types of operations that draw random numbers.
_RANDOM = ("Random", "Multinomial", "TruncatedNormal", "Shuffle")
# Operations that check values, and that XLA drops.
_CHECKS = ("Assert", "CheckNumerics", "CheckNumericsV2")


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
        is_node = kind != "Placeholder" and not operation.graph._is_function(kind)
        if is_node and compiler not in _compilers(kind):
            raise NotCompilableError(f"XLA has no {kind}")


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
