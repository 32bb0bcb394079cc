"""Makes it cheaper to trace thousands of graphs that run once.

None of it changes a graph. Without it, the tests take about a tenth longer.
"""

import functools
import typing


def apply() -> None:
    """Once in a process, after `prepare_process`."""
    # Python 3.11 collects the attributes of a protocol anew whenever `isinstance` asks for them,
    # and TensorFlow asks all the time.
    typing._get_protocol_attrs = functools.cache(typing._get_protocol_attrs)
    _remember_types()
    _forget_where_operations_are_made()


def _remember_types():
    """TFF reads the types of all parts of a computation from bytes, again for each use of it."""
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
    """All operations of a graph have the stack of the first: remove this to debug one of them."""
    from tensorflow.python.util import tf_stack

    tf_stack.extract_stack = functools.cache(tf_stack.extract_stack)
