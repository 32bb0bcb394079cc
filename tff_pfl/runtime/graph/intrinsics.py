"""Lowers each of TFF's intrinsics.

Reductions have the same results as in TFF's stock runtime. Secure sums are computed in the clear,
with checks of their bounds, as is usual in simulations.
"""

import functools
from collections.abc import Callable

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.runtime.graph import sequences, values
from tff_pfl.runtime.graph.clients import client_values
from tff_pfl.runtime.graph.clients.client_values import Clients, Shared, Stacked
from tff_pfl.runtime.graph.values import Function

# The largest number of bits in a secure sum. One of 63 bits is left for the sum of two values.
_MAX_SECURE_BITS = 62
_ABOVE_BOUND = "A client's value is larger than maximum of the secure sum."

# The handlers `(lowering, type signature, argument) -> value` by URI.
HANDLERS: dict[str, Callable] = dict(sequences.HANDLERS)


def _lowers(*uris):
    def register(handler):
        HANDLERS.update(dict.fromkeys(uris, handler))
        return handler

    return register


# Placing, mapping and packing.


@_lowers("federated_value_at_server")
def _value_at_server(lowering, type_signature, argument):
    return argument


@_lowers("federated_value_at_clients", "federated_broadcast")
def _value_at_clients(lowering, type_signature, argument):
    return lowering.shared(argument, type_signature.result.member)


@_lowers("federated_eval_at_server")
def _eval_at_server(lowering, type_signature, function):
    return lowering.at_server(function, None)


@_lowers("federated_eval_at_clients")
def _eval_at_clients(lowering, type_signature, function):
    return lowering.map_clients(function, lowering.no_values())


@_lowers("federated_apply")
def _apply(lowering, type_signature, argument):
    function, value = argument
    return lowering.at_server(function, value)


@_lowers("federated_map", "federated_map_all_equal")
def _map(lowering, type_signature, argument):
    function, value = argument
    if isinstance(value, Clients):
        return lowering.map_clients(function, value)
    return lowering.at_server(function, value)


@_lowers("federated_zip_at_server")
def _zip_at_server(lowering, type_signature, argument):
    return argument


@_lowers("federated_zip_at_clients")
def _zip_at_clients(lowering, type_signature, argument):
    return _zip(lowering, type_signature.result.member, argument)


def _zip(lowering, member, argument) -> Clients:
    columns = values.flatten(argument)
    rows = zip(*(column.shards for column in columns), strict=True)
    leaves = ([leaf for shard in row for leaf in shard.leaves] for row in rows)
    return lowering.no_values().with_leaves(member, leaves)


@_lowers("federated_select", "federated_secure_select")
def _select(lowering, type_signature, argument):
    keys, _, server_value, function = argument

    def element(key):
        return function.call((server_value, key))

    element_type = type_signature.result.member.element

    def selected(shard):
        (leaf,) = shard.leaves
        if isinstance(leaf, Shared):
            with tf.device(shard.device):
                leaf = leaf.stacked(shard.size)
        return [client_values.Selected(leaf, element, element_type)]

    return keys.with_leaves(type_signature.result.member, map(selected, keys.shards))


# Reducing.


@_lowers("federated_sum")
def _sum(lowering, type_signature, argument):
    return lowering.reduce_clients(argument, _sum_leaf, tf.add_n, values.zeros)


def _tensor(leaf) -> tf.Tensor:
    """Returns the tensor of a leaf: the shared tensor, or the stack of the clients' tensors."""
    return leaf.value if isinstance(leaf, Shared) else leaf.tensor


def _sum_leaf(leaf, size):
    if isinstance(leaf, Shared):
        dtype = leaf.value.dtype
        if dtype.size == 2 and dtype.is_floating:  # cannot represent all sizes exactly
            return tf.cast(tf.cast(leaf.value, tf.float32) * tf.cast(size, tf.float32), dtype)
        return leaf.value * tf.cast(size, dtype)
    return leaf.sum()


@_lowers("federated_mean")
def _mean(lowering, type_signature, argument):
    total = _sum(lowering, None, argument)
    size = tf.add_n([shard.size for shard in argument.shards]) if argument.shards else 0
    return tf.nest.map_structure(lambda leaf: leaf / tf.cast(size, leaf.dtype), total)


