"""Who attacks, and what of an upload an attack is about."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tff_pfl.local import ClientContext, trees
from tff_pfl.ranges import between, takes, whole
from tff_pfl.templates import Algorithm, Exchange

# Of the seed of a run, the numbers that attackers are drawn by: nothing else is drawn by them.
_STREAM = 0x477A


@takes(fraction=between(0, 1), num_clients=whole(1), seed=whole(0))
def drawn_attackers(fraction: float, num_clients: int, seed: int) -> tuple[int, ...]:
    """Ids of a share of the clients, in ascending order; those of a smaller share are among them.

    Args:
        fraction: Of the clients, rounded to the nearest number, but one at least; 0 is none.
        num_clients: Ids are below it.
        seed: Others of another one.
    """
    number = max(1, round(fraction * num_clients)) if fraction else 0
    order = np.random.default_rng([seed, _STREAM]).permutation(num_clients)
    return tuple(sorted(order[:number].tolist()))


def attackers_of(attack: Mapping[str, Any], num_clients: int, seed: int) -> tuple[int, ...]:
    """The attackers of a config.

    Args:
        attack: Its section `attack`: `client_ids`, or a `fraction` of all clients.
        num_clients: Those that train.
        seed: Of the config.
    """
    if attack.get("fraction"):
        return drawn_attackers(attack["fraction"], num_clients, seed)
    return tuple(attack.get("client_ids", ()))


def is_attacker(client_ids: Sequence[int], client_id: tf.Tensor) -> tf.Tensor:
    """Scalar bool: whether a client is one of the attackers."""
    return tf.reduce_any(tf.equal(tf.constant(list(client_ids), tf.int32), client_id))


def is_attacked(leaf: tf.Tensor) -> bool:
    """Whether a tensor of an upload is one that attackers change: vectors and tensors of floats.

    A scalar, such as a loss or a count, is sent as it is; and so are integers and bools.
    """
    return leaf.dtype.is_floating and leaf.shape.rank > 0


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
            `is_attacked` says.
    """

    def change_exchange(exchange: Exchange) -> Exchange:
        if exchange.name != exchange_name or not len(client_ids):
            return exchange

        def client_work(message, state, examples, context):
            output = exchange.client_work(message, state, examples, context)
            honest = tf.nest.map_structure(tf.convert_to_tensor, output.upload)
            leaves = [
                change(leaf, index, context) if is_attacked(leaf) else leaf
                for index, leaf in enumerate(tf.nest.flatten(honest))
            ]
            attack = tf.nest.pack_sequence_as(honest, leaves)
            attacks = is_attacker(client_ids, context.client_id)
            return output._replace(upload=trees.select(attacks, attack, honest))

        return dataclasses.replace(exchange, client_work=client_work)

    return algorithm.with_exchanges(change_exchange)
