"""Keeps failures of client work that XLA would turn into numbers.

On CPUs an operation fails if an index is out of range or an integer is divided by 0. XLA moves such
an index into the range, or drops its row, and computes some quotient. Here each such operation also
computes whether its operands are valid. The number of an operation that fails passes through
functions and loops beside the results, and `compilation` raises an error outside of compiled code.

Maxima, minima and clipped values of NaN are NaN, which XLA on CPUs does not ensure either.
"""

import math
from collections.abc import Callable, Sequence

import tensorflow as tf

from tff_pfl.runtime.graph.clients.lanes import RowsOf
from tff_pfl.runtime.graph.clients.pfor_rules import NotVectorizableError, same_op
from tff_pfl.runtime.graph.internals import pfor_wrap as wrap
from tff_pfl.runtime.graph.operations import operations
from tff_pfl.tracing.origins import Origin

_RANGE, _ZERO = "an index is out of range", "an integer is divided by 0"


def record(pfor, failed: tf.Tensor) -> None:
    """Adds the number of an operation that fails, or 0, to those of a parallel-for.

    Raises:
        NotVectorizableError: TensorFlow's own rule, of a branch for example, made the parallel-for.
    """
    if not hasattr(pfor, "failures"):
        raise NotVectorizableError("Operations that can fail, in a branch or a loop of clients")
    pfor.failures.append(failed)


def recorded(pfor, results: Sequence[tf.Tensor], number: int) -> Sequence[tf.Tensor]:
    """Returns the first `number` results of a vectorized function, and records a further one."""
    for failed in results[number:]:
        record(pfor, failed)
    return results[:number]


def first_failure(pfor) -> list[tf.Tensor]:
    """Returns the number of an operation that fails, or 0; nothing where nothing is recorded."""
    if not hasattr(pfor, "failures"):
        return []
    return [tf.reduce_max(tf.stack([tf.constant(0), *pfor.failures]))]


def check_branches(pfor, branches: Sequence) -> None:
    """Checks that branches between which each client chooses can be compiled.

    Raises:
        NotVectorizableError: XLA would compile a convolution in a branch, which ends the process if
            no client takes the branch.
    """
    found = (operation for branch in branches for operation in operations(branch.graph))
    if hasattr(pfor, "failures") and any("Conv" in operation.type for operation in found):
        raise NotVectorizableError("convolutions in a branch that perhaps no client takes")


def rules(general: dict[str, Callable]) -> dict[str, Callable]:
    """Returns the rules of compiled client work by type of operation; `general` has the others."""
    checked = {
        kind: _checked(general.get(kind), check, reason) for kind, (check, reason) in CHECKS.items()
    }
    return checked | {kind: _with_nan(general[kind], kept) for kind, kept in _NAN.items()}


def _checked(rule, check, reason):
    def convert(pfor_input):
        is_valid = check(pfor_input)
        if is_valid is not None:
            names = getattr(pfor_input.pfor, "names", {})
            origin = Origin.of(pfor_input.op.node_def)
            name = f"{pfor_input.op_type} ({pfor_input.op.name}): {reason}"
            if origin is not None:
                name = f"{origin.operation} of {origin.block}{origin.place}: {reason}"
            number = names.setdefault(name, len(names) + 1)
            is_valid = _where_active(pfor_input, is_valid)
            record(pfor_input.pfor, tf.where(tf.reduce_all(is_valid), 0, number))
        return _converted(rule, pfor_input)

    return convert


def _where_active(pfor_input, is_valid):
    """Returns whether operands are valid, of clients that are in the loop; see `lanes`."""
    active = getattr(pfor_input.pfor, "active", None)
    checked = pfor_input.inputs[:1] if pfor_input.op_type == "ScatterNd" else pfor_input.inputs[1:]
    if active is None or not any(x.is_stacked for x in checked):
        return is_valid
    return is_valid | ~tf.reshape(active, [-1] + [1] * (is_valid.shape.rank - 1))


def _converted(rule, pfor_input):
    if not any(x.is_stacked for x in pfor_input.inputs):
        return [wrap(t, False) for t in same_op(pfor_input, [x.t for x in pfor_input.inputs])]
    if rule is None:
        raise NotVectorizableError("there is no rule for it")
    outputs = rule(pfor_input)
    return outputs if isinstance(outputs, list) else [outputs]


# The checks return whether operands are valid, or `None` if they are known to be.


def _inside(indices, sizes):
    return (indices >= 0) & (indices < tf.cast(sizes, indices.dtype))


def _shape(x) -> tf.Tensor:
    """Returns the shape of a client's tensor, int64."""
    if isinstance(x, RowsOf):
        return x.shape(tf.int64)
    return tf.shape(x.t, tf.int64)[int(x.is_stacked) :]


