"""Means of clipped uploads with Gaussian noise, which is drawn from a seed.

`tff.aggregators.DifferentiallyPrivateFactory` clips and adds noise by a query of
`tensorflow_privacy`, which draws anew wherever it is computed: a simulation could not be repeated.
These queries draw from a seed and the number of draws before, which is part of their state. Whoever
knows the seed can subtract the noise: it is for simulations alone.
"""

import collections
import math

import tensorflow as tf
import tensorflow_federated as tff
import tensorflow_privacy as tfp

from tff_pfl.local.seeds import NOISE_OF_COUNTS, NOISE_OF_UPLOADS, run_seed
from tff_pfl.ranges import above, at_least, takes

# Relative to the expected number of clients, as Andrew et al. recommend.
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
    """Returns an aggregator: the noisy mean of uploads that are shortened to `clip_norm`.

        (1/k) ( sum_i u_i min(1, C / ||u_i||) + N(0, z^2 C^2) )

    (McMahan et al., "Learning differentially private recurrent language models", ICLR 2018.)

    Args:
        noise_multiplier: `z`.
        clients_per_round: `k`, the expected number.
        clip_norm: `C`.
        seed: Seed of the noise; `None`: drawn anew.
        secure: Whether uploads are added by secure sums, before the noise.
        stream: Distinguishes this noise from other noise of the same seed.
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
    """Returns the same with a `C` that moves towards the median norm of uploads.

    The count of shorter uploads has noise of its own. The mean has so much more noise that
    `noise_multiplier` holds for both together. (Andrew et al., "Differentially private learning
    with adaptive clipping", NeurIPS 2021.)

    Args:
        noise_multiplier: For the mean and the count together; less than a tenth of
            `clients_per_round`.
        clients_per_round: See `fixed_clipping`.
        clip_norm: The first `C`.
        seed: See `fixed_clipping`.
        secure: See `fixed_clipping`.

    Raises:
        ValueError: If the count has so much noise that none is left for the mean.
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
    """Computes the noise of the mean: `1 / z^2 = 1 / z_mean^2 + 1 / (2 b)^2`.

    Args:
        noise_multiplier: `z`.
        clients_per_round: `b`, the standard deviation of the count, is a twentieth of it.

    Raises:
        ValueError: If the count has so much noise that none is left for the mean.
    """
    of_count = 2 * _DEVIATION_OF_COUNT * clients_per_round
    if noise_multiplier and not noise_multiplier < of_count:
        raise ValueError(
            f"noise_multiplier must be below {2 * _DEVIATION_OF_COUNT:g} * clients_per_round = "
            f"{of_count:g} for a clipping norm that adapts, got {noise_multiplier:g}."
        )
    return noise_without(noise_multiplier, of_count)


def noise_without(noise_multiplier: float, part: float) -> float:
    """Computes the other noise of two vectors: `1 / z^2 = 1 / part^2 + 1 / rest^2`.

    Args:
        noise_multiplier: `z`, for both together; with 0, the result is 0.
        part: The noise of one of them, above `z`.
    """
    if not noise_multiplier:
        return 0.0
    return noise_multiplier / math.sqrt(1.0 - (noise_multiplier / part) ** 2)


class ClippedGaussianSumQuery(tfp.GaussianSumQuery):
    """Clips records whose norm overflows float32, too.

    `tfp.GaussianSumQuery` turns these into NaN, which would reveal who took part.
    """

    def preprocess_record_impl(self, params, record):
        """See the base class; a norm that overflows is `inf`."""
        leaves = tf.nest.flatten(record)
        norm = tf.linalg.global_norm(leaves)
        entries = [tf.reshape(tf.abs(leaf), [-1]) for leaf in leaves]
        largest = tf.reduce_max(tf.concat(entries, axis=0))
        # As long as can be measured, and still longer than the clipping norm.
        shrunk = [leaf / largest * (2.0 * params) for leaf in leaves]
        fitting = [
            tf.where(tf.math.is_inf(norm), short, leaf)
            for short, leaf in zip(shrunk, leaves, strict=True)
        ]
        clipped, _ = tf.clip_by_global_norm(fitting, params)
        return tf.nest.pack_sequence_as(record, clipped), norm


class SeededGaussianSumQuery(ClippedGaussianSumQuery):
    """Draws noise from a seed and the number of draws before."""

    _GlobalState = collections.namedtuple("_GlobalState", ["l2_norm_clip", "stddev", "draws"])

    def __init__(self, l2_norm_clip: float, stddev: float, seed: int, stream: int):
        """Creates the query.

        Args:
            l2_norm_clip: Longest norm of a record.
            stddev: Standard deviation of the noise of the sum.
            seed: The run's seed.
            stream: Distinguishes this noise from other noise of the same seed.
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
    """Seeds the noise of the base class.

    With `is_scaled`, records are summed in units of the present clipping norm, so that secure sums
    always round to steps of 2^-31 of that norm.
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
        if self._is_seeded:  # the base class makes the state of the sum anew
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
    """Returns the aggregator of the mean, by secure sums of numbers up to `bound` if it is given.

    Secure sums round to steps of `2^-31 bound`, which lengthens a record of `d` numbers by at most
    `sqrt(d) / 2^32 bound`: 7e-8 of the bound for a hundred thousand numbers.
    """
    mean = tfp.NormalizedQuery(query, denominator=clients_per_round)
    sum_ = None if bound is None else _UnmeasuredSecureSum(bound)
    return tff.aggregators.DifferentiallyPrivateFactory(mean, sum_)


class _UnmeasuredSecureSum(tff.aggregators.UnweightedAggregationFactory):
    """`SecureSumFactory` without its counts of clipped clients, which have no noise."""

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
