"""Writes into graphs which block and which line made each operation, for errors at run time.

TensorFlow's own record of lines is lost when TFF serializes a graph. Its messages name the failing
operation by `original_node_names`, which are kept in whatever is made of the graph.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.arguments.tracebacks import line_of_user

Places = Mapping[tuple[str, str], str]
"""The user's lines by the names of a function, or "", and of an operation in it."""

_ORIGIN = re.compile(r"(\S+) of (\S.*?)( \(.*, line \d+\))?")
_IN_MESSAGE = re.compile(r"\{\{node (.*?)\}\}")


class Origin(NamedTuple):
    """The origin of an operation.

    Attributes:
        operation: The name of the operation.
        block: The name of its block.
        place: The user's line that made it, for the end of a message, or "".
    """

    operation: str
    block: str
    place: str

    @classmethod
    def of(cls, node) -> "Origin | None":
        """Returns the origin that is written in a `NodeDef`, or `None`."""
        return cls._parsed("".join(node.experimental_debug_info.original_node_names[:1]))

    @classmethod
    def in_message(cls, message: str) -> "Origin | None":
        """Returns the origin that TensorFlow's message of an error has, or `None`."""
        found = map(cls._parsed, _IN_MESSAGE.findall(message))
        return next(filter(None, found), None)

    @classmethod
    def _parsed(cls, text: str) -> "Origin | None":
        match = _ORIGIN.fullmatch(text)
        return match and cls(*(part or "" for part in match.groups()))


def block_of(proto) -> str:
    """Returns the name of the block that a TFF `Computation` message computes, or ""."""
    definition = tf.compat.v1.GraphDef()
    proto.tensorflow.graph_def.Unpack(definition)
    return next((origin.block for node in definition.node if (origin := Origin.of(node))), "")


def places_in(graph: tf.Graph, file: str) -> Places:
    """Returns the user's lines below `file` that made operations of a graph and its functions."""
    graphs = {"": graph}
    graphs |= {name: function.graph for name, function in graph._functions.items()}
    found = {}
    for function, each in graphs.items():
        for operation in each.get_operations():
            stack = operation.traceback
            frames = [] if stack is None else stack.get_user_frames()
            if line := line_of_user(frames, below=file):
                found[function, operation.name] = line
    return found


def with_origins(computation: tff.Computation, block: str, places: Places) -> tff.Computation:
    """Returns the same computation with the origins of its operations."""
    proto = type(found := tff.framework.ConcreteComputation.get_proto(computation))()
    proto.CopyFrom(found)
    definition = tf.compat.v1.GraphDef()
    proto.tensorflow.graph_def.Unpack(definition)
    bodies = {each.signature.name: each.node_def for each in definition.library.function}
    bodies[""] = definition.node
    for function, nodes in bodies.items():
        for node in nodes:
            place = places.get((function, node.name), "")
            node.experimental_debug_info.original_node_names[:] = [f"{node.name} of {block}{place}"]
    proto.tensorflow.graph_def.Pack(definition)
    return tff.framework.ConcreteComputation.from_building_block(
        tff.framework.CompiledComputation(proto, type_signature=computation.type_signature)
    )
