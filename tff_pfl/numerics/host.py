"""Places computations on few numbers on the CPU, also where a GPU does the rest."""

import contextlib
from collections.abc import Iterator

import tensorflow as tf

SCOPE = "on_host"
"""The name scope of operations that are placed on the CPU, in graphs and in profiles."""


@contextlib.contextmanager
def on_host() -> Iterator[None]:
    """Places operations on the CPU of their machine, as a context manager or a decorator.

    An operation on some hundred numbers takes a CPU a microsecond, and a GPU ten. A search has a
    thousand of them, and a loop waits for the GPU in each step.
    """
    with tf.device("CPU:0"), tf.name_scope(SCOPE):
        yield
