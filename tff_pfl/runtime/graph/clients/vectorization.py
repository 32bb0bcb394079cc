"""Vectorizes a function over clients, by the rules of TensorFlow's parallel-for and others.

This module has the rules for function calls, loops and broadcasting. TensorFlow's rule for loops
also covers clients that leave the loop at different steps. For these it evaluates the condition
with the body, branches at each step, and traces the body five times. Most loops of client work are
simpler and use the rule of this module; TensorFlow's rule is used for the rest.
"""

import contextlib
import functools

import tensorflow as tf

from tff_pfl.runtime.graph import internals
from tff_pfl.runtime.graph.clients import (
    flat,
    pfor_checks,
    pfor_convolutions,
    pfor_random,
    pfor_rules,
)
from tff_pfl.runtime.graph.clients.pfor_rules import NotVectorizableError, same_op

# The operations of lists of tensors in loops, and branches by number.
_REFUSED = ("TensorList", "Case", "StatelessCase")

# Operations with functions, in which clients may draw the same random numbers.
_WITH_FUNCTIONS = (
    "Case",
    "If",
    "PartitionedCall",
    "StatefulPartitionedCall",
    "StatelessCase",
    "StatelessIf",
    "StatelessWhile",
    "While",
)


def vectorize(
    function, size: tf.Tensor, stacks, compiled: bool = False, names: dict[str, int] | None = None
) -> list[tf.Tensor]:
    """Calls a function on each row of its inputs.

    Args:
        function: A concrete function; its captured tensors are the same for all rows.
        size: The number of rows.
        stacks: The inputs, stacked on a leading axis.
        compiled: Whether XLA compiles the graph.
        names: Receives the numbers of operations that can fail, if the graph is compiled.

    Returns:
        The outputs, stacked on a leading axis. With `names`, the last output is the number of an
        operation that fails, or 0.
    """
    with installed(compiled):
        loop = _parallel_for(size)
        if compiled:
            loop.names, loop.failures = {} if names is None else names, []
        inputs = [*stacks, *function.captured_inputs]
        are_stacked = [True] * len(stacks) + [False] * len(function.captured_inputs)
        vectorized, are_stacked = _vectorize(function, loop, [x.shape for x in inputs], are_stacked)
        outputs = pfor_checks.recorded(loop, vectorized(*inputs), len(are_stacked))
        outputs = [
            output if is_stacked else _stack(output, loop.loop_len_vector)
            for output, is_stacked in zip(outputs, are_stacked, strict=True)
        ]
        return outputs + pfor_checks.first_failure(loop) * (names is not None)


def alone(function, names: dict[str, int]):
    """Returns a function for one client with the draws and checks of compiled client work.

    Args:
        function: A concrete function.
        names: Receives the numbers of operations that can fail.

    Returns:
        A concrete function of the inputs and the captured inputs, all flat. Results may be flat.
        The last output is the number of an operation that fails, or 0.
    """
    inputs = function.graph.inputs
    with installed(compiled=True, alone=True):
        loop = _parallel_for(tf.constant(1))
        loop.names, loop.failures = names, []
        shapes = [flat.flat_shape(x.shape) for x in inputs]
        return _traced(function, loop, shapes, [False] * len(inputs))[0]


def _parallel_for(size: tf.Tensor):
    """Returns a parallel-for over a number of clients, without operations."""
    return internals.PFor(
        loop_var=tf.compat.v1.placeholder_with_default(0, []),  # unused
        loop_len=size,
        pfor_ops=[],
        fallback_to_while_loop=False,
    )


