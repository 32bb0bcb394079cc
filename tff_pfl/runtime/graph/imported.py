"""Imports the TensorFlow graph of a TFF computation as a function of this process."""

import itertools
from collections.abc import Sequence

import tensorflow as tf

from tff_pfl.runtime.graph import internals
from tff_pfl.runtime.graph.inlining import inline_calls, separate_steps, skip_round_trips
from tff_pfl.runtime.graph.operations import depends_on, operations
from tff_pfl.tracing.alone import Alone, choose
from tff_pfl.tracing.frozen import SUFFIX, Frozen

# TensorFlow makes a new variable of this name at each run of its operation (`ResourceHandle`).
_ANONYMOUS = "cd2c89b7-88b7-44c8-ad83-06c2a9158347"
# Operations of resources, and their variants that make a new resource at each run and free it.
_ANONYMOUS_OPS = {
    "HashTableV2": "AnonymousHashTable",
    "MutableHashTableV2": "AnonymousMutableHashTable",
    "MutableHashTableOfTensorsV2": "AnonymousMutableHashTableOfTensors",
    "MutableDenseHashTableV2": "AnonymousMutableDenseHashTable",
}
_SHARING_ATTRIBUTES = ("container", "shared_name", "use_node_name_sharing")


class NotSingleElementError(ValueError):
    """An error for a computation that does more with a sequence than take its single element."""


class ImportedFunction:
    """A function `(flat tensors) -> flat tensors`, imported from a TFF computation.

    Sequences are variant tensors. A call adds one operation to the graph. Each run has its own
    variables and tables, as a session in the stock runtime has, so that clients that run at the
    same time share none.
    """

    def __init__(
        self,
        message,
        input_specs: Sequence[tf.TensorSpec | tuple[tf.TensorSpec, ...]],
        alone: Alone = Alone.NOT,
    ):
        """Imports a computation.

        Args:
            message: The field `tensorflow` of a TFF `Computation` message.
            input_specs: The specs of the inputs, in the order of the flattened parameter. A tuple
                stands for a sequence of one element, and has the specs of its components.
            alone: How far each client is computed alone; see `tff_pfl.tracing.alone`.

        Raises:
            NotSingleElementError: The computation does more with such a sequence than take its
                single element.
        """
        graph_def = tf.compat.v1.GraphDef()
        if not message.graph_def.Unpack(graph_def):
            raise ValueError("The TensorFlow computation has no graph.")
        inputs = _tensor_names(message.parameter) if message.HasField("parameter") else []
        for position, spec in reversed(list(enumerate(input_specs))):
            if isinstance(spec, tuple):
                sequence = inputs[position]
                inputs[position : position + 1] = _take_single_element(graph_def, sequence, spec)
        outputs = _tensor_names(message.result)
        _replace_session_token(graph_def, message.session_token_tensor_name)
        reads = _frozen_reads(graph_def)
        _prune(graph_def, [*outputs, message.initialize_op] if message.initialize_op else outputs)
        present = {node.name for node in graph_def.node}
        reads = {name: frozen for name, frozen in reads.items() if name in present}
        self._frozen = list(reads.values())
        inputs += [f"{name}:0" for name in reads]
        _drop_waits_for(graph_def, set(map(_node_of, inputs)))
        variables = _separate_resources(graph_def)
        if message.initialize_op:
            _initialize_first(graph_def, message.initialize_op)
        bodies = (function.node_def for function in graph_def.library.function)
        choose(itertools.chain(graph_def.node, *bodies), alone)
        functions = _load_library(graph_def, alone)

        def run(*args):
            for function in functions:
                function.add_to_graph(tf.compat.v1.get_default_graph())
            handles = [f"{variable}:0" for variable in variables]
            present = {node.name for node in graph_def.node}
            imported = tf.graph_util.import_graph_def(
                graph_def,
                # `tf.identity` makes tensors of an outer graph inputs; an import would not.
                input_map={
                    name: tf.identity(arg)
                    for name, arg in zip(inputs, args, strict=True)
                    if _node_of(name) in present
                },
                return_elements=[*outputs, *handles],
                name="",
            )
            results, handles = imported[: len(outputs)], imported[len(outputs) :]
            if handles:
                graph = tf.compat.v1.get_default_graph()
                with tf.control_dependencies([op for op in graph.get_operations() if op.outputs]):
                    for handle in handles:
                        tf.raw_ops.DestroyResourceOp(resource=handle)
            return [tf.identity(result) for result in results]

        specs = tf.nest.flatten(list(input_specs))
        specs += [tf.TensorSpec(frozen.shape, frozen.dtype) for frozen in self._frozen]
        self._function = tf.compat.v1.wrap_function(run, specs)

    @property
    def is_stateful(self) -> bool:
        """Whether two calls with the same arguments may give different results."""
        return any(op.op_def.is_stateful for op in self._function.graph.get_operations())

    @property
    def has_loops(self) -> bool:
        """Whether the function has loops."""
        return any("While" in op.type for op in operations(self._function.graph))

    @property
    def appends(self) -> bool:
        """Whether the outputs are the first inputs with independent rows appended."""
        inputs, outputs = self._function.inputs, self._function.outputs
        if not 0 < len(outputs) <= len(inputs):
            return False
        accumulated = [tensor.op for tensor in inputs[: len(outputs)]]
        return all(
            _appended(output, operation, accumulated)
            for output, operation in zip(outputs, accumulated, strict=True)
        )

    def __call__(self, *args: tf.Tensor) -> list[tf.Tensor]:
        """Calls the function on flat tensors, and on the frozen weights that it reads."""
        if not self._frozen:
            return self._function(*args)
        device = tf.no_op().device or "CPU:0"
        return self._function(*args, *(frozen.on(device) for frozen in self._frozen))