@_lowers("federated_weighted_mean")
def _weighted_mean(lowering, type_signature, argument):
    value, weight = argument
    zipped = _zip(lowering, tff.types.to_type((value.member, weight.member)), argument)

    def leaves(shard):
        *leaves, weights = shard.leaves
        with tf.device(shard.device):
            return [_product(leaf, weights, shard.size) for leaf in leaves] + [weights]

    weighted = zipped.with_leaves(zipped.member, map(leaves, zipped.shards))
    total, total_weight = _sum(lowering, None, weighted)
    return tf.nest.map_structure(lambda leaf: leaf / tf.cast(total_weight, leaf.dtype), total)


def _product(leaf, weights, size):
    """Multiplies each client's leaf by its weight."""
    leaf = client_values.aligned(leaf)
    tensor = _tensor(leaf)
    factors = tf.cast(_tensor(weights), tensor.dtype)
    if isinstance(leaf, Shared) and isinstance(weights, Shared):
        return Shared(tensor * factors)
    if isinstance(leaf, Shared):
        return Stacked(tf.tensordot(factors, tensor, axes=0))
    if isinstance(weights, Stacked):
        ones = tf.ones([tf.rank(tensor) - 1], tf.int32)
        factors = tf.reshape(factors, tf.concat([[size], ones], axis=0))
    return Stacked(tensor * factors)


@_lowers("federated_min")
def _min(lowering, type_signature, argument):
    return _extreme(lowering, argument, tf.minimum, tf.reduce_min, lambda limits: limits.max)


@_lowers("federated_max")
def _max(lowering, type_signature, argument):
    return _extreme(lowering, argument, tf.maximum, tf.reduce_max, lambda limits: limits.min)


def _extreme(lowering, argument, combine, reduce, limit):
    """Returns the least or greatest value; for no clients, or infinities, the type's limit."""

    def start(tensor_type):
        limits = np.iinfo if np.issubdtype(tensor_type.dtype, np.integer) else np.finfo
        dtype = tensor_type.dtype.type
        return tf.cast(tf.constant(limit(limits(dtype)), dtype), values.dtype(tensor_type))

    def empty(leaf_type):
        return tf.zeros_like(values.zeros(leaf_type)) + start(leaf_type)

    def leaf(leaf, size):
        extreme = leaf.value if isinstance(leaf, Shared) else reduce(leaf.tensor, axis=0)
        return combine(extreme, start(tff.types.TensorType(extreme.dtype.as_numpy_dtype)))

    return lowering.reduce_clients(
        argument, leaf, lambda partial: functools.reduce(combine, partial), empty
    )


@_lowers("federated_aggregate")
def _aggregate(lowering, type_signature, argument):
    clients, zero, accumulate, merge, report = argument
    accumulator_type = accumulate.type_signature.parameter[0]
    accumulator_leaves = values.leaf_types(accumulator_type)
    invariants = tuple(values.tensor_spec(leaf_type).shape for leaf_type in accumulator_leaves)

    def fold(shard, start):
        def body(index, leaves):
            accumulator = values.pack(accumulator_type, iter(leaves))
            accumulator = accumulate.call((accumulator, shard.at(index, clients.member)))
            return index + 1, tuple(map(values.as_tensor, values.flatten(accumulator)))

        _, leaves = tf.while_loop(
            lambda index, _: index < shard.size,
            body,
            (tf.constant(0), tuple(map(values.as_tensor, values.flatten(start)))),
            shape_invariants=(tf.TensorShape([]), invariants),
        )
        return values.pack(accumulator_type, iter(leaves))

    partial = []
    if accumulate.appends() and all(shape.rank is not None for shape in invariants):
        partial = _appended(lowering, accumulator_type, clients, zero, accumulate)
    else:
        for shard in clients.shards:
            with tf.device(shard.device):
                partial.append(fold(shard, zero))
    total = functools.reduce(
        lambda left, right: lowering.at_server(merge, (left, right)), partial or [zero]
    )
    return lowering.at_server(report, total)


