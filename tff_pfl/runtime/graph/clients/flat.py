"""Computes with flat tensors in compiled client work.

XLA's code for CPUs vectorizes only the last axis of a tensor. An operation on each element of a
layer of 784 x 10 weights takes many times as long as on the same 7,840 weights in one axis. So
loops carry their variables with all axes joined, and operations on these variables compute with
the flat form. XLA drops the reshapes in between.
"""

import functools
import math
from collections.abc import Callable

import tensorflow as tf

from tff_pfl.runtime.graph.clients.pfor_rules import same_op
from tff_pfl.runtime.graph.internals import pfor_wrap as wrap

# Operations on each element of operands of one shape, or scalars.
_ELEMENTWISE = (
    *("Abs", "AddN", "AddV2", "Cast", "IsFinite", "Mul", "Neg", "RealDiv", "Rsqrt", "SelectV2"),
    *("Sigmoid", "Sign", "Sqrt", "Square", "SquaredDifference", "Sub", "Tanh"),
)
# Operations that reduce their first operand, along the axes of the second if there is one.
_REDUCTIONS = ("All", "Any", "L2Loss", "Sum")
_GATHER = "GatherV2"
OPERATIONS = (*_ELEMENTWISE, *_REDUCTIONS, _GATHER)


def flat_shape(shape: tf.TensorShape) -> tf.TensorShape:
    """Returns the shape that `flat` gives to a tensor of this shape."""
    if shape.rank is None or not shape[1:].is_fully_defined():
        return shape
    if shape[:1].is_fully_defined():
        return tf.TensorShape([shape.num_elements()]) if shape.rank > 1 else shape
    return tf.TensorShape([None, math.prod(shape[1:])]) if shape.rank > 2 else shape


def flat(tensor: tf.Tensor) -> tf.Tensor:
    """Joins the axes of known length of a tensor; a first axis of unknown length stays."""
    return in_shape(tensor, flat_shape(tensor.shape))


def in_shape(tensor: tf.Tensor, shape: tf.TensorShape) -> tf.Tensor:
    """Reshapes a tensor to its flat shape, or back."""
    if shape.rank in (None, tensor.shape.rank):
        return tensor
    if shape.is_fully_defined():
        return tf.reshape(tensor, shape)
    # Rather than -1, which has no value if there are no elements.
    return tf.reshape(tensor, tf.concat([tf.shape(tensor)[:1], shape[1:]], axis=0))


def without_reshape(tensor: tf.Tensor) -> tf.Tensor:
    """Undoes the reshape of a flat tensor; returns any other tensor as it is."""
    return flat(tensor) if _was_flat(tensor) else tensor


def rules(general: dict[str, Callable]) -> dict[str, Callable]:
    """Returns the rules of these operations for a client alone; `general` has the others."""
    return {
        **dict.fromkeys(_ELEMENTWISE, _elementwise),
        **dict.fromkeys(_REDUCTIONS, _reduction),
        _GATHER: functools.partial(_gather, general[_GATHER]),
    }


def _elementwise(pfor_input):
    tensors = [x.t for x in pfor_input.inputs]
    shapes = [tensor.shape for tensor in tensors if tensor.shape.rank != 0]
    if not any(map(_was_flat, tensors)) or any(shape != shapes[0] for shape in shapes):
        return _wrapped(same_op(pfor_input, tensors))
    results = same_op(pfor_input, list(map(flat, tensors)))
    return _wrapped([in_shape(result, shapes[0]) for result in results])


def _reduction(pfor_input):
    tensor, *axes = (x.t for x in pfor_input.inputs)
    if pfor_input.outputs[0].shape.rank == 0 and _was_flat(tensor):
        tensor, axes = flat(tensor), [tf.constant([0])] * len(axes)
    return _wrapped(same_op(pfor_input, [tensor, *axes]))


def _was_flat(tensor: tf.Tensor) -> bool:
    """Returns whether a tensor is a reshaped flat one; to flatten another may take a copy."""
    if not tf.is_symbolic_tensor(tensor):  # such as a variable's handle
        return False
    source = tensor.op
    while source.type == "Identity":
        source = source.inputs[0].op
    is_reshaped = source.type == "Reshape" and source.inputs[0].shape.rank == 1
    return is_reshaped and tensor.shape.is_fully_defined()


def _gather(otherwise, pfor_input):
    """Gathers rows with their axes joined; inputs are rows, indices and an axis."""
    rows, indices, axis = (x.t for x in pfor_input.inputs)
    length = rows.shape[1:].num_elements() if (rows.shape.rank or 0) > 2 else None
    if length is None or tf.get_static_value(axis) != 0 or pfor_input.get_attr("batch_dims"):
        return otherwise(pfor_input)
    pfor_input.inputs[0] = wrap(tf.reshape(rows, [tf.shape(rows)[0], length]), False)
    (output,) = otherwise(pfor_input)
    shape = tf.concat([tf.shape(indices), rows.shape[1:]], axis=0)
    if indices.shape.is_fully_defined():
        shape = indices.shape + rows.shape[1:]
    return wrap(tf.reshape(output.t, shape), False)


def _wrapped(tensors):
    return [wrap(tensor, False) for tensor in tensors]