def _appended(tensor, first, independent_of) -> bool:
    """Returns whether a tensor concatenates `first` and independent rows along axis 0."""
    concatenation = _source(tensor)
    if concatenation.type != "ConcatV2" or len(concatenation.inputs) != 3:
        return False
    rows, further, axis = concatenation.inputs
    return (
        _source(rows) is first
        and tf.get_static_value(axis) == 0
        and not depends_on(further.op, independent_of)
    )


def _source(tensor) -> tf.Operation:
    """Returns the operation that computes a tensor, skipping identities."""
    while tensor.op.type == "Identity":
        (tensor,) = tensor.op.inputs
    return tensor.op


def _tensor_names(binding) -> list[str]:
    """Returns the flat list of names of a binding's tensors."""
    kind = binding.WhichOneof("binding")
    if kind == "tensor":
        return [binding.tensor.tensor_name]
    if kind == "sequence":
        return [binding.sequence.variant_tensor_name]
    return [name for element in binding.struct.element for name in _tensor_names(element)]


def _take_single_element(graph_def, sequence: str, specs) -> list[str]:
    """Replaces the single element of a sequence by placeholders; returns their names."""
    users = [node for node in graph_def.node if _node_of(sequence) in map(_node_of, node.input)]
    if [node.op for node in users] != ["DatasetToSingleElement"]:
        raise NotSingleElementError(
            f"{sequence} must be used by one DatasetToSingleElement alone, found "
            f"{[node.op for node in users]}."
        )
    element = users[0].name
    placeholders = [f"{element}/component_{index}" for index in range(len(specs))]
    for node in graph_def.node:
        for position, source in enumerate(node.input):
            if _node_of(source) == element and not source.startswith("^"):
                _, _, index = source.partition(":")
                node.input[position] = placeholders[int(index or 0)]
    for name, spec in zip(placeholders, specs, strict=True):
        node = graph_def.node.add(name=name, op="Placeholder")
        node.attr["dtype"].type = spec.dtype.as_datatype_enum
    return [f"{name}:0" for name in placeholders]


def _node_of(name: str) -> str:
    return name.removeprefix("^").split(":")[0]