@contextlib.contextmanager
def installed(compiled: bool = False, alone: bool = False):
    """Installs these rules in TensorFlow for the duration of the context.

    Args:
        compiled: Whether XLA compiles the graph.
        alone: Whether no tensor differs by client, so that lists of tensors stay as they are.
    """
    before, always = dict(internals.pfor_rules), set(internals.pfor_always_converted)
    expand = internals.PForInput.expanddim_inputs_for_broadcast
    try:
        general = before | pfor_rules.rules(before) | pfor_convolutions.rules(before)
        own = {
            "PartitionedCall": _convert_call,
            "StatefulPartitionedCall": _convert_call,
            "If": functools.partial(_convert_if, general["If"]),
            "StatelessIf": functools.partial(_convert_if, general["StatelessIf"]),
            "BiasAdd": functools.partial(_convert_bias_add, general["BiasAdd"]),
            "ClipByValue": functools.partial(_convert_clip, general["ClipByValue"]),
            "Select": _convert_select,
            "Squeeze": _convert_squeeze,
            "StatelessWhile": functools.partial(_convert_while, general["StatelessWhile"]),
            **pfor_random.rules(general, compiled),
            "While": functools.partial(_convert_while, general["While"]),
        }
        refused = {name: _refuse for name in general if name.startswith(_REFUSED)}
        rules = general | own | refused
        if compiled:
            rules |= pfor_checks.rules(rules)
        if alone:
            rules |= flat.rules(rules) | {"TensorListReserve": _reserve}
            internals.pfor_always_converted.update(flat.OPERATIONS)
        for name, rule in rules.items():
            internals.pfor_rules[name] = _escaping(rule)
        own_expand = functools.partialmethod(_expand, expand)
        internals.PForInput.expanddim_inputs_for_broadcast = own_expand
        if compiled:
            internals.pfor_always_converted.update(
                _WITH_FUNCTIONS, pfor_random.OPERATIONS, pfor_checks.OPERATIONS
            )
        yield
    except _Escape as escape:
        raise NotVectorizableError(str(escape)) from escape.__cause__
    finally:
        internals.pfor_rules.update(before)
        for name in internals.pfor_rules.keys() - before.keys():
            del internals.pfor_rules[name]
        internals.pfor_always_converted.intersection_update(always)
        internals.pfor_normalization_cache.clear()  # it would keep graphs alive for ever
        internals.PForInput.expanddim_inputs_for_broadcast = expand


def _refuse(pfor_input):
    """Refuses an operation whose rule in TensorFlow makes a graph that fails when it runs."""
    raise NotImplementedError(f"{pfor_input.op_type} of tensors that differ by client")


def _reserve(pfor_input):
    """Keeps a list of a number of tensors that XLA can know, unlike that of a gradient."""
    tensors = [x.t for x in pfor_input.inputs]
    if any(tensor.op.type == "TensorListPopBack" for tensor in tensors):
        raise NotImplementedError("the gradient of a list of tensors in a loop")
    return internals.pfor_wrap(same_op(pfor_input, tensors)[0], False)


class _Escape(BaseException):
    """An exception that passes through parallel-for, which would log an `Exception` as an error."""


def _escaping(rule):
    def escaping(pfor_input):
        try:
            return rule(pfor_input)
        except Exception as error:
            raise _Escape(f"{pfor_input.op_type}: {error}") from error

    return escaping


def _expand(pfor_input, general_rule):
    """Inserts axes for broadcasting, without operations in the graph if ranks are known."""
    inputs = pfor_input._inputs
    ranks = [None if x.t.shape.rank is None else x.t.shape.rank - x.is_stacked for x in inputs]
    if None in ranks:
        return general_rule(pfor_input)
    for index, (x, rank) in enumerate(zip(inputs, ranks, strict=True)):
        if x.is_stacked and rank < max(ranks):
            shape = tf.shape(x.t)
            ones = [1] * (max(ranks) - rank)
            inputs[index] = internals.pfor_wrap(
                tf.reshape(x.t, tf.concat([shape[:1], ones, shape[1:]], axis=0)), True
            )


def _stack(tensor, size):
    """Stacks a tensor `size` times by a gather, which, unlike `tf.tile`, copies whole rows."""
    if tensor.dtype == tf.variant:
        return internals.pfor_stack(tensor, size).t
    return tf.gather(tensor[tf.newaxis], tf.zeros(size, tf.int32))


def _convert_select(pfor_input):
    """Selects rows by a vector of conditions, as the operation itself does."""
    condition, *branches = (
        x.t if x.is_stacked else _stack(x.t, pfor_input.pfor.loop_len_vector)
        for x in pfor_input.inputs
    )
    if condition.shape.rank != 1 and condition.shape.rank != branches[0].shape.rank:
        raise NotImplementedError("Select with conditions of unknown rank is not supported")
    selected = tf.raw_ops.Select(condition=condition, x=branches[0], y=branches[1])
    return internals.pfor_wrap(selected, True)


