"""Attackers that send another upload than the one that they found."""

from collections.abc import Sequence

import tensorflow as tf

from tff_pfl.attacks.attackers import with_uploads
from tff_pfl.attacks.registry import ATTACKS
from tff_pfl.ranges import ANY_NUMBER, at_least, each, takes, whole
from tff_pfl.templates import Algorithm

# Of a client's seed, the numbers that its noise is drawn by: its training draws others.
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
    """The algorithm with some clients that scale what they upload.

    Vectors and tensors of floats are multiplied; scalars, such as a loss, are sent as they are.

        process = compose(
            scaled_uploads(fedpg(model, local), client_ids=[3, 7], factor=-1.0), examples_type
        )

    Args:
        algorithm: Any algorithm.
        client_ids: The attackers. Without any, and of ids that no client has, nobody attacks.
        factor: 1e6 or 1e-6 for absurd lengths, -1 for the opposite, 0 for nothing, NaN for no
            number; 1 is no attack.
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
    """The algorithm with some clients that send the opposite: `scaled_uploads` by -1.

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
    """The algorithm with some clients that send Gaussian noise in place of what they found.

    Noise is a function of the seed of the run, the client and the round. (Blanchard et al.,
    "Machine learning with adversaries", NeurIPS 2017, with a standard deviation of 200.)

    Args:
        algorithm: Any algorithm.
        client_ids: The attackers.
        standard_deviation: Of each number; 0 sends zeros.
        exchange_name: See `scaled_uploads`.
    """

    def draw(leaf, index, context):
        seed = context.seed
        for number in (_NOISE, index):
            seed = tf.random.experimental.stateless_fold_in(seed, number)
        return standard_deviation * tf.random.stateless_normal(leaf.shape, seed, dtype=leaf.dtype)

    return with_uploads(algorithm, client_ids, exchange_name, draw)