def _appended(lowering, accumulator_type, clients, zero, accumulate) -> list:
    """Appends the rows of all clients of each shard to `zero`; returns the result of each shard.

    The rows of each client are computed alone, since a fold would copy all earlier rows for each
    client.
    """
    empty = tf.nest.map_structure(lambda leaf: leaf[:0], zero)
    appended = Function(
        lambda value: accumulate.call((empty, value)),
        tff.types.FunctionType(clients.member, accumulator_type),
        accumulate.is_deterministic,
    )
    partial = []
    for shard in lowering.map_clients(appended, clients).shards:
        with tf.device(shard.device):
            leaves = [
                tf.concat([start, shard.rows(leaf)], axis=0)
                for start, leaf in zip(values.flatten(zero), shard.leaves, strict=True)
            ]
        partial.append(values.pack(accumulator_type, iter(leaves)))
    return partial


@_lowers("federated_secure_sum")
def _secure_sum(lowering, type_signature, argument):
    clients, bound = argument
    bounds = _for_each_leaf(bound, clients.member)

    def checked(shard):
        with tf.device(shard.device):
            return list(map(_bounded, shard.leaves, bounds))

    return _sum(lowering, None, clients.with_leaves(clients.member, map(checked, clients.shards)))


def _bounded(leaf, bound):
    """Asserts that no client's value is above the bound, and returns the leaf."""
    leaf = client_values.aligned(leaf)
    tensor = _tensor(leaf)
    check = tf.debugging.assert_less_equal(
        tf.cast(tensor, tf.int64), tf.cast(bound, tf.int64), _ABOVE_BOUND
    )
    with tf.control_dependencies([check]):
        kind = Shared if isinstance(leaf, Shared) else Stacked
        return kind(tf.identity(tensor))


@_lowers("federated_secure_sum_bitwidth")
def _secure_sum_bitwidth(lowering, type_signature, argument):
    clients, bits = argument

    def bound(bits):
        check = tf.debugging.assert_less_equal(
            tf.cast(bits, tf.int64),
            tf.constant(_MAX_SECURE_BITS, tf.int64),
            f"A secure sum has at most {_MAX_SECURE_BITS} bits.",
        )
        with tf.control_dependencies([check]):
            return tf.bitwise.left_shift(tf.constant(1, tf.int64), tf.cast(bits, tf.int64)) - 1

    return _secure_sum(lowering, None, (clients, tf.nest.map_structure(bound, bits)))


@_lowers("federated_secure_modular_sum")
def _secure_modular_sum(lowering, type_signature, argument):
    clients, modulus = argument
    total = _sum(lowering, None, clients)
    moduli = iter(_for_each_leaf(modulus, clients.member))
    return tf.nest.map_structure(
        lambda leaf: tf.math.floormod(leaf, tf.cast(next(moduli), leaf.dtype)), total
    )


def _for_each_leaf(value, member) -> list:
    """Returns a list with one number per leaf, from a single number or a structure of numbers."""
    count = len(values.leaf_types(member))
    return values.flatten(value) if isinstance(value, tuple) else [value] * count


# Operators of TFF's values.


@_lowers("generic_plus")
def _plus(lowering, type_signature, argument):
    return _elementwise(lowering, type_signature, tf.add, argument)


@_lowers("generic_multiply")
def _multiply(lowering, type_signature, argument):
    return _elementwise(lowering, type_signature, tf.multiply, argument)


@_lowers("generic_divide")
def _divide(lowering, type_signature, argument):
    return _elementwise(lowering, type_signature, tf.divide, argument)


@_lowers("generic_zero")
def _zero(lowering, type_signature, argument):
    return values.pack(type_signature, map(values.zeros, values.leaf_types(type_signature)))


def _elementwise(lowering, type_signature, operation, argument):
    left, right = argument

    def call(argument):
        left, right = argument
        if not isinstance(right, tuple) and isinstance(left, tuple):
            return tf.nest.map_structure(lambda leaf: operation(leaf, right), left)
        leaves = map(operation, values.flatten(left), values.flatten(right))
        return values.pack(result_type, leaves)

    result_type = type_signature.result
    if not isinstance(left, Clients):
        if isinstance(result_type, tff.types.FederatedType):
            result_type = result_type.member
        return call(argument)
    result_type = result_type.member
    members = tff.types.to_type((left.member, right.member))
    function = Function(call, tff.types.FunctionType(members, result_type))
    return lowering.map_clients(function, _zip(lowering, members, argument))
