"""Attackers that train on wrong labels."""

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from tff_pfl.attacks.attackers import is_attacker
from tff_pfl.attacks.registry import ATTACKS
from tff_pfl.ranges import each, takes, whole
from tff_pfl.templates import Algorithm, Exchange


@ATTACKS.register("label_flip")
@takes(client_ids=each(whole(0)), num_classes=whole(2))
def label_flip(
    algorithm: Algorithm, *, num_classes: int, client_ids: Sequence[int] = ()
) -> Algorithm:
    """The algorithm with some clients that train on the labels `num_classes - 1 - y`.

    All client work of a round reads these labels, and so do its metrics, such as `train/accuracy`.
    What is evaluated stays as it is: test labels, and the examples that a model is personalized on
    before.

    Args:
        algorithm: Any algorithm.
        num_classes: Labels are below it.
        client_ids: The attackers.
    """
    if not len(client_ids):
        return algorithm

    def change(exchange: Exchange) -> Exchange:
        def client_work(message, state, examples, context):
            attacks = is_attacker(client_ids, context.client_id)
            labels = tf.where(attacks, num_classes - 1 - examples.y, examples.y)
            return exchange.client_work(message, state, examples._replace(y=labels), context)

        return dataclasses.replace(exchange, client_work=client_work)

    return algorithm.with_exchanges(change)
