"""Attackers that send a multiple of what they found."""

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from tff_pfl.ranges import ANY_NUMBER, each, takes, whole
from tff_pfl.registry import Registry
from tff_pfl.templates import Algorithm, Exchange

ATTACKS = Registry("attack")


@ATTACKS.register("scaled_uploads")
@takes(client_ids=each(whole(0)), factor=ANY_NUMBER)
def scaled_uploads(
    algorithm: Algorithm,
    *,
    client_ids: Sequence[int] = (),
    factor: float = -1.0,
    exchange_name: str = "train",
) -> Algorithm:
    """The algorithm with some clients that scale what they upload.

    Vectors and tensors of floats are multiplied; scalars, such as a loss, are sent as they are.

        process = compose(
            scaled_uploads(fedpg(model, local), client_ids=[3, 7], factor=-1.0), examples_type
        )

    Args:
        algorithm: Any algorithm.
        client_ids: The attackers.
        factor: 1e6 or 1e-6 for absurd lengths, -1 for the opposite, 0 for nothing, NaN for no
            number.
        exchange_name: The exchange whose uploads are changed.
    """

    def change(exchange: Exchange) -> Exchange:
        if exchange.name != exchange_name or not len(client_ids):
            return exchange

        def client_work(message, state, examples, context):
            output = exchange.client_work(message, state, examples, context)
            attackers = tf.constant(list(client_ids), tf.int32)
            attacks = tf.reduce_any(tf.equal(attackers, context.client_id))

            def send(leaf):
                leaf = tf.convert_to_tensor(leaf)
                if not leaf.dtype.is_floating or leaf.shape.rank == 0:
                    return leaf
                return tf.where(attacks, leaf * tf.constant(factor, leaf.dtype), leaf)

            return output._replace(upload=tf.nest.map_structure(send, output.upload))

        return dataclasses.replace(exchange, client_work=client_work)

    return algorithm.with_exchanges(change)
