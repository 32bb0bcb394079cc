"""What attackers change: the tensors of their uploads."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tff_pfl.aggregators import Shares
from tff_pfl.local import ClientContext, trees
from tff_pfl.names import check_names
from tff_pfl.templates import Algorithm, Exchange


def is_attacker(client_ids: Sequence[int], client_id: tf.Tensor) -> tf.Tensor:
    """Scalar bool: whether a client is one of the attackers."""
    return tf.reduce_any(tf.equal(tf.constant(list(client_ids), tf.int32), client_id))


def are_attacked(upload: Any) -> list[bool]:
    """Of each tensor of an upload, whether attackers change it: vectors and tensors of floats.

    A scalar, such as a loss or a count, is sent as it is; and so are integers and bools, and the
    shares of `Shares`, by which the server weighs a client: with both of them opposite, nothing
    would be.
    """
    if isinstance(upload, Shares):
        return are_attacked(upload.value) + [False] * len(tf.nest.flatten(upload.share))
    leaves = tf.nest.flatten(upload)
    return [leaf.dtype.is_floating and leaf.shape.rank > 0 for leaf in leaves]


def with_uploads(
    algorithm: Algorithm,
    client_ids: Sequence[int],
    exchange_name: str,
    change: Callable[[tf.Tensor, int, ClientContext], tf.Tensor],
) -> Algorithm:
    """The algorithm with attackers that change the tensors that they upload.

    Args:
        algorithm: Any algorithm.
        client_ids: The attackers.
        exchange_name: The exchange whose uploads are changed.
        change: `(tensor, index of the tensor, ClientContext) -> tensor`, of those that
            `are_attacked` says.

    Raises:
        UnknownNameError: If there is no such exchange.
    """
    check_names("exchange", [exchange_name], [exchange.name for exchange in algorithm.exchanges])

    def change_exchange(exchange: Exchange) -> Exchange:
        if exchange.name != exchange_name or not len(client_ids):
            return exchange

        def client_work(message, state, examples, context):
            output = exchange.client_work(message, state, examples, context)
            honest = tf.nest.map_structure(tf.convert_to_tensor, output.upload)
            leaves = [
                change(leaf, index, context) if is_attacked else leaf
                for index, (leaf, is_attacked) in enumerate(
                    zip(tf.nest.flatten(honest), are_attacked(honest), strict=True)
                )
            ]
            attack = tf.nest.pack_sequence_as(honest, leaves)
            attacks = is_attacker(client_ids, context.client_id)
            return output._replace(upload=trees.select(attacks, attack, honest))

        return dataclasses.replace(exchange, client_work=client_work)

    return algorithm.with_exchanges(change_exchange)