def _replace_session_token(graph_def, tensor_name) -> None:
    """Replaces the token, which only TFF's operations for remote data read, by a constant."""
    for node in graph_def.node:
        if node.name == _node_of(tensor_name):
            node.op = "Const"
            del node.input[:]
            node.attr.clear()
            node.attr["dtype"].type = tf.string.as_datatype_enum
            node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(""))


def _ancestors(graph_def, names) -> set[str]:
    """Returns the names of nodes and of all their dependencies."""
    nodes = {node.name: node for node in graph_def.node}
    found, stack = set(), [_node_of(name) for name in names]
    while stack:
        name = stack.pop()
        if name not in found:
            found.add(name)
            stack.extend(map(_node_of, nodes[name].input))
    return found


def _prune(graph_def, names) -> None:
    """Removes nodes that the named tensors and operations do not need, as TFF's runtime does."""
    needed = _ancestors(graph_def, names)
    for index in reversed(range(len(graph_def.node))):
        if graph_def.node[index].name not in needed:
            del graph_def.node[index]
    for node in graph_def.node:
        node.attr.pop("_class", None)  # may name a colocated node that was removed


def _drop_waits_for(graph_def, inputs: set[str]) -> None:
    """Removes control dependencies on inputs, which an import would not replace."""
    for node in graph_def.node:
        node.input[:] = [
            source
            for source in node.input
            if not (source.startswith("^") and _node_of(source) in inputs)
        ]


def _frozen_reads(graph_def) -> dict[str, Frozen]:
    """Makes placeholders of tensors that are read from files; see `Frozen.tensor`.

    Returns:
        The frozen weights, by the names of the placeholders.
    """
    nodes, found = {node.name: node for node in graph_def.node}, {}

    def source(node):
        return nodes[_node_of(node.input[0])]

    for node in graph_def.node:
        if node.op != "Reshape":
            continue
        decoded = source(node)
        if decoded.op in ("Bitcast", "Cast"):
            decoded = source(decoded)
        if decoded.op != "DecodeRaw" or source(decoded).op != "ReadFile":
            continue
        path = source(source(decoded))
        if path.op != "PlaceholderWithDefault":
            continue
        path = b"".join(source(path).attr["value"].tensor.string_val)
        if path.endswith(SUFFIX.encode()):
            shape = tf.make_ndarray(nodes[_node_of(node.input[1])].attr["value"].tensor)
            dtype = tf.DType(node.attr["T"].type)
            found[node.name] = Frozen(path.decode(), tuple(shape.tolist()), dtype)
            node.op = "Placeholder"
            del node.input[:]
            node.attr.clear()
            node.attr["dtype"].type = dtype.as_datatype_enum
    return found


def _separate_resources(graph_def) -> list[str]:
    """Gives each run its own variables and tables; returns the names of the variables' nodes."""
    variables = []
    for node in graph_def.node:
        if node.op == "VarHandleOp":
            node.attr["shared_name"].s = _ANONYMOUS.encode()
            node.attr["container"].s = b""
            variables.append(node.name)
        elif node.op in _ANONYMOUS_OPS:
            node.op = _ANONYMOUS_OPS[node.op]
            for attribute in _SHARING_ATTRIBUTES:
                node.attr.pop(attribute, None)
    return variables


def _initialize_first(graph_def, initialize_op: str) -> None:
    """Makes nodes that use the initialization's results wait for its end."""
    initialization = _ancestors(graph_def, [initialize_op])
    for node in graph_def.node:
        if node.name not in initialization and any(
            _node_of(source) in initialization for source in node.input
        ):
            node.input.append(f"^{_node_of(initialize_op)}")


