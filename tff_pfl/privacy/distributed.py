"""Distributed privacy: clients add the noise, and the server sees a noisy sum."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.aggregators import Noise
from tff_pfl.aggregators.branch_mean import mean_of_sums
from tff_pfl.arguments.recipes import remembering
from tff_pfl.privacy import branches
from tff_pfl.privacy.discrete import DiscreteGaussian
from tff_pfl.privacy.private import noisy
from tff_pfl.templates import Algorithm


@remembering("privacy", "distributed")
def with_distributed_privacy(
    algorithm: Algorithm,
    *,
    noise_multiplier: float,
    clients_per_round: int,
    clip_norm: float = 0.1,
    bits: int = 20,
) -> Algorithm:
    """Adds distributed differential privacy of clients to an algorithm.

    A client's whole upload is one vector, as in `with_privacy`. The client clips and rounds the
    vector and adds noise before it sends it (see `DiscreteGaussian`). The server receives a secure
    sum of integers, and divides by `clients_per_round`. If fewer clients report, their part of the
    noise is missing. The server then receives nothing, as from a secure sum with this threshold,
    and keeps its state.

    Noise and rounding are drawn from a client's seed, a function of the seed that `compose` gets.
    Anybody who knows this seed can subtract the noise, so use this function only for simulations.

    Args:
        algorithm: An algorithm whose uploads are float32 and averaged.
        noise_multiplier: The standard deviation of the sum's noise divided by the largest possible
            norm after clipping and rounding. Use it for an `Accountant` with "fixed" sampling.
        clients_per_round: The number of clients that report in each round.
        clip_norm: The clipping norm.
        bits: The number of bits of each number that is sent, 8 to 24.

    Raises:
        AggregatorError: The server needs more than the mean of uploads, or a round has no uploads
            or several. `compose` raises this error if there are too few bits, or if uploads are not
            float32.
        ValueError: A value is out of range.
    """
    mechanism = DiscreteGaussian(noise_multiplier, clients_per_round, clip_norm, bits)
    share_noise = branches.noise_of_shares(noise_multiplier) / clients_per_round

    def quotient(mean):
        return mean_of_sums(branches.from_one_vector(mean, clip_norm), share_noise)

    def encode_branches(upload, seed):
        return mechanism.encode(branches.as_one_vector(upload, clip_norm), seed)

    noise = Noise(
        mean=lambda: (NoisySumFactory(mechanism), mechanism.encode),
        branch_mean=lambda: (NoisySumFactory(mechanism, quotient), encode_branches),
        clients_per_round=clients_per_round,
    )
    private = noisy(algorithm, noise, noise_multiplier)
    made_for = private.made_for._replace(smallest_cohort=clients_per_round)
    return dataclasses.replace(private, made_for=made_for)


class NoisySumFactory(tff.aggregators.UnweightedAggregationFactory):
    """An aggregator that computes the mean of noisy integers by a secure sum.

    With `Y` a structure of int32 tensors and `T` the same structure of float32 tensors, `next` is

        (<()@SERVER, {Y}@CLIENTS>
         -> <state=()@SERVER, result=finish(T)@SERVER, measurements=<withheld=int32>@SERVER>)

    `withheld` is 1 if fewer clients report than expected, with too little noise, or if more clients
    report, whose sum may exceed the modulus. The mean is then NaN, so that a process made by
    `tff_pfl.compose` keeps its server state, with the metric `server_kept` 1.

    Attributes:
        mechanism: The mechanism that encodes the uploads.
        finish: `(T -> result)`, applied to the mean.
        reason: The reason why another aggregator cannot replace this one.
    """

    reason = "its clients round their uploads and add noise to them, for secure sums"

    def __init__(
        self, mechanism: DiscreteGaussian, finish: Callable[[Any], Any] = lambda mean: mean
    ):
        """Creates the factory; see the class for the arguments."""
        self.mechanism = mechanism
        self.finish = finish

    def create(self, value_type) -> tff.templates.AggregationProcess:
        """See the base class."""
        mechanism = self.mechanism
        sums = tff.aggregators.SecureModularSumFactory(mechanism.modulus).create(value_type)

        @tff.tensorflow.computation(value_type, np.int32)
        def mean(total, number):
            is_complete = tf.equal(number, mechanism.clients_per_round)
            found = tf.nest.map_structure(
                lambda leaf: tf.where(is_complete, leaf, np.nan),
                self.finish(mechanism.decode(total)),
            )
            return found, {"withheld": tf.cast(~is_complete, tf.int32)}

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