def _convert_bias_add(general_rule, pfor_input):
    """Refuses stacked biases with channels first, which TensorFlow's rule treats as last."""
    if pfor_input.inputs[1].is_stacked and pfor_input.get_attr("data_format") == b"NCHW":
        return _refuse(pfor_input)
    return general_rule(pfor_input)


def _convert_clip(general_rule, pfor_input):
    """Refuses bounds that are not shared scalars; graphs of TensorFlow's rule fail at run time."""
    if any(bound.is_stacked or bound.t.shape.rank != 0 for bound in pfor_input.inputs[1:]):
        return _refuse(pfor_input)
    return general_rule(pfor_input)


def _convert_squeeze(pfor_input):
    """Squeezes explicit axes, since TensorFlow's rule may otherwise drop a single client's axis."""
    (tensor,) = pfor_input.inputs
    shape = pfor_input.op.inputs[0].shape
    axes = [axis % shape.rank for axis in pfor_input.get_attr("squeeze_dims")] if shape.rank else []
    if not axes:
        if not shape.is_fully_defined():
            raise NotImplementedError(
                "Squeeze of unnamed axes of a tensor of unknown shape is not supported"
            )
        axes = [axis for axis, length in enumerate(shape) if length == 1]
    axes = [axis + tensor.is_stacked for axis in axes]
    squeezed = tf.squeeze(tensor.t, axes) if axes else tensor.t
    return internals.pfor_wrap(squeezed, tensor.is_stacked)


def _function(pfor_input, attribute):
    return pfor_input.op.graph._get_function(pfor_input.get_attr(attribute).name)


def _vectorize(function, pfor, shapes, are_stacked, may_fail: bool = True):
    """Returns the vectorized function, and whether each of its outputs is stacked.

    If it is compiled, it has a further output, see `pfor_checks.first_failure`.
    """
    traced, outputs_are_stacked = _traced(function, pfor, shapes, are_stacked, may_fail)

    def call(*tensors):
        results = traced(*tensors)
        for index, is_stacked in enumerate(outputs_are_stacked):
            if not is_stacked:
                shape = function.graph.outputs[index].shape
                results[index] = flat.in_shape(results[index], shape)
        return results

    return call, outputs_are_stacked


