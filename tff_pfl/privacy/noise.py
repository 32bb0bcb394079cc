"""Means of clipped uploads with Gaussian noise that is drawn from a seed.

`tff.aggregators.DifferentiallyPrivateFactory` clips and adds noise by a query of
`tensorflow_privacy`. Its noise is not reproducible, so simulations could not be repeated. The
queries of this module draw noise from a seed and the number of earlier draws, which is part of
their state. Anybody who knows the seed can subtract the noise, so use a seed only for simulations.
"""

import collections
import math

import tensorflow as tf
import tensorflow_federated as tff
import tensorflow_privacy as tfp

from tff_pfl.arguments.ranges import above, at_least, takes
from tff_pfl.local.seeds import NOISE_OF_COUNTS, NOISE_OF_UPLOADS, run_seed

# The noise of the count of clipped uploads, as a share of the expected number of clients, and the
# rate and quantile of the adaptive norm, as recommended by Andrew et al.
_DEVIATION_OF_COUNT = 0.05
_LEARNING_RATE = 0.2
_QUANTILE = 0.5


@takes(noise_multiplier=at_least(0), clients_per_round=above(0), clip_norm=above(0))
def fixed_clipping(
    noise_multiplier: float,
    clients_per_round: float,
    clip_norm: float,
    seed: int | None,
    *,
    secure: bool = False,
    stream: int = NOISE_OF_UPLOADS,
) -> tff.aggregators.UnweightedAggregationFactory:
    """Returns an aggregator for the noisy mean of uploads that are clipped to `clip_norm`.

        (1/k) ( sum_i u_i min(1, C / ||u_i||) + N(0, z^2 C^2) )

    (McMahan et al., "Learning differentially private recurrent language models", ICLR 2018.)

    Args:
        noise_multiplier: `z`.
        clients_per_round: `k`, the expected number of clients.
        clip_norm: `C`.
        seed: The seed of the noise, or `None` for noise that is not reproducible.
        secure: Whether secure sums add up the uploads, before the noise.
        stream: A number that distinguishes this noise from other noise with the same seed.
    """
    query = _sum_query(clip_norm, noise_multiplier * clip_norm, seed, stream)
    return _mean_of(query, clients_per_round, clip_norm if secure else None)


@takes(noise_multiplier=at_least(0), clients_per_round=above(0), clip_norm=above(0))
def adaptive_clipping(
    noise_multiplier: float,
    clients_per_round: float,
    clip_norm: float,
    seed: int | None,
    *,
    secure: bool = False,
) -> tff.aggregators.UnweightedAggregationFactory:
    """Returns an aggregator like `fixed_clipping`, with a `C` that tracks the median norm.

    The count of uploads that are shorter than `C` has its own noise. The noise of the mean is
    increased such that `noise_multiplier` holds for both together. (Andrew et al., "Differentially
    private learning with adaptive clipping", NeurIPS 2021.)

    Args:
        noise_multiplier: The noise multiplier of the mean and the count together, less than a tenth
            of `clients_per_round`.
        clients_per_round: See `fixed_clipping`.
        clip_norm: The initial `C`.
        seed: See `fixed_clipping`.
        secure: See `fixed_clipping`.

    Raises:
        ValueError: `noise_multiplier` is not less than a tenth of `clients_per_round`.
    """
    query = _AdaptiveQuery(
        seed,
        initial_l2_norm_clip=clip_norm,
        noise_multiplier=noise_of_mean(noise_multiplier, clients_per_round),
        target_unclipped_quantile=_QUANTILE,
        learning_rate=_LEARNING_RATE,
        clipped_count_stddev=_DEVIATION_OF_COUNT * clients_per_round if noise_multiplier else 0.0,
        expected_num_records=clients_per_round,
        is_scaled=secure,
    )
    return _mean_of(query, clients_per_round, 1.0 if secure else None)


