"""Vectorizes a function over clients, by the rules of TensorFlow's parallel-for and others.

This module has the rules for broadcasting and for single operations; `pfor_functions` has those for
calls and branches, and `pfor_loops` those for loops.
"""

import contextlib
import functools

import tensorflow as tf

from tff_pfl.runtime.graph import internals
from tff_pfl.runtime.graph.clients import (
    flat,
    lanes,
    pfor_checks,
    pfor_convolutions,
    pfor_random,
    pfor_rules,
)
from tff_pfl.runtime.graph.clients.pfor_functions import (
    convert_call,
    convert_if,
    given,
    parallel_for,
    stack,
    traced,
    vectorized,
)
from tff_pfl.runtime.graph.clients.pfor_loops import convert_while
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
    function,
    size: tf.Tensor,
    stacks,
    compiled: bool = False,
    names: dict[str, int] | None = None,
    prefixes: tuple[int, ...] = (),
) -> list[tf.Tensor]:
    """Calls a function on each row of its inputs.

    Args:
        function: A concrete function; its captured tensors are the same for all rows.
        size: The number of rows.
        stacks: The inputs, stacked on a leading axis, or `RowsOf`.
        compiled: Whether XLA compiles the graph.
        names: Receives the numbers of operations that can fail, if the graph is compiled.
        prefixes: The numbers of lanes of loops that rows leave after different numbers of steps, if
            rows are clients in lanes; see `lanes`.

    Returns:
        The outputs, stacked on a leading axis. With `names`, the last output is the number of an
        operation that fails, or 0.
    """
    with installed(compiled, has_lanes=bool(prefixes)):
        loop = parallel_for(size, prefixes, ({} if names is None else names) if compiled else None)
        rows = [x if isinstance(x, lanes.RowsOf) else internals.pfor_wrap(x, True) for x in stacks]
        shared = [internals.pfor_wrap(x, False) for x in function.captured_inputs]
        inputs, are_stacked = given([*rows, *shared])
        call, are_stacked = vectorized(function, loop, [x.shape for x in inputs], are_stacked)
        outputs = pfor_checks.recorded(loop, call(*inputs), len(are_stacked))
        outputs = [
            output if is_stacked else stack(output, loop.loop_len_vector)
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
        loop = parallel_for(tf.constant(1), names=names)
        shapes = [flat.flat_shape(x.shape) for x in inputs]
        return traced(function, loop, shapes, [False] * len(inputs))[0]


@contextlib.contextmanager
def installed(compiled: bool = False, alone: bool = False, has_lanes: bool = False):
    """Installs these rules in TensorFlow for the duration of the context.

    Args:
        compiled: Whether XLA compiles the graph.
        alone: Whether no tensor differs by client, so that lists of tensors stay as they are.
        has_lanes: Whether clients are in lanes; see `lanes`.
    """
    before, always = dict(internals.pfor_rules), set(internals.pfor_always_converted)
    expand = internals.PForInput.expanddim_inputs_for_broadcast
    try:
        general = before | pfor_rules.rules(before) | pfor_convolutions.rules(before)
        own = {
            "PartitionedCall": convert_call,
            "StatefulPartitionedCall": convert_call,
            "If": functools.partial(convert_if, general["If"]),
            "StatelessIf": functools.partial(convert_if, general["StatelessIf"]),
            "BiasAdd": functools.partial(_convert_bias_add, general["BiasAdd"]),
            "ClipByValue": functools.partial(_convert_clip, general["ClipByValue"]),
            "Select": _convert_select,
            "Squeeze": _convert_squeeze,
            "StatelessWhile": functools.partial(convert_while, general["StatelessWhile"]),
            **pfor_random.rules(general, compiled),
            "While": functools.partial(convert_while, general["While"]),
        }
        refused = {name: _refuse for name in general if name.startswith(_REFUSED)}
        rules = general | own | refused
        if has_lanes:
            rules |= lanes.rules(rules)
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


def _convert_select(pfor_input):
    """Selects rows by a vector of conditions, as the operation itself does."""
    condition, *branches = (
        x.t if x.is_stacked else stack(x.t, pfor_input.pfor.loop_len_vector)
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
