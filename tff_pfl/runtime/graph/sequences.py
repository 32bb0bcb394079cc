"""Lowers the intrinsics of sequences."""

import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.runtime.graph import values
from tff_pfl.runtime.graph.values import Function

# Sequences of at most this many elements are reduced without a loop, which can be vectorized.
_FEW_ELEMENTS = 8


def _sequence_map(lowering, type_signature, argument):
    function, sequence = argument
    element_type = type_signature.result.element
    if isinstance(sequence, values.Elements):
        return values.Elements(
            sequence.keys, lambda key: function.call(sequence.element(key)), element_type
        )

    argument_type = type_signature.parameter[1].element

    @tf.autograph.experimental.do_not_convert
    def call(*tensors):
        element = function.call(values.from_components(argument_type, tensors))
        return values.components(element_type, element)

    return values.to_variant(values.to_dataset(sequence, argument_type).map(call))


def _sequence_reduce(lowering, type_signature, argument):
    sequence, zero, function = argument
    return _reduce(sequence, type_signature.parameter[0].element, zero, function)


def _sequence_sum(lowering, type_signature, sequence):
    element_type = type_signature.parameter.element
    zero = values.pack(element_type, map(values.zeros, values.leaf_types(element_type)))
    plus = Function(
        lambda argument: values.pack(
            element_type, map(tf.add, values.flatten(argument[0]), values.flatten(argument[1]))
        ),
        tff.types.FunctionType((element_type, element_type), element_type),
    )
    return _reduce(sequence, element_type, zero, plus)


def _reduce(sequence, element_type, zero, function):
    state_type = function.type_signature.parameter[0]
    if isinstance(sequence, values.Elements):
        count = sequence.keys.shape[0]
        if count is not None and count <= _FEW_ELEMENTS:
            for index in range(count):
                zero = function.call((zero, sequence.element(sequence.keys[index])))
            return zero
        sequence = sequence.to_variant()

    @tf.autograph.experimental.do_not_convert
    def step(state, tensors):
        state = values.pack(state_type, iter(state))
        element = values.from_components(element_type, tensors)
        return tuple(map(values.as_tensor, values.flatten(function.call((state, element)))))

    start = tuple(map(values.as_tensor, values.flatten(zero)))
    leaves = values.to_dataset(sequence, element_type).reduce(start, step)
    return values.pack(state_type, iter(leaves))


HANDLERS = {
    "sequence_map": _sequence_map,
    "sequence_reduce": _sequence_reduce,
    "sequence_sum": _sequence_sum,
}