def _traced(function, pfor, shapes, are_stacked, may_fail: bool = True):
    """Like `_vectorize`, but the function is concrete, and its results may be flat."""
    outputs_are_stacked: list[bool] = []

    def vectorized(*tensors):
        converter = internals.PFor(
            loop_var=pfor.loop_var,
            loop_len=pfor.loop_len_vector[0],
            pfor_ops=function.graph.get_operations(),
            fallback_to_while_loop=pfor.fallback_to_while_loop,
            all_indices=pfor.all_indices,
            all_indices_partitioned=pfor.all_indices_partitioned,
            pfor_config=pfor.pfor_config,
        )
        if hasattr(pfor, "failures"):
            converter.names, converter.failures = pfor.names, []
        for inner, tensor, is_stacked in zip(
            function.graph.inputs, tensors, are_stacked, strict=True
        ):
            given = tensor if is_stacked else flat.in_shape(tensor, inner.shape)
            converter._add_conversion(inner, internals.pfor_wrap(given, is_stacked))
        for operation in function.graph.control_outputs:  # assertions, say
            converter._convert_helper(operation.outputs[0] if operation.outputs else operation)
        outputs = [converter._convert_helper(output) for output in function.graph.outputs]
        outputs_are_stacked[:] = [output.is_stacked for output in outputs]
        if not may_fail and getattr(converter, "failures", ()):
            raise NotVectorizableError("operations that can fail, in the condition of a loop")
        results = [
            flat.without_reshape(output.t)
            if not output.is_stacked and inner.shape.is_fully_defined()
            else output.t
            for output, inner in zip(outputs, function.graph.outputs, strict=True)
        ]
        return results + pfor_checks.first_failure(converter)

    dtypes = [inner.dtype for inner in function.graph.inputs]
    specs = [tf.TensorSpec(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
    traced = tf.function(vectorized, autograph=False).get_concrete_function(*specs)
    return traced, outputs_are_stacked


def _given(inputs) -> tuple[list[tf.Tensor], list[bool]]:
    """Returns the tensors to give to a vectorized function, and whether each is stacked."""
    are_stacked = [x.is_stacked for x in inputs]
    return [x.t if x.is_stacked else flat.without_reshape(x.t) for x in inputs], are_stacked


def _wrap_all(tensors, are_stacked):
    return [
        internals.pfor_wrap(t, stacked) for t, stacked in zip(tensors, are_stacked, strict=True)
    ]


def _convert_call(pfor_input):
    tensors, are_stacked = _given(pfor_input.inputs)
    vectorized, are_stacked = _vectorize(
        _function(pfor_input, "f"), pfor_input.pfor, [x.shape for x in tensors], are_stacked
    )
    results = vectorized(*tensors)
    return _wrap_all(pfor_checks.recorded(pfor_input.pfor, results, len(are_stacked)), are_stacked)


def _convert_if(general_rule, pfor_input):
    condition, *inputs = pfor_input.inputs
    pfor = pfor_input.pfor
    branches = [_function(pfor_input, name) for name in ("then_branch", "else_branch")]
    if condition.is_stacked or condition.t.dtype != tf.bool:
        pfor_checks.check_branches(pfor, branches)
        return general_rule(pfor_input)
    tensors, are_stacked = _given(inputs)
    then, otherwise = (
        _vectorize(branch, pfor, [x.shape for x in tensors], are_stacked) for branch in branches
    )
    either = [one or other for one, other in zip(then[1], otherwise[1], strict=True)]

    def branch(vectorized, own):
        results = vectorized(*tensors)
        number = len(either)
        return [*_stack_more(pfor, results[:number], own, either), *results[number:]]

    results = tf.cond(condition.t, lambda: branch(*then), lambda: branch(*otherwise))
    return _wrap_all(pfor_checks.recorded(pfor, results, len(either)), either)


def _stack_more(pfor, tensors, are_stacked, wanted):
    """Stacks the tensors that are wanted stacked, but are not."""
    return [
        _stack(tensor, pfor.loop_len_vector) if is_wanted and not is_stacked else tensor
        for tensor, is_stacked, is_wanted in zip(tensors, are_stacked, wanted, strict=True)
    ]


def _convert_while(general_rule, pfor_input):
    pfor, inputs = pfor_input.pfor, pfor_input.inputs
    body, condition = _function(pfor_input, "body"), _function(pfor_input, "cond")
    stacked = [x.is_stacked for x in inputs]
    if pfor.all_indices_partitioned:
        return general_rule(pfor_input)
    while True:  # a variable that the body makes differ by client is stacked from the start
        if any(flag and x.t.dtype == tf.variant for x, flag in zip(inputs, stacked, strict=True)):
            return general_rule(pfor_input)
        shapes = [
            tf.TensorShape([None]).concatenate(inner.shape) if is_stacked else inner.shape
            for inner, is_stacked in zip(body.graph.inputs, stacked, strict=True)
        ]
        carried = shapes if any(stacked) else list(map(flat.flat_shape, shapes))
        vectorized_body, after = _vectorize(body, pfor, carried, stacked)
        if all(was or not now for was, now in zip(stacked, after, strict=True)):
            break
        stacked = [was or now for was, now in zip(stacked, after, strict=True)]
    vectorized_condition, (differs,) = _vectorize(condition, pfor, carried, stacked, may_fail=False)
    if differs:
        return general_rule(pfor_input)

    number, failed = len(inputs), [tf.constant(0)] * hasattr(pfor, "failures")

    def step(*tensors):
        results = vectorized_body(*tensors[:number])
        failed = map(tf.maximum, tensors[number:], results[number:])
        results = _stack_more(pfor, results[:number], after, stacked)
        for result, shape in zip(results, shapes, strict=True):
            result.set_shape(shape)  # which some rules lose
        return [*map(flat.in_shape, results, carried), *failed]

    first = _stack_more(pfor, [x.t for x in inputs], [x.is_stacked for x in inputs], stacked)
    results = tf.while_loop(
        lambda *tensors: vectorized_condition(*tensors[:number])[0],
        step,
        [*map(flat.in_shape, first, carried), *failed],
        shape_invariants=[*carried, *(x.shape for x in failed)],
        parallel_iterations=pfor_input.get_attr("parallel_iterations"),
    )
    results = pfor_checks.recorded(pfor, results, number)
    return _wrap_all(map(flat.in_shape, results, shapes), stacked)
