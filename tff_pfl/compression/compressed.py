"""Algorithms whose clients compress their uploads."""

import collections
import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from tff_pfl.arguments.kinds import check_kind
from tff_pfl.arguments.ranges import takes
from tff_pfl.arguments.recipes import remembering
from tff_pfl.compression.averaged_part import AveragedPart, averaged_part
from tff_pfl.compression.compressors import Compressor, rescaled
from tff_pfl.templates import Algorithm, Exchange
from tff_pfl.templates.errors import AggregatorError

# Folded into a client's seed, so that compression and training draw different numbers.
_COMPRESSION = 0xC0DEC


class Compensated(NamedTuple):
    """The client state of a compressed algorithm.

    Attributes:
        own: `C`, the client state of the original algorithm.
        residuals: float32 `[n]` by names of exchanges: the accumulated compression errors of the
            client's uploads, which are added to its next upload. Empty without error feedback.
    """

    own: Any
    residuals: Mapping[str, tf.Tensor]


@remembering("compressor", "compressed")
@takes()
def compressed(
    algorithm: Algorithm, compressor: Compressor, *, error_feedback: bool = False
) -> Algorithm:
    """Compresses the uploads of an algorithm.

    With `e_i = 0` at first, and always without error feedback, a round is

        client  m_i = encode(u_i + e_i);  e_i <- u_i + e_i - decode(m_i)
        up      m_i, instead of the change u_i
        server  sum_i p_i decode(m_i), instead of sum_i p_i u_i

    With error feedback, the compression error of a change is sent with a later one. The client
    keeps it until it takes part again, also if it is left out of a round. (Seide et al., "1-bit
    stochastic gradient descent", Interspeech 2014; Karimireddy et al., "Error feedback fixes
    SignSGD", ICML 2019.) With error feedback, a compressor that is not a contraction is `rescaled`.

    All tensors of a change form one vector. Other parts of an upload, such as the shares of pFedMB
    or the risk of PGFed, are not compressed. Clients of FedDyn and SCAFFOLD compute their state
    from the change before compression. A client is left out if its change, or its weighted decoded
    change, is not finite. A process reports the bytes of the messages.

    Example:
        >>> algorithm = tff_pfl.make("fedavg", testing.tiny_model(), testing.tiny_local())
        >>> compressor = tff_pfl.COMPRESSORS["top_k"](share=0.1)
        >>> algorithm = tff_pfl.compressed(algorithm, compressor, error_feedback=True)
        >>> algorithm.name
        'fedavg'

    Args:
        algorithm: An algorithm whose uploads, or one of their fields, are averaged by a plain mean.
        compressor: A compressor, such as one of `COMPRESSORS`.
        error_feedback: Whether clients keep compression errors for their next upload.

    Raises:
        AggregatorError: No upload is averaged by a plain mean, or another aggregator was chosen.
        KindError: `compressor` is not a `Compressor`.
    """
    tip = 'COMPRESSORS["half"]() makes one.'
    check_kind("The compressor", compressor, Compressor, tip)
    parts = _parts(algorithm)
    if error_feedback:
        compressor = rescaled(compressor)

    def client_init(client_id, seed):
        sizes = {name: part.size for name, part in parts.items() if error_feedback}
        residuals = collections.OrderedDict((name, tf.zeros([n])) for name, n in sizes.items())
        return Compensated(algorithm.client_init(client_id, seed), residuals)

    def personalize(message, state, examples, context):
        return algorithm.personalize.client_work(message, state.own, examples, context)

    def change(exchange):
        part = parts.get(exchange.name)
        return _keeping(exchange) if part is None else _compressing(exchange, part, compressor)

    snapshot = algorithm.client_snapshot
    return dataclasses.replace(
        algorithm.with_exchanges(change),
        client_init=client_init,
        personalize=dataclasses.replace(algorithm.personalize, client_work=personalize),
        client_snapshot=snapshot and (lambda state: snapshot(state.own)),
    )


def _parts(algorithm) -> Mapping[str, AveragedPart]:
    """Returns the averaged parts of all exchanges that have uploads, by name."""
    parts = {
        exchange.name: averaged_part(algorithm, exchange)
        for exchange in algorithm.exchanges
        if exchange.aggregator is not None
    }
    parts = {name: part for name, part in parts.items() if part.size}
    if not parts:
        raise AggregatorError(
            f"Uploads of {algorithm.name} cannot be compressed: clients upload nothing."
        )
    return parts


def _keeping(exchange: Exchange) -> Exchange:
    """Adapts an exchange without uploads to clients with residuals of other exchanges."""

    def client_work(message, state, examples, context):
        output = exchange.client_work(message, state.own, examples, context)
        return output._replace(state=state._replace(own=output.state))

    return dataclasses.replace(exchange, client_work=client_work)


def _compressing(exchange: Exchange, part: AveragedPart, compressor: Compressor) -> Exchange:
    """Returns an exchange with compressed uploads."""

    def client_work(message, state, examples, context):
        output = exchange.client_work(message, state.own, examples, context)
        vector, residuals = part.vector(output.upload), state.residuals
        if exchange.name in residuals:
            vector += residuals[exchange.name]
        seed = tf.random.experimental.stateless_fold_in(context.seed, _COMPRESSION)
        encoded = compressor.encode(vector, seed)
        decoded = compressor.decode(encoded, part.size)
        if exchange.name in residuals:
            residuals = collections.OrderedDict(residuals, **{exchange.name: vector - decoded})
        # Finite messages may overflow when they are decoded and weighted.
        weight = tf.cast(output.weight, tf.float32)
        is_finite = tf.reduce_all(tf.math.is_finite(vector) & tf.math.is_finite(weight * decoded))
        return output._replace(
            state=Compensated(output.state, residuals),
            upload=part.replaced(output.upload, encoded),
            weight=tf.where(is_finite, weight, float("nan")),
        )

    aggregator = part.aggregator(compressor)
    return dataclasses.replace(exchange, client_work=client_work, aggregator=aggregator)