def _gather(pfor_input):
    params, indices, *axis = pfor_input.inputs
    axis = tf.get_static_value(axis[0].t) if axis else 0
    if axis is None:
        raise NotVectorizableError("its axis is unknown")
    return _inside(indices.t, _shape(params)[int(axis)])


def _in_tensor(pfor_input):
    tensor, indices, *_ = pfor_input.inputs
    return _inside(indices.t, _shape(tensor)[: tf.shape(indices.t)[-1]])


def _in_new_tensor(pfor_input):
    indices, _, shape = pfor_input.inputs
    return _inside(indices.t, shape.t[..., : tf.shape(indices.t)[-1]])


def _slice(pfor_input):
    tensor, begin, size = pfor_input.inputs
    if tf.get_static_value(begin.t) is not None:
        return None
    begins, sizes = (tf.cast(x.t, tf.int64) for x in (begin, size))
    return (begins >= 0) & (begins + tf.maximum(sizes, 0) <= _shape(tensor))


def _strided_slice(pfor_input):
    """Checks places, such as of `x[i]`; ranges, such as `x[i:]`, may go beyond the end."""
    tensor, begin, *_ = pfor_input.inputs
    if tf.get_static_value(begin.t) is not None:
        return None
    if pfor_input.get_attr("ellipsis_mask") or pfor_input.get_attr("new_axis_mask"):
        raise NotVectorizableError("a place beside '...' or tf.newaxis")
    number, mask = begin.t.shape[-1], pfor_input.get_attr("shrink_axis_mask")
    begins, sizes = tf.cast(begin.t, tf.int64), _shape(tensor)[:number]
    is_range = [not mask >> axis & 1 for axis in range(number)]
    return is_range | ((begins >= -sizes) & (begins < sizes))


def _divisor(pfor_input):
    divisor = pfor_input.inputs[1].t
    known = tf.get_static_value(divisor)
    if not divisor.dtype.is_integer or (known is not None and known.all()):
        return None
    return tf.not_equal(divisor, tf.zeros([], divisor.dtype))


def _exponent(pfor_input):
    exponent = pfor_input.inputs[1].t
    return exponent >= 0 if exponent.dtype.is_integer else None


def _segments(pfor_input):
    _, segments, number = pfor_input.inputs
    return segments.t < tf.cast(number.t, segments.t.dtype)


def _labels(pfor_input):
    logits, labels = pfor_input.inputs
    return _inside(labels.t, _shape(logits)[-1])


CHECKS = {
    **dict.fromkeys(("Gather", "GatherV2"), (_gather, _RANGE)),
    "GatherNd": (_in_tensor, _RANGE),
    "ScatterNd": (_in_new_tensor, _RANGE),
    **{
        f"TensorScatter{name}": (_in_tensor, _RANGE)
        for name in ("Update", "Add", "Sub", "Max", "Min")
    },
    "Slice": (_slice, _RANGE),
    "StridedSlice": (_strided_slice, _RANGE),
    **{
        name: (_divisor, _ZERO)
        for name in ("Div", "FloorDiv", "FloorMod", "Mod", "TruncateDiv", "TruncateMod")
    },
    "Pow": (_exponent, "an integer has a negative power"),
    **{
        f"UnsortedSegment{name}": (_segments, "a segment is out of range")
        for name in ("Max", "Min", "Prod", "Sum")
    },
    "SparseSoftmaxCrossEntropyWithLogits": (_labels, "a label is out of range"),
}
"""The check and the reason of a failure for each type of operation that XLA does not let fail."""


def _elementwise(rule, pfor_input, output):
    """Returns NaN where an operand is NaN, otherwise the output; `rule` aligned the operands."""
    del rule
    total, *others = [x.t for x in pfor_input.inputs]
    if pfor_input.op_type != "ClipByValue":  # whose other operands are bounds
        total = sum(others, total)
    return tf.where(tf.math.is_nan(total), total, output)


def _reduced(sign):
    def kept(rule, pfor_input, output):
        values = pfor_input.inputs[0]
        marks = tf.where(tf.math.is_nan(values.t), tf.cast(sign, values.t.dtype), 0)
        pfor_input.inputs[0] = wrap(marks, values.is_stacked)
        found, nan = _converted(rule, pfor_input)[0].t, tf.cast(math.nan, output.dtype)
        return tf.where(found == tf.cast(sign, found.dtype), nan, output)

    return kept


_NAN = {
    **dict.fromkeys(("Maximum", "Minimum", "Relu6", "ClipByValue"), _elementwise),
    "Max": _reduced(1),
    "Min": _reduced(-1),
}


def _with_nan(rule, kept):
    def convert(pfor_input):
        (output,) = _converted(rule, pfor_input)
        if not output.t.dtype.is_floating:
            return [output]
        return [wrap(kept(rule, pfor_input, output.t), output.is_stacked)]

    return convert


OPERATIONS = (*CHECKS, *_NAN)