@takes(noise_multiplier=at_least(0), clients_per_round=above(0))
def noise_of_mean(noise_multiplier: float, clients_per_round: float) -> float:
    """Computes the noise of the mean from `1 / z^2 = 1 / z_mean^2 + 1 / (2 b)^2`.

    Args:
        noise_multiplier: `z`.
        clients_per_round: The expected number of clients. The standard deviation of the count, `b`,
            is a twentieth of it.

    Raises:
        ValueError: `noise_multiplier` is not less than a tenth of `clients_per_round`.
    """
    count_noise = 2 * _DEVIATION_OF_COUNT * clients_per_round
    if noise_multiplier and not noise_multiplier < count_noise:
        raise ValueError(
            f"noise_multiplier must be below {2 * _DEVIATION_OF_COUNT:g} * clients_per_round = "
            f"{count_noise:g} for adaptive clipping, got {noise_multiplier:g}. Set "
            "clipping='fixed' or a larger clients_per_round; if the noise follows from epsilon, "
            "sampling='poisson' or a larger epsilon needs less."
        )
    return noise_without(noise_multiplier, count_noise)


def noise_without(noise_multiplier: float, part: float) -> float:
    """Computes the noise of the second of two vectors: `1 / z^2 = 1 / part^2 + 1 / rest^2`.

    Args:
        noise_multiplier: `z`, for both vectors together. If it is 0, so is the result.
        part: The noise of the first vector, above `z`.
    """
    if not noise_multiplier:
        return 0.0
    return noise_multiplier / math.sqrt(1.0 - (noise_multiplier / part) ** 2)


class ClippedGaussianSumQuery(tfp.GaussianSumQuery):
    """A query that also clips records whose norm overflows float32.

    `tfp.GaussianSumQuery` maps such records to NaN, which would reveal that the client took part.
    """

    def preprocess_record_impl(self, params, record):
        """See the base class; norms that overflow are `inf`."""
        leaves = tf.nest.flatten(record)
        norm = tf.linalg.global_norm(leaves)
        entries = [tf.reshape(tf.abs(leaf), [-1]) for leaf in leaves]
        largest = tf.reduce_max(tf.concat(entries, axis=0))
        # Shrunk uploads have a finite norm, which is above the clipping norm as before.
        shrunk = [leaf / largest * (2.0 * params) for leaf in leaves]
        fitting = [
            tf.where(tf.math.is_inf(norm), short, leaf)
            for short, leaf in zip(shrunk, leaves, strict=True)
        ]
        clipped, _ = tf.clip_by_global_norm(fitting, params)
        return tf.nest.pack_sequence_as(record, clipped), norm


class SeededGaussianSumQuery(ClippedGaussianSumQuery):
    """A query that draws noise from a seed and the number of earlier draws."""

    _GlobalState = collections.namedtuple("_GlobalState", ["l2_norm_clip", "stddev", "draws"])

    def __init__(self, l2_norm_clip: float, stddev: float, seed: int, stream: int):
        """Creates the query.

        Args:
            l2_norm_clip: The clipping norm of records.
            stddev: The standard deviation of the sum's noise.
            seed: The run's seed.
            stream: A number that distinguishes this noise from other noise with the same seed.
        """
        super().__init__(l2_norm_clip, stddev)
        self._seed = seed, stream

    def make_global_state(self, l2_norm_clip, stddev, draws=0):
        """See the base class."""
        norm, stddev = (tf.cast(value, tf.float32) for value in (l2_norm_clip, stddev))
        return self._GlobalState(norm, stddev, tf.cast(draws, tf.int32))

    def get_noised_result(self, sample_state, global_state):
        """See the base class."""
        _, _, event = super().get_noised_result((), global_state)
        fold_in = tf.random.experimental.stateless_fold_in
        seed = fold_in(run_seed(*self._seed), global_state.draws)
        noised = [
            leaf
            + tf.cast(
                global_state.stddev * tf.random.stateless_normal(leaf.shape, fold_in(seed, i)),
                leaf.dtype,
            )
            for i, leaf in enumerate(tf.nest.flatten(sample_state))
        ]
        new_state = global_state._replace(draws=global_state.draws + 1)
        return tf.nest.pack_sequence_as(sample_state, noised), new_state, event


