"""Attacks that change uploads or training labels."""

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from tff_pfl.arguments.ranges import ANY_NUMBER, at_least, each, takes, whole
from tff_pfl.attacks.attackers import ATTACKS, is_attacker, with_uploads
from tff_pfl.models.example_weights import weights_of, with_weights
from tff_pfl.templates import Algorithm, Exchange
from tff_pfl.tracing.errors import TemplateError

# Folded into a client's seed, so that the noise differs from the numbers of its training.
_NOISE = 0x4E0153


@ATTACKS.register("scaled_uploads")
@takes(client_ids=each(whole(0)), factor=ANY_NUMBER)
def scaled_uploads(
    algorithm: Algorithm,
    *,
    client_ids: Sequence[int] = (),
    factor: float = -1.0,
    exchange_name: str = "train",
) -> Algorithm:
    """Makes attackers scale their uploads.

    Float tensors of rank 1 or more are multiplied. Scalars, such as a loss, do not change.

    Example:
        >>> honest = tff_pfl.make("fedavg", testing.tiny_model(), testing.tiny_local())
        >>> attacked = tff_pfl.scaled_uploads(honest, client_ids=[3, 7], factor=-1.0)
        >>> attacked.name
        'fedavg'

    Args:
        algorithm: Any algorithm.
        client_ids: The attackers.
        factor: The factor: 1e6 or 1e-6 for extreme lengths, -1 for the opposite, 0 for zeros, or
            NaN. 1 is no attack.
        exchange_name: The exchange whose uploads are changed.
    """

    def scale(leaf, index, context):
        del index, context
        return leaf * tf.constant(factor, leaf.dtype)

    return with_uploads(algorithm, client_ids, exchange_name, scale)


@ATTACKS.register("sign_flipped")
@takes(client_ids=each(whole(0)))
def sign_flipped(
    algorithm: Algorithm, *, client_ids: Sequence[int] = (), exchange_name: str = "train"
) -> Algorithm:
    """Makes attackers send the opposite of their uploads: `scaled_uploads` with factor -1.

    Args:
        algorithm: Any algorithm.
        client_ids: See `scaled_uploads`.
        exchange_name: See `scaled_uploads`.
    """
    return scaled_uploads(
        algorithm, client_ids=client_ids, factor=-1.0, exchange_name=exchange_name
    )


@ATTACKS.register("noise")
@takes(client_ids=each(whole(0)), standard_deviation=at_least(0))
def noise(
    algorithm: Algorithm,
    *,
    client_ids: Sequence[int] = (),
    standard_deviation: float = 1.0,
    exchange_name: str = "train",
) -> Algorithm:
    """Makes attackers send Gaussian noise instead of their uploads.

    The noise is a function of the run's seed, the client and the round. (Blanchard et al., "Machine
    learning with adversaries", NeurIPS 2017, with a standard deviation of 200.)

    Args:
        algorithm: Any algorithm.
        client_ids: The attackers.
        standard_deviation: The standard deviation of each number. 0 sends zeros.
        exchange_name: See `scaled_uploads`.
    """

    def draw(leaf, index, context):
        seed = context.seed
        for number in (_NOISE, index):
            seed = tf.random.experimental.stateless_fold_in(seed, number)
        return standard_deviation * tf.random.stateless_normal(leaf.shape, seed, dtype=leaf.dtype)

    return with_uploads(algorithm, client_ids, exchange_name, draw)


@ATTACKS.register("label_flip")
@takes(client_ids=each(whole(0)), num_classes=whole(2))
def label_flip(
    algorithm: Algorithm, *, num_classes: int, client_ids: Sequence[int] = ()
) -> Algorithm:
    """Makes attackers train on the labels `num_classes - 1 - y`.

    All client work of a round uses these labels, also for its metrics, such as `train/accuracy`.
    Evaluation uses the original labels, for testing and for personalization.

    Args:
        algorithm: Any algorithm.
        num_classes: The number of classes.
        client_ids: The attackers.

    Raises:
        TemplateError: When the algorithm is composed, if labels are not classes.
    """
    if not len(client_ids):
        return algorithm

    def change(exchange: Exchange) -> Exchange:
        def client_work(message, state, examples, context):
            y = examples.labels
            if not (tf.is_tensor(y) and y.shape.rank == 1 and y.dtype.is_integer):
                raise TemplateError(
                    "The attack 'label_flip' needs class labels, one integer for each example. "
                    "Choose an attack on uploads, such as 'sign_flipped'."
                )
            attacks = is_attacker(client_ids, context.client_id)
            labels = tf.where(attacks, num_classes - 1 - y, y)
            labels = with_weights(labels, weights_of(examples.y))
            return exchange.client_work(message, state, examples._replace(y=labels), context)

        return dataclasses.replace(exchange, client_work=client_work)

    return algorithm.with_exchanges(change)
