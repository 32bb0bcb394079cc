"""Makes `==` and `!=` compare the elements of tensors while a block is traced, as in eager mode.

TFF traces into graphs of TensorFlow 1, in which `==` tests whether two tensors are the same object.
There, `tf.where(round_num == 0, ...)` raises no error and never takes its first branch. Within
`elementwise_equality`, in its thread, comparisons compare elements if they are written outside of
TensorFlow, Keras and TFF, and incompatible shapes raise an error. These libraries search lists for
objects, so their comparisons do not change. Neither do comparisons of variables.

Importing this module replaces `==` and `!=` of `tf.Tensor`. Outside of `elementwise_equality` they
behave as before.
"""

import contextlib
import functools
import sys
import threading
from collections.abc import Iterator

import tensorflow as tf

_LIBRARIES = frozenset(("keras", "tensorflow", "tensorflow_federated", "tf_keras", "tree"))


class _Tracing(threading.local):
    depth = 0


_tracing = _Tracing()


@contextlib.contextmanager
def elementwise_equality() -> Iterator[None]:
    """Makes `==` and `!=` compare elements, as a context manager or a decorator."""
    _tracing.depth += 1
    try:
        yield
    finally:
        _tracing.depth -= 1


def _compare(name, elementwise):
    original = getattr(tf.Tensor, name)

    @functools.wraps(original)
    def compare(self, other):
        if not _tracing.depth or other is None or _is_library_code(sys._getframe(1)):
            return original(self, other)
        return elementwise(self, other)

    return compare


def _is_library_code(frame) -> bool:
    return frame.f_globals.get("__name__", "").partition(".")[0] in _LIBRARIES


tf.Tensor.__eq__ = _compare("__eq__", tf.math.equal)
tf.Tensor.__ne__ = _compare("__ne__", tf.math.not_equal)
