"""Makes tracing cheaper, because tests trace thousands of graphs that run once.

The graphs do not change. Without this module, the tests take about a tenth longer.
"""

import functools
import typing


def apply() -> None:
    """Patches TensorFlow and TFF. Call it once in a process, after `prepare_process`."""
    # Python 3.11 collects the attributes of a protocol again for each `isinstance`, which
    # TensorFlow calls all the time.
    typing._get_protocol_attrs = functools.cache(typing._get_protocol_attrs)
    _remember_types()
    _forget_where_operations_are_made()


def _remember_types():
    """Caches the types that TFF reads from bytes for each use of a part of a computation."""
    from tensorflow_federated.python.core.impl.types import type_serialization

    read, known = type_serialization.deserialize_type, {}

    @functools.wraps(read)
    def deserialize_type(type_proto):
        key = type_proto.SerializeToString(deterministic=True)
        if key not in known:
            known[key] = read(type_proto)
        return known[key]

    type_serialization.deserialize_type = deserialize_type


def _forget_where_operations_are_made():
    """Gives all operations the stack of the first one. Remove this to debug an operation."""
    from tensorflow.python.util import tf_stack

    tf_stack.extract_stack = functools.cache(tf_stack.extract_stack)
