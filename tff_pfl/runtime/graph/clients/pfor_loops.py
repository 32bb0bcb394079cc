"""Rules for loops of client work.

TensorFlow's rule for loops also covers clients that leave the loop at different steps. For these it
evaluates the condition with the body, branches at each step, and traces the body five times. Most
loops of client work are simpler, or their clients are in `lanes`, and use the rules of this module;
TensorFlow's rule is used for the rest.
"""

import contextlib
import functools

import tensorflow as tf

from tff_pfl.runtime.graph import internals
from tff_pfl.runtime.graph.clients import differing, flat, lanes, pfor_checks
from tff_pfl.runtime.graph.clients.pfor_functions import (
    function_of,
    given,
    length,
    parallel_for,
    stack,
    stack_more,
    vectorized,
    wrap_all,
)
from tff_pfl.runtime.graph.clients.pfor_rules import NotVectorizableError


def convert_while(general_rule, pfor_input):
    """Converts a loop of as many steps for all clients, or of clients in lanes."""
    pfor, inputs = pfor_input.pfor, pfor_input.inputs
    body, condition = function_of(pfor_input, "body"), function_of(pfor_input, "cond")
    if pfor.all_indices_partitioned:
        return general_rule(pfor_input)
    for index, x in enumerate(inputs):
        if isinstance(x, lanes.RowsOf) and not differing.is_kept(body, index):
            inputs[index] = internals.pfor_wrap(x.t, True)
    flags, finder = lanes.flags_of(inputs), differing.Differing()
    differ = finder.variables(body, list(map(bool, flags)))
    stacked = [was or now for was, now in zip(flags, differ, strict=True)]
    if getattr(pfor, "prefixes", ()) and any(finder.outputs(condition, differ)):
        return _convert_while_in_lanes(pfor_input, body, condition, stacked)
    while True:  # a variable that the body makes differ by client is stacked from the start
        if any(
            flag is True and x.t.dtype == tf.variant
            for x, flag in zip(inputs, stacked, strict=True)
        ):
            return general_rule(pfor_input)
        shapes = _shapes_of(body, stacked, None)
        carried = shapes if any(stacked) else list(map(flat.flat_shape, shapes))
        vectorized_body, after = vectorized(body, pfor, carried, stacked)
        if all(was or not now for was, now in zip(stacked, after, strict=True)):
            break
        stacked = [was or now for was, now in zip(stacked, after, strict=True)]
    vectorized_condition, (differs,) = vectorized(condition, pfor, carried, stacked, may_fail=False)
    if differs:
        return general_rule(pfor_input)

    number, failed = len(inputs), [tf.constant(0)] * hasattr(pfor, "failures")

    def step(*tensors):
        results = vectorized_body(*tensors[:number])
        failed = map(tf.maximum, tensors[number:], results[number:])
        results = stack_more(pfor, results[:number], after, stacked)
        for result, shape in zip(results, shapes, strict=True):
            result.set_shape(shape)  # which some rules lose
        return [*map(flat.in_shape, results, carried), *failed]

    first = stack_more(pfor, *given(inputs), stacked)
    results = tf.while_loop(
        lambda *tensors: vectorized_condition(*tensors[:number])[0],
        step,
        [*map(flat.in_shape, first, carried), *failed],
        shape_invariants=[*carried, *(x.shape for x in failed)],
        parallel_iterations=pfor_input.get_attr("parallel_iterations"),
    )
    results = pfor_checks.recorded(pfor, results, number)
    return wrap_all(map(flat.in_shape, results, shapes), stacked)


def _shapes_of(function, stacked, lanes_or_none):
    """Returns the shapes of the inputs of a vectorized function."""
    return [
        tf.TensorShape([])
        if isinstance(is_stacked, lanes.RowsOf)
        else tf.TensorShape([lanes_or_none]).concatenate(inner.shape)
        if is_stacked
        else inner.shape
        for inner, is_stacked in zip(function.graph.inputs, stacked, strict=True)
    ]


