"""Vectorizes the functions that client work calls, and rules for calls and branches."""

import tensorflow as tf

from tff_pfl.runtime.graph import internals
from tff_pfl.runtime.graph.clients import flat, lanes, pfor_checks
from tff_pfl.runtime.graph.clients.pfor_rules import NotVectorizableError


def parallel_for(
    size: tf.Tensor, prefixes: tuple[int, ...] = (), names: dict[str, int] | None = None
):
    """Returns a parallel-for over a number of clients, without operations.

    Args:
        size: The number of clients.
        prefixes: The numbers of lanes on which loops run, if clients are in lanes; see `lanes`.
        names: Receives the numbers of operations that can fail, if the graph is compiled.
    """
    loop = internals.PFor(
        loop_var=tf.compat.v1.placeholder_with_default(0, []),  # unused
        loop_len=size,
        pfor_ops=[],
        fallback_to_while_loop=False,
    )
    loop.prefixes, loop.active = prefixes, None
    if names is not None:
        loop.names, loop.failures = names, []
    return loop


def length(pfor) -> tf.Tensor:
    """Returns the number of clients; XLA does not know constants from outside of two loops."""
    prefixes = getattr(pfor, "prefixes", ())
    return tf.constant(prefixes[0]) if prefixes else pfor.loop_len_vector[0]


def stack(tensor, size):
    """Stacks a tensor `size` times by a gather, which, unlike `tf.tile`, copies whole rows."""
    if tensor.dtype == tf.variant:
        return internals.pfor_stack(tensor, size).t
    return tf.gather(tensor[tf.newaxis], tf.zeros(size, tf.int32))


def function_of(pfor_input, attribute: str):
    """Returns the function that an attribute of an operation names."""
    return pfor_input.op.graph._get_function(pfor_input.get_attr(attribute).name)


def vectorized(function, pfor, shapes, are_stacked, may_fail: bool = True):
    """Returns the vectorized function, and whether each of its outputs is stacked.

    If it is compiled, it has a further output, see `pfor_checks.first_failure`.
    """
    concrete, outputs_are_stacked = traced(function, pfor, shapes, are_stacked, may_fail)

    def call(*tensors):
        results = concrete(*tensors)
        for index, is_stacked in enumerate(outputs_are_stacked):
            if not is_stacked:
                shape = function.graph.outputs[index].shape
                results[index] = flat.in_shape(results[index], shape)
        return results

    return call, outputs_are_stacked


def traced(function, pfor, shapes, are_stacked, may_fail: bool = True):
    """Like `vectorized`, but the function is concrete, and its results may be flat."""
    outputs_are_stacked: list[bool] = []

    def convert(*tensors):
        converter = internals.PFor(
            loop_var=pfor.loop_var,
            loop_len=length(pfor),
            pfor_ops=function.graph.get_operations(),
            fallback_to_while_loop=pfor.fallback_to_while_loop,
            all_indices=pfor.all_indices,
            all_indices_partitioned=pfor.all_indices_partitioned,
            pfor_config=pfor.pfor_config,
        )
        converter.prefixes = getattr(pfor, "prefixes", ())
        converter.active = getattr(pfor, "active", None)
        if hasattr(pfor, "failures"):
            converter.names, converter.failures = pfor.names, []
        for inner, tensor, is_stacked in zip(
            function.graph.inputs, tensors, are_stacked, strict=True
        ):
            value = tensor if is_stacked else flat.in_shape(tensor, inner.shape)
            converter._add_conversion(inner, *wrap_all([value], [is_stacked]))
        for operation in function.graph.control_outputs:  # assertions, say
            converter._convert_helper(operation.outputs[0] if operation.outputs else operation)
        outputs = [converter._convert_helper(output) for output in function.graph.outputs]
        outputs_are_stacked[:] = lanes.flags_of(outputs)
        if not may_fail and getattr(converter, "failures", ()):
            raise NotVectorizableError("operations that can fail, in the condition of a loop")
        results = [
            flat.without_reshape(tensor)
            if not is_stacked and inner.shape.is_fully_defined()
            else tensor
            for tensor, is_stacked, inner in zip(
                map(_tensor, outputs), outputs_are_stacked, function.graph.outputs, strict=True
            )
        ]
        return results + pfor_checks.first_failure(converter)

    dtypes = [inner.dtype for inner in function.graph.inputs]
    specs = [tf.TensorSpec(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
    concrete = tf.function(convert, autograph=False).get_concrete_function(*specs)
    return concrete, outputs_are_stacked


def given(inputs) -> tuple[list[tf.Tensor], list[bool]]:
    """Returns the tensors to give to a vectorized function, and whether each is stacked."""
    flags = lanes.flags_of(inputs)
    tensors = [x.t if flag is True else _tensor(x) for x, flag in zip(inputs, flags, strict=True)]
    return [
        t if flag else flat.without_reshape(t) for t, flag in zip(tensors, flags, strict=True)
    ], flags


def _tensor(x) -> tf.Tensor:
    """Returns the tensor to give to a vectorized function, or to return from it."""
    return lanes.unused(x) if isinstance(x, lanes.RowsOf) else x.t


def wrap_all(tensors, are_stacked) -> list:
    """Wraps tensors, given `lanes.flags_of` them."""
    return [
        stacked if isinstance(stacked, lanes.RowsOf) else internals.pfor_wrap(t, stacked)
        for t, stacked in zip(tensors, are_stacked, strict=True)
    ]


def convert_call(pfor_input):
    """Calls the vectorized function."""
    tensors, are_stacked = given(pfor_input.inputs)
    call, are_stacked = vectorized(
        function_of(pfor_input, "f"), pfor_input.pfor, [x.shape for x in tensors], are_stacked
    )
    results = call(*tensors)
    return wrap_all(pfor_checks.recorded(pfor_input.pfor, results, len(are_stacked)), are_stacked)


def convert_if(general_rule, pfor_input):
    """Takes one branch for all clients if their condition is the same."""
    condition, *inputs = pfor_input.inputs
    pfor = pfor_input.pfor
    branches = [function_of(pfor_input, name) for name in ("then_branch", "else_branch")]
    if condition.is_stacked or condition.t.dtype != tf.bool:
        pfor_checks.check_branches(pfor, branches)
        return general_rule(pfor_input)
    tensors, are_stacked = given(inputs)
    then, otherwise = (
        vectorized(branch, pfor, [x.shape for x in tensors], are_stacked) for branch in branches
    )
    either = [one or other for one, other in zip(then[1], otherwise[1], strict=True)]

    def branch(call, own):
        results = call(*tensors)
        number = len(either)
        return [*stack_more(pfor, results[:number], own, either), *results[number:]]

    results = tf.cond(condition.t, lambda: branch(*then), lambda: branch(*otherwise))
    return wrap_all(pfor_checks.recorded(pfor, results, len(either)), either)


def stack_more(pfor, tensors, are_stacked, wanted):
    """Stacks the tensors that are wanted stacked, but are not."""
    return [
        stack(tensor, length(pfor)[tf.newaxis]) if is_wanted and not is_stacked else tensor
        for tensor, is_stacked, is_wanted in zip(tensors, are_stacked, wanted, strict=True)
    ]
