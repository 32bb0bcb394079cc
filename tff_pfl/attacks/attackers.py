"""Algorithms with attackers that change the tensors of their uploads."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tff_pfl.aggregators import Shares
from tff_pfl.arguments.names import check_names
from tff_pfl.arguments.registry import Registry
from tff_pfl.local import ClientContext, trees
from tff_pfl.templates import Algorithm, Exchange
from tff_pfl.tracing.errors import TemplateError

ATTACKS = Registry("attack", "algorithm")
"""Functions `(algorithm, *, client_ids, <options>) -> Algorithm`.

An attack may also take `num_classes`, which is not an option in configs but is read from the data.
"""


def is_attacker(client_ids: Sequence[int], client_id: tf.Tensor) -> tf.Tensor:
    """Returns whether a client is an attacker, as a scalar bool."""
    return tf.reduce_any(tf.equal(tf.constant(list(client_ids), tf.int32), client_id))


def are_attacked(upload: Any) -> list[bool]:
    """Marks the tensors of an upload that attackers change: float tensors of rank 1 or more.

    Attackers do not change scalars, such as a loss or a count, integers and bools. They do not
    change the shares of `Shares` either, because flipping the signs of both values and shares would
    have no effect.
    """
    if isinstance(upload, Shares):
        return are_attacked(upload.value) + [False] * len(tf.nest.flatten(upload.share))
    leaves = tf.nest.flatten(upload)
    return [leaf.dtype.is_floating and leaf.shape.rank > 0 for leaf in leaves]


def with_attacked_exchange(
    algorithm: Algorithm,
    client_ids: Sequence[int],
    exchange_name: str,
    change: Callable[[Exchange], Exchange],
) -> Algorithm:
    """Replaces the exchange whose uploads are attacked.

    Args:
        algorithm: Any algorithm.
        client_ids: The attackers. Without attackers, the algorithm is returned unchanged.
        exchange_name: The name of the exchange.
        change: A function from the exchange to the new one. The client work of the exchange that it
            receives raises an error during tracing if nothing in an upload can be attacked.

    Raises:
        TemplateError: Clients upload nothing in the exchange.
        UnknownNameError: The algorithm has no exchange with this name.
    """
    if not len(client_ids):
        return algorithm
    check_names("exchange", [exchange_name], [exchange.name for exchange in algorithm.exchanges])
    uploading = [one.name for one in algorithm.exchanges if one.aggregator is not None]
    others = ", ".join(repr(name) for name in uploading if name != exchange_name)
    tip = "Choose an attack on training data, such as 'label_flip', which needs no uploads."
    if others:
        tip = f"Set exchange_name to an exchange with other uploads: {others}."

    def refusal(reason):
        return TemplateError(
            f"An attack on the uploads of {algorithm.name} (exchange {exchange_name!r}) would have "
            f"no effect: {reason}. {tip}"
        )

    if exchange_name not in uploading:
        raise refusal("clients upload nothing in this exchange")

    def change_exchange(exchange: Exchange) -> Exchange:
        if exchange.name != exchange_name:
            return exchange

        def client_work(message, state, examples, context):
            output = exchange.client_work(message, state, examples, context)
            honest = tf.nest.map_structure(tf.convert_to_tensor, output.upload)
            if not any(are_attacked(honest)):
                raise refusal("clients upload only scalars and integers, which stay unchanged")
            return output._replace(upload=honest)

        return change(dataclasses.replace(exchange, client_work=client_work))

    return algorithm.with_exchanges(change_exchange)


def with_uploads(
    algorithm: Algorithm,
    client_ids: Sequence[int],
    exchange_name: str,
    change: Callable[[tf.Tensor, int, ClientContext], tf.Tensor],
) -> Algorithm:
    """Returns the algorithm with attackers that change the tensors of their uploads.

    Args:
        algorithm: Any algorithm.
        client_ids: The attackers.
        exchange_name: The exchange whose uploads are changed.
        change: `(tensor, index of the tensor, ClientContext) -> tensor`, for the tensors that
            `are_attacked` marks.

    Raises:
        TemplateError: See `with_attacked_exchange`.
        UnknownNameError: The algorithm has no exchange with this name.
    """

    def attack_exchange(exchange: Exchange) -> Exchange:
        def client_work(message, state, examples, context):
            output = exchange.client_work(message, state, examples, context)
            honest = output.upload
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

    return with_attacked_exchange(algorithm, client_ids, exchange_name, attack_exchange)
