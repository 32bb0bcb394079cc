"""Distributed privacy: clients add the noise themselves, and the server sees a noisy sum."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.aggregators import BranchMeanFactory, CountedFactory
from tff_pfl.aggregators.branch_mean import mean_of_sums
from tff_pfl.privacy import branches
from tff_pfl.privacy.discrete import DiscreteGaussian
from tff_pfl.privacy.private import averaged_once, stated
from tff_pfl.templates import Algorithm, Exchange


def with_distributed_privacy(
    algorithm: Algorithm,
    *,
    noise_multiplier: float,
    clients_per_round: int,
    clip_norm: float = 0.1,
    bits: int = 20,
) -> Algorithm:
    """Adds distributed differential privacy of clients to an algorithm.

    A client's whole upload is one vector, as in `with_privacy`. It is clipped, rounded and made
    noisy before it leaves the client, see `DiscreteGaussian`; the server receives a secure sum of
    integers, and divides by `clients_per_round`. If fewer report, their part of the noise is
    missing: the server then gets nothing, as from a secure sum with that threshold, and keeps its
    state.

    Noise and rounding are drawn from a client's seed, a function of the seed that `compose` gets.
    Whoever knows that seed can subtract the noise: it is for simulations.

    Args:
        algorithm: Any whose uploads are averaged, float32.
        noise_multiplier: Standard deviation of the noise of the sum, over the largest norm that
            clipping and rounding leave; see `Accountant` with "fixed" sampling.
        clients_per_round: How many report in each round.
        clip_norm: The clipping norm.
        bits: Bits of a number that is sent, 8 to 24.

    Raises:
        AggregatorError: If the server needs more of uploads than their mean, or a round has no
            uploads or several; from `compose`: if there are too few bits, or uploads are not
            float32.
        ValueError: If a value is out of range.
    """
    mechanism = DiscreteGaussian(noise_multiplier, clients_per_round, clip_norm, bits)
    private = averaged_once(algorithm).with_exchanges(
        lambda exchange: _with_noise(exchange, mechanism)
    )
    return stated(private, noise_multiplier, clients_per_round)


def _with_noise(exchange: Exchange, mechanism: DiscreteGaussian) -> Exchange:
    present = exchange.aggregator
    if present is None:
        return exchange
    send, aggregator = mechanism.encode, NoisySumFactory(mechanism)
    if isinstance(present, CountedFactory):
        aggregator = CountedFactory(aggregator, number=mechanism.clients_per_round)

        def send(upload, seed):
            return upload._replace(value=mechanism.encode(upload.value, seed))

    elif isinstance(present, BranchMeanFactory):
        noise = branches.noise_of_shares(mechanism.noise_multiplier) / mechanism.clients_per_round

        def quotient(mean):
            return mean_of_sums(branches.of_one_vector(mean, mechanism.clip_norm), noise)

        aggregator = NoisySumFactory(mechanism, quotient)

        def send(upload, seed):
            return mechanism.encode(branches.as_one_vector(upload, mechanism.clip_norm), seed)

    return dataclasses.replace(exchange, send=send, aggregator=aggregator)


class NoisySumFactory(tff.aggregators.UnweightedAggregationFactory):
    """Computes the mean of noisy integers by a secure sum.

    With `Y` a structure of int32 tensors and `T` the same of float32, `next` is

        (<()@SERVER, {Y}@CLIENTS>
         -> <state=()@SERVER, result=finish(T)@SERVER, measurements=<withheld=int32>@SERVER>)

    `withheld` is 1 if fewer clients report than expected, with too little noise, or more, with a
    sum that is too large for the modulus. The mean is NaN then: a process made by `tff_pfl.compose`
    keeps its server's state, and its metric `server_kept` is 1.

    Attributes:
        mechanism: Encodes the uploads.
        finish: `(T -> result)`, applied to the mean.
        reason: Why another aggregator cannot take its place.
    """

    reason = "its clients round their uploads and add noise to them, for secure sums"

    def __init__(
        self, mechanism: DiscreteGaussian, finish: Callable[[Any], Any] = lambda mean: mean
    ):
        """Creates the factory; for arguments, see the class."""
        self.mechanism = mechanism
        self.finish = finish

    def create(self, value_type) -> tff.templates.AggregationProcess:
        """See the base class."""
        mechanism = self.mechanism
        sums = tff.aggregators.SecureModularSumFactory(mechanism.modulus).create(value_type)

        @tff.tensorflow.computation(value_type, np.int32)
        def mean(total, number):
            as_many = tf.equal(number, mechanism.clients_per_round)
            found = tf.nest.map_structure(
                lambda leaf: tf.where(as_many, leaf, np.nan), self.finish(mechanism.decode(total))
            )
            return found, {"withheld": tf.cast(~as_many, tf.int32)}

        @tff.federated_computation(
            sums.initialize.type_signature.result, tff.types.FederatedType(value_type, tff.CLIENTS)
        )
        def noisy_mean(state, value):
            ones = tff.federated_value(np.int32(1), tff.CLIENTS)
            number = tff.federated_secure_sum_bitwidth(ones, 1)
            total = sums.next(state, value)
            found = tff.federated_map(mean, (total.result, number))
            return tff.templates.MeasuredProcessOutput(total.state, found[0], found[1])

        return tff.templates.AggregationProcess(sums.initialize, noisy_mean)
