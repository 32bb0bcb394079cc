"""Arranges the functions of client work so that TensorFlow's optimizations apply to it."""

from collections.abc import Mapping

from tensorflow.core.framework import function_pb2
from tensorflow.core.framework.types_pb2 import DT_BFLOAT16, DT_FLOAT

from tff_pfl.runtime.graph import internals

_CALL = "PartitionedCall"  # a call of a function without state
_SAME = "Identity", "StopGradient"  # operations whose output is their input
# Functions that TensorFlow treats as units: it compiles them, or chooses an implementation.
_UNITS = ("_XlaMustCompile", "_noinline", "api_implements")
# The attributes that name the bodies of loops and the branches of conditions.
_BRANCHES = "then_branch", "else_branch"
_STEPS = {"While": ["body"], "StatelessWhile": ["body"], "If": _BRANCHES, "StatelessIf": _BRANCHES}


def inline_calls(library: Mapping[str, function_pb2.FunctionDef]) -> None:
    """Replaces the calls in the functions of a library by the operations of their functions.

    TensorFlow does so, too, but adds an `Identity` for each output, which costs time in each step.
    """
    done = set()

    def visit(name):
        if name not in library or name in done:
            return
        done.add(name)
        for node in library[name].node_def:
            if node.op == _CALL:
                visit(node.attr["f"].func.name)
        _inline(library[name], library)

    for name in library:
        visit(name)


def _inline(definition, library) -> None:
    awaited = {name[1:] for node in definition.node_def for name in node.input if name[0] == "^"}
    awaited |= set(definition.control_ret.values())
    nodes: list = []
    sources: dict[str, str] = {}
    for node in definition.node_def:
        callee = library.get(node.attr["f"].func.name) if node.op == _CALL else None
        if callee is None or node.name in awaited or any(map(callee.attr.__contains__, _UNITS)):
            nodes.append(node)
        else:
            nodes += _operations(node, callee, sources)

    def source(name):
        while name in sources:
            name = sources[name]
        return name

    for node in nodes:
        node.input[:] = map(source, node.input)
    definition.ret.update({name: source(tensor) for name, tensor in definition.ret.items()})
    kept = [type(node).FromString(node.SerializeToString()) for node in nodes]
    del definition.node_def[:]
    definition.node_def.extend(kept)


def _operations(call, callee, sources: dict[str, str]) -> list:
    """Returns the operations of a call, and adds the source of each of its outputs."""
    tensors = [name for name in call.input if name[0] != "^"]
    waits = [name for name in call.input if name[0] == "^"]
    arguments = dict(zip((arg.name for arg in callee.signature.input_arg), tensors, strict=True))
    prefix = f"{call.name}/inlined"  # `tf.cond` itself adds operations to the scope of its name

    def inside(name):
        if name[0] == "^":
            return f"^{prefix}/{name[1:]}"
        return arguments.get(name) or f"{prefix}/{name}"

    operations = []
    for node in callee.node_def:
        copy = type(node).FromString(node.SerializeToString())
        copy.name = f"{prefix}/{node.name}"
        copy.attr.pop("_class", None)
        copy.input[:] = [*map(inside, node.input), *waits]
        operations.append(copy)
    for index, output in enumerate(callee.signature.output_arg):
        sources[f"{call.name}:output:{index}"] = inside(callee.ret[output.name])
    return operations


def skip_round_trips(library: Mapping[str, function_pb2.FunctionDef]) -> None:
    """Skips casts from bfloat16 to float32 and back, which change no number.

    Frozen weights in bfloat16 are float32 to a model. Its layers that compute in bfloat16 then take
    them as they are kept.
    """
    for definition in library.values():
        nodes = {node.name: node for node in definition.node_def}

        def cast(tensor, nodes=nodes):
            """Returns the operation of a tensor if it is a cast."""
            node = nodes.get(tensor.partition(":")[0])
            while node is not None and node.op in _SAME:
                node = nodes.get(node.input[0].partition(":")[0])
            return node if node is not None and node.op == "Cast" else None

        for node in nodes.values():
            for position, tensor in enumerate(node.input):
                narrowed = cast(tensor)
                widened = narrowed and cast(narrowed.input[0])
                if widened and _types(widened) == (DT_BFLOAT16, DT_FLOAT) == _types(narrowed)[::-1]:
                    node.input[position] = widened.input[0]


def _types(cast) -> tuple[int, int]:
    return cast.attr["SrcT"].type, cast.attr["DstT"].type


def separate_steps(nodes, library: dict[str, function_pb2.FunctionDef]) -> None:
    """Moves bodies and branches that contain gradients of max pooling into functions of their own.

    On CPUs, oneDNN's kernel of the gradient takes a tenth of the time of TensorFlow's. It is used
    only if the pooling comes first in the order of a graph, which loops do not guarantee.
    """
    for part in (nodes, *[definition.node_def for definition in library.values()]):
        for node in part:
            for attribute in _STEPS.get(node.op, ()):
                _separate(node.attr[attribute].func.name, library)


def _separate(name, library):
    body = library.get(name)
    if body is None or not any(node.op == "MaxPoolGrad" for node in body.node_def):
        return
    step = type(body).FromString(body.SerializeToString())
    step.signature.name = f"{name}_step"
    step.attr["_noinline"].b = True
    library[step.signature.name] = step
    del body.node_def[:]
    stateful = body.signature.is_stateful
    call = body.node_def.add(name="step", op="StatefulPartitionedCall" if stateful else _CALL)
    call.input[:] = [arg.name for arg in body.signature.input_arg]
    call.attr["f"].func.name = step.signature.name
    call.attr["config_proto"].s = internals.with_safe_optimization(b"")
    for attr, args in (("Tin", body.signature.input_arg), ("Tout", body.signature.output_arg)):
        call.attr[attr].list.type.extend(arg.type for arg in args)
    for index, output in enumerate(body.signature.output_arg):
        body.ret[output.name] = f"step:output:{index}"
    body.control_ret.clear()
    del body.signature.control_output[:]
