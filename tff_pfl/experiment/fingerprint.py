"""Digests computations, to tell the runs of different processes apart."""

import hashlib
import re
from collections.abc import Iterator

import tensorflow as tf
import tensorflow_federated as tff
from google.protobuf import any_pb2, message

# Names of functions and of operations that call them have numbers, which depend on earlier graphs.
_NUMBERED = re.compile(r"[\w.\-/]*_\d+")


def fingerprint(*computations: tff.Computation) -> str:
    """Returns a digest of computations, 16 hexadecimal digits.

    It covers all that their graphs depend on: of a process, the model, the local training, the
    options and the code of the method, and the seed. It does not change from one Python process to
    another, but may change with the versions of TensorFlow, TFF or this library.
    """
    graphs = [
        graph
        for computation in computations
        for graph in _graphs(tff.framework.serialize_computation(computation))
    ]
    digests = sorted(_digest(part) for graph in graphs for part in _parts(graph))
    return hashlib.sha256("".join(digests).encode()).hexdigest()[:16]


def _graphs(value: message.Message) -> Iterator[tf.compat.v1.GraphDef]:
    """Yields the TensorFlow graphs inside a serialized computation."""
    if isinstance(value, any_pb2.Any):
        graph = tf.compat.v1.GraphDef()
        if value.Unpack(graph):
            yield graph
        return
    for field, content in value.ListFields():
        if field.message_type is not None:
            for part in content if field.label == field.LABEL_REPEATED else [content]:
                yield from _graphs(part)


def _parts(graph: tf.compat.v1.GraphDef) -> Iterator[str]:
    """Yields the functions of a graph, whose order depends on their numbers, and the rest."""
    yield from map(str, graph.library.function)
    yield "".join(map(str, graph.node))


def _digest(part: str) -> str:
    names: dict[str, str] = {}
    numbered = _NUMBERED.sub(lambda name: names.setdefault(name[0], f"#{len(names)}"), part)
    return hashlib.sha256(numbered.encode()).hexdigest()