class _SeededQuantileQuery(tfp.QuantileEstimatorQuery):
    def __init__(self, *args, seed, **options):
        self._seed = seed
        super().__init__(*args, **options)

    def _construct_below_estimate_query(self, below_estimate_stddev, expected_num_records):
        query = SeededGaussianSumQuery(0.5, below_estimate_stddev, self._seed, NOISE_OF_COUNTS)
        return tfp.NormalizedQuery(query, denominator=expected_num_records)


class _AdaptiveQuery(tfp.QuantileAdaptiveClipSumQuery):
    """A query that draws the noise of the base class from a seed.

    With `is_scaled`, records are summed in units of the current clipping norm, so that secure sums
    always round to steps of 2^-31 of this norm.
    """

    def __init__(self, seed, *, is_scaled, **options):
        super().__init__(**options)
        self._is_scaled = is_scaled
        norm = options["initial_l2_norm_clip"]
        self._is_seeded = seed is not None
        stddev = options["noise_multiplier"] * norm
        self._sum_query = _sum_query(norm, stddev, seed, NOISE_OF_UPLOADS)
        if self._is_seeded:
            self._quantile_estimator_query = _SeededQuantileQuery(
                norm,
                options["target_unclipped_quantile"],
                options["learning_rate"],
                options["clipped_count_stddev"],
                options["expected_num_records"],
                geometric_update=True,
                seed=seed,
            )

    def preprocess_record(self, params, record):
        record = super().preprocess_record(params, record)
        if not self._is_scaled:
            return record
        return _with_sums(lambda leaf: tf.math.divide_no_nan(leaf, params.sum_params), record)

    def get_noised_result(self, sample_state, global_state):
        if self._is_scaled:
            norm = global_state.sum_state.l2_norm_clip
            sample_state = _with_sums(lambda leaf: leaf * norm, sample_state)
        result, state, event = super().get_noised_result(sample_state, global_state)
        if self._is_seeded:  # The base class resets the state of the sum.
            draws = global_state.sum_state.draws + 1
            state = state._replace(sum_state=state.sum_state._replace(draws=draws))
        return result, state, event


def _with_sums(change, sample_state):
    changed = tf.nest.map_structure(change, sample_state.sum_state)
    return sample_state._replace(sum_state=changed)


def _sum_query(clip_norm, stddev, seed, stream):
    if seed is None:
        return ClippedGaussianSumQuery(clip_norm, stddev)
    return SeededGaussianSumQuery(clip_norm, stddev, seed, stream)


def _mean_of(query, clients_per_round, bound):
    """Returns the aggregator of the mean, with secure sums of numbers up to `bound` if given.

    Secure sums round to steps of `2^-31 bound`, which lengthens a record of `d` numbers by at most
    `sqrt(d) / 2^32 bound`. For a hundred thousand numbers this is 7e-8 of the bound.
    """
    mean = tfp.NormalizedQuery(query, denominator=clients_per_round)
    sum_ = None if bound is None else _UnmeasuredSecureSum(bound)
    return tff.aggregators.DifferentiallyPrivateFactory(mean, sum_)


class _UnmeasuredSecureSum(tff.aggregators.UnweightedAggregationFactory):
    """A `SecureSumFactory` without its counts of clipped clients, which have no noise."""

    def __init__(self, bound: float):
        self._factory = tff.aggregators.SecureSumFactory(bound, -bound)

    def create(self, value_type) -> tff.templates.AggregationProcess:
        inner = self._factory.create(value_type)

        @tff.federated_computation(
            inner.initialize.type_signature.result, tff.types.FederatedType(value_type, tff.CLIENTS)
        )
        def unmeasured(state, value):
            output = inner.next(state, value)
            nothing = tff.federated_value((), tff.SERVER)
            return tff.templates.MeasuredProcessOutput(output.state, output.result, nothing)

        return tff.templates.AggregationProcess(inner.initialize, unmeasured)
