"""`==` and `!=` of tensors while a block is traced: element by element, as in eager mode.

TFF traces into graphs of TensorFlow 1, in which `==` asks whether two tensors are the same object:
`tf.where(round_num == 0, ...)` has no error there, and never takes its first branch. While a
function of `elementwise_equality` runs, in its thread, comparisons that are written outside of
TensorFlow, Keras and TFF are of elements; shapes that do not fit are an error. These libraries look
for objects in lists, and are left alone; so are variables. To this end, `==` and `!=` of
`tf.Tensor` are replaced when this module is imported; elsewhere they do what they did.
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
    """Inside of it, or of what `@elementwise_equality()` decorates, elements are compared."""
    _tracing.depth += 1
    try:
        yield
    finally:
        _tracing.depth -= 1


def _compare(name, elementwise):
    of_tensorflow = getattr(tf.Tensor, name)

    @functools.wraps(of_tensorflow)
    def compare(self, other):
        if not _tracing.depth or other is None or _is_of_libraries(sys._getframe(1)):
            return of_tensorflow(self, other)
        return elementwise(self, other)

    return compare


def _is_of_libraries(frame) -> bool:
    return frame.f_globals.get("__name__", "").partition(".")[0] in _LIBRARIES


tf.Tensor.__eq__ = _compare("__eq__", tf.math.equal)
tf.Tensor.__ne__ = _compare("__ne__", tf.math.not_equal)