def _convert_while_in_lanes(pfor_input, body, condition, stacked):
    """Converts a loop that clients leave after different numbers of steps; see `lanes`.

    Variables that are the same for all clients in the loop, such as a count of steps, stay shared.
    Since clients leave it with different values, these are also kept in a stack.
    """
    pfor, inputs = pfor_input.pfor, pfor_input.inputs
    number, fails = len(inputs), hasattr(pfor, "failures")
    # Variables that change. XLA fails if constants pass through several loops.
    moving = [index for index in range(number) if not differing.is_kept(body, index)]
    shared = [index for index in moving if not stacked[index]]
    values = stack_more(pfor, *given(inputs), stacked)
    left = {index: stack(values[index], length(pfor)[tf.newaxis]) for index in shared}
    failed, active = [tf.constant(0)] * fails, None
    for now, later in zip(pfor.prefixes, [*pfor.prefixes[1:], 0], strict=True):
        phase = Phase(pfor, body, condition, stacked, values, moving, now)
        if active is None:
            active = phase.is_active(values)
            if pfor.active is not None:  # of the loop around this one
                active &= pfor.active
        own = [values[i][:now] if stacked[i] else values[i] for i in moving]
        own_left = [values_left[:now] for values_left in left.values()]
        active, failed, own, own_left = tf.while_loop(
            functools.partial(phase.is_needed, later),
            phase.step,
            (active[:now], failed, own, own_left),
            parallel_iterations=pfor_input.get_attr("parallel_iterations"),
        )
        for index, new in zip(moving, own, strict=True):
            if stacked[index]:
                new = lanes.put_prefix(new, values[index], now)
            values[index] = new
        for index, new in zip(left, own_left, strict=True):
            left[index] = lanes.put_prefix(new, left[index], now)
    pfor_checks.recorded(pfor, [*values, *failed], number)
    flags = [flag or index in left for index, flag in enumerate(stacked)]
    return wrap_all([left.get(index, value) for index, value in enumerate(values)], flags)


class Phase:
    """A loop on a prefix of the lanes."""

    def __init__(self, pfor, body, condition, stacked, values, moving, number: int):
        """Makes the loop on a number of lanes, which changes the `moving` variables."""
        self._body, self._condition, self._moving = body, condition, moving
        self._loop = parallel_for(tf.constant(number), (number,), getattr(pfor, "names", None))
        self._stacked = [
            flag.prefix(number) if isinstance(flag, lanes.RowsOf) else flag for flag in stacked
        ]
        self._shapes = _shapes_of(body, self._stacked, number)
        self._values = [
            value[:number] if flag is True else value
            for value, flag in zip(values, stacked, strict=True)
        ]

    def is_active(self, values) -> tf.Tensor:
        """Returns for each lane whether its client is in the loop."""
        condition, (differs,) = vectorized(
            self._condition, self._loop, self._shapes, self._stacked, may_fail=False
        )
        return stack_more(self._loop, condition(*values)[:1], [differs], [True])[0]

    def is_needed(self, later: int, active, *_) -> tf.Tensor:
        """Returns whether any client behind the next prefix is in the loop."""
        with self._on_host():
            return tf.reduce_any(active[later:])

    def step(self, active, failed, moving, left):
        """Makes a step in active lanes; arguments and results are those of the loop."""
        values = list(self._values)
        for index, value in zip(self._moving, moving, strict=True):
            values[index] = value
        self._loop.active = active
        body, after = vectorized(self._body, self._loop, self._shapes, self._stacked)
        if any(now and not was for was, now in zip(self._stacked, after, strict=True)):
            raise NotVectorizableError("a variable of a loop differs by client unexpectedly")
        results = body(*values)
        failed = list(map(tf.maximum, failed, results[len(values) :]))
        results = stack_more(self._loop, results[: len(values)], after, self._stacked)
        left = iter(left)
        own, own_left = [], []
        for index in self._moving:
            new, old = results[index], values[index]
            new.set_shape(self._shapes[index])  # which some rules lose
            if self._stacked[index]:
                new = lanes.where_active(active, new, old)
            else:
                copies = stack(new, length(self._loop)[tf.newaxis])
                own_left.append(lanes.where_active(active, copies, next(left)))
            own.append(new)
            values[index] = new
        still = self.is_active(values)
        with self._on_host():
            return active & still, failed, own, own_left

    def _on_host(self):
        """Returns a context in which a GPU need not be waited for to know what is active.

        It is known from integers, which are on the host. XLA places operations itself.
        """
        is_compiled = hasattr(self._loop, "failures")
        return contextlib.nullcontext() if is_compiled else tf.device("CPU:0")