def _load_library(graph_def, alone: Alone) -> list:
    """Removes the functions from a graph, and returns them as functions with Python graphs.

    Only functions with Python graphs can be vectorized. They get unique names, since functions of
    different computations often have the same name.
    """
    library = {definition.signature.name: definition for definition in graph_def.library.function}
    inline_calls(library)
    skip_round_trips(library)
    if alone is Alone.FULLY:
        separate_steps(graph_def.node, library)
    loaded: dict = {}
    loops: list = []
    scratch = tf.Graph()

    def load(name):
        if name in loaded or name not in library:
            return
        definition = library[name]
        _rename_outputs_of_reductions(definition)
        link(definition.node_def)
        loaded[name] = internals.concrete_function(definition, scratch, [*loaded.values(), *loops])

    def link(nodes):
        """Loads the functions that nodes call, and renames the calls."""
        for node in nodes:
            if node.op == "ReduceDataset":
                step = node.attr["f"].func.name
                load(step)
                loop = _reduction(node, loaded[step])
                loop.add_to_graph(scratch)
                loops.append(loop)
                _call(node, loop)
                continue
            load(node.op)
            if node.op in loaded:
                node.op = loaded[node.op].name.decode()
            for attribute in node.attr.values():
                for function in (attribute.func, *attribute.list.func):
                    load(function.name)
                    if function.name in loaded:
                        function.name = loaded[function.name].name.decode()

    link(graph_def.node)
    graph_def.ClearField("library")
    return [*loaded.values(), *loops]


def _reduction(node, step):
    """Returns a loop that replaces `ReduceDataset`, which prepares its function in each run."""
    num_states = len(node.attr["Tstate"].list.type)
    num_arguments = len(node.attr["Targuments"].list.type)
    inputs = step.graph.inputs
    elements = inputs[num_states : len(inputs) - num_arguments]
    element = {
        "output_types": [tensor.dtype for tensor in elements],
        "output_shapes": [tensor.shape for tensor in elements],
    }
    state_shapes = [tf.TensorShape(shape) for shape in node.attr["output_shapes"].list.shape]

    def reduce(dataset, *args):
        iterator = tf.raw_ops.AnonymousIteratorV3(**element)
        made = tf.raw_ops.MakeIterator(dataset=dataset, iterator=iterator)

        def take():
            return tf.raw_ops.IteratorGetNextAsOptional(iterator=iterator, **element)

        def body(optional, *state):
            values = tf.raw_ops.OptionalGetValue(optional=optional, **element)
            state = step(*state, *values, *args[num_states:])
            for tensor, shape in zip(state, state_shapes, strict=True):
                tensor.set_shape(shape)  # a step that reads variables loses shapes
            return take(), *state

        with tf.control_dependencies([made]):
            first = take()
        _, *state = tf.while_loop(
            lambda optional, *_: tf.raw_ops.OptionalHasValue(optional=optional),
            body,
            (first, *args[:num_states]),
            shape_invariants=(tf.TensorShape([]), *state_shapes),
        )
        return state

    specs = [tf.TensorSpec([], tf.variant)]
    dtypes = [tensor.dtype for tensor in inputs]
    specs += [tf.TensorSpec(*spec) for spec in zip(state_shapes, dtypes, strict=False)]
    specs += [tf.TensorSpec(t.shape, t.dtype) for t in inputs[len(inputs) - num_arguments :]]
    return tf.function(reduce, autograph=False).get_concrete_function(*specs)


def _call(node, function) -> None:
    """Turns a node into a call of a function with the same inputs and outputs."""
    node.op = "StatefulPartitionedCall"
    node.attr.clear()
    node.attr["f"].func.name = function.name.decode()
    for name, tensors in (("Tin", function.graph.inputs), ("Tout", function.graph.outputs)):
        node.attr[name].list.type.extend(tensor.dtype.as_datatype_enum for tensor in tensors)


def _rename_outputs_of_reductions(definition) -> None:
    """Renames outputs of `ReduceDataset` nodes, which will become calls, to outputs of calls."""
    reductions = {node.name for node in definition.node_def if node.op == "ReduceDataset"}

    def renamed(tensor):
        if tensor.split(":")[0] in reductions:
            return tensor.replace(":components:", ":output:")
        return tensor

    for node in definition.node_def:
        node.input[:] = [renamed(source) for source in node.input]
    definition.ret.update({name: renamed(tensor) for name, tensor in definition.ret.items()})
