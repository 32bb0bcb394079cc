"""Digests computations, to tell the runs of different processes apart."""

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping

import tensorflow as tf
import tensorflow_federated as tff
from google.protobuf import message
from tensorflow.core.framework import attr_value_pb2, function_pb2, node_def_pb2

from tff_pfl.tracing.frozen import SUFFIX

# Attributes that name what the rest of a graph has, or depend on the machine.
_WITHOUT_MEANING = frozenset(
    [
        "_class",
        "_gradient_op_type",
        "_user_specified_name",
        "api_implements",
        "backward_function_name",
        "config_proto",
        "forward_function_name",
    ]
)
_NAMES_OF_RESOURCES = frozenset(["container", "debug_name", "shared_name"])
_NAMES_OF_VALUES = frozenset(["name", "parameter_name"])  # in the wiring of a computation
_TENSOR_IN_TEXT = re.compile(rb"\(([\w.\-/]+)(?=:\d+\))")  # in messages of assertions


def fingerprint(*computations: tff.Computation) -> str:
    """Returns a digest of computations, 16 hexadecimal digits.

    It covers all that they compute: of a process, the model, the local training, the options and
    the code of the method, the aggregation and the seed. Names of operations, functions and values
    do not matter. It does not change from one Python process to another, but may change with the
    versions of TensorFlow, TFF or this library.
    """
    protos = map(tff.framework.serialize_computation, computations)
    return _digest(part for proto in protos for part in _wiring(proto, _Names("value")))[:16]


def _digest(parts: Iterable[str | bytes]) -> str:
    found = hashlib.sha256()
    for part in parts:
        found.update(part.encode() if isinstance(part, str) else part)
        found.update(b"\0")
    return found.hexdigest()


class _Names(dict):
    """New names in the order in which names are first met."""

    def __init__(self, kind: str, names: Iterable[str] = ()):
        """Assigns the first new names of one kind."""
        super().__init__((name, f"{kind} {i}") for i, name in enumerate(names))
        self._kind = kind

    def __missing__(self, name):
        return self.setdefault(name, f"{self._kind} {len(self)}")


def _wiring(value: message.Message, names: _Names) -> Iterator[str | bytes]:
    """Yields what determines a computation, with digests in place of its TensorFlow graphs."""
    for field, content in value.ListFields():
        yield field.name
        for part in content if field.label == field.LABEL_REPEATED else [content]:
            if field.name == "tensorflow":
                yield _of_tensorflow(part)
            elif field.name == "type":
                yield part.SerializeToString(deterministic=True)
            elif field.message_type is not None:
                yield from ("(", *_wiring(part, names), ")")
            else:
                yield names[part] if field.name in _NAMES_OF_VALUES else repr(part)


def _of_tensorflow(computation: message.Message) -> str:
    """Returns the digest of a graph, and of the tensors that are its arguments and results."""
    graph = tf.compat.v1.GraphDef()
    computation.graph_def.Unpack(graph)
    names = _Names("node", (node.name for node in graph.node))

    def tensors(value):
        for field, content in value.ListFields():
            if field.name in ("cache_key", "graph_def"):
                continue
            yield field.name
            for part in content if field.label == field.LABEL_REPEATED else [content]:
                if field.message_type is not None:
                    yield from ("(", *tensors(part), ")")
                else:
                    yield _renamed(part, names) if isinstance(part, str) else repr(part)

    functions = _Functions(graph.library)
    return _digest([*functions.nodes(graph.node, names), *tensors(computation)])


class _Functions(dict):
    """Digests of the functions of a graph, by name."""

    def __init__(self, library: function_pb2.FunctionDefLibrary):
        """Computes nothing yet."""
        super().__init__()
        self._definitions = {function.signature.name: function for function in library.function}

    def __missing__(self, name):
        self[name] = _digest(self._parts(self._definitions[name]))
        return self[name]

    def _parts(self, definition) -> Iterator[str | bytes]:
        arguments, results = definition.signature.input_arg, definition.signature.output_arg
        names = _Names("node", [arg.name for arg in arguments])
        names.update(_Names("operation", (node.name for node in definition.node_def)))
        yield from (str(arg.type) for arg in arguments)
        yield from self.nodes(definition.node_def, names)
        yield from (_renamed(definition.ret[result.name], names) for result in results)
        yield from sorted(_renamed(name, names) for name in definition.control_ret.values())
        yield from self._attributes(definition.attr, names, _Names("resource"))

    def nodes(
        self, nodes: Iterable[node_def_pb2.NodeDef], names: Mapping[str, str]
    ) -> Iterator[str | bytes]:
        """Yields what determines nodes, which are in the order in which they were made."""
        resources = _Names("resource")
        for node in nodes:
            yield from (node.op, node.device)
            yield from (_renamed(name, names) for name in node.input)
            yield from self._attributes(node.attr, names, resources)

    def _attributes(self, attributes, names, resources) -> Iterator[str | bytes]:
        for key in sorted(attributes):
            value = attributes[key]
            if key in _WITHOUT_MEANING:
                continue
            yield key
            if key in _NAMES_OF_RESOURCES:
                yield resources[value.s]
            elif functions := _called(value):
                for function in functions:
                    yield self[function.name]
                    yield from self._attributes(function.attr, names, resources)
            elif value.tensor.dtype == tf.string.as_datatype_enum:
                yield from (_text(part, names) for part in value.tensor.string_val)
                yield value.tensor.tensor_shape.SerializeToString(deterministic=True)
            else:
                yield value.SerializeToString(deterministic=True)


def _called(value: attr_value_pb2.AttrValue) -> list[attr_value_pb2.NameAttrList]:
    """Returns the functions that an attribute of a node names."""
    return [value.func] if value.HasField("func") else list(value.list.func)


def _renamed(name: str, names: Mapping[str, str]) -> str:
    """Renames a tensor, such as `^node`, `node:0` or `node:output:0`."""
    node, colon, output = name.removeprefix("^").partition(":")
    return f"{name[: name.startswith('^')]}{names[node]}{colon}{output}"


def _text(text: bytes, names: Mapping[str, str]) -> bytes:
    """Renames the tensors in a message of an assertion; leaves out the folder of frozen weights."""
    if text.endswith(SUFFIX.encode()):
        return os.path.basename(text)

    def renamed(match):
        name = match[1].decode()
        return f"({names[name]}".encode() if name in names else match[0]

    return _TENSOR_IN_TEXT.sub(renamed, text)
