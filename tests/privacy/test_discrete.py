"""Tests integers with noise: their norm, their noise, and their epsilon."""

import dp_accounting
import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
from dp_accounting import rdp

from tests.federation import vector
from tests.marks import together
from tff_pfl.privacy import Accountant, DiscreteGaussian, discrete_gaussian
from tff_pfl.templates.errors import AggregatorError

SIZE, CLIENTS, NORM = 500, 4, 0.5


def mechanism(noise_multiplier=1.0, **changes):
    options = {"clients_per_round": CLIENTS, "clip_norm": NORM, "bits": 20} | changes
    return DiscreteGaussian(noise_multiplier, **options)


def seed(number):
    return tf.constant([number, 1], tf.int32)


def upload(rng, scale=1.0):
    return [tf.constant(scale * rng.normal(size=shape), tf.float32) for shape in ((SIZE - 1,), ())]


def total(encoder, uploads):
    """Computes the sum, modulo the modulus, of encoded uploads with different seeds."""
    sent = [encoder.encode(values, seed(i)) for i, values in enumerate(uploads)]
    return [
        tf.math.floormod(tf.add_n(leaves), encoder.modulus) for leaves in zip(*sent, strict=True)
    ]


@pytest.mark.parametrize("deviation", [0.7, 3000.0])
def test_discrete_gaussian_has_the_probabilities_of_its_formula(deviation):
    drawn = discrete_gaussian(20_000, deviation, seed(0)).numpy()
    values = np.arange(-100_000, 100_001)
    weights = np.exp(-((values / deviation) ** 2) / 2)
    edges = np.unique(np.round(deviation * np.linspace(-2.5, 2.0, 9))) + 0.5
    bins = np.searchsorted(edges, drawn)
    expected = np.bincount(np.searchsorted(edges, values), weights / weights.sum())
    assert scipy.stats.chisquare(np.bincount(bins), 20_000 * expected).pvalue > 0.01


@together(("scale", "bits"), [(1e-4, 20), (0.02, 12), (1.0, 12), (1e15, 20)])
def test_norm_of_integers_is_within_the_bound(scale, bits):
    encoder, rng = mechanism(bits=bits), np.random.default_rng(1)
    for number in range(5):
        integers, quantization = encoder.rounded(upload(rng, scale), seed(number))
        norm = np.linalg.norm(integers.numpy().astype(float))
        assert 0 < norm <= quantization.norm_bound
    # The norm of a clipped upload is close to the bound, up to rounding with 12 bits.
    if scale >= 1.0:
        assert norm > (0.99 if bits == 20 else 0.8) * quantization.norm_bound


@pytest.mark.parametrize("noise_multiplier", [0.3, 8.0])
def test_noise_of_the_sum_has_the_accounted_deviation(noise_multiplier):
    """Measures the noise of the sum in units of the norm bound."""
    encoder = mechanism(noise_multiplier)
    zeros = [tf.zeros([SIZE - 1]), tf.zeros([])]
    noise = vector(total(encoder, [zeros] * CLIENTS)).astype(np.int64)
    half = encoder.modulus // 2
    noise = (noise + half) % encoder.modulus - half
    found = noise / (noise_multiplier * encoder.quantization(SIZE).norm_bound)
    assert scipy.stats.kstest(found, "norm").pvalue > 0.01
    assert found.std() == pytest.approx(1.0, abs=0.1)


def test_decoded_mean_is_of_clipped_uploads_up_to_rounding():
    rng = np.random.default_rng(2)
    uploads = [upload(rng, scale) for scale in (1e-3, 1.0, 10.0, 1e-2)]
    encoder = mechanism(0.0)
    clipped = [
        vector(values) * min(1.0, NORM / np.linalg.norm(vector(values))) for values in uploads
    ]
    found = encoder.decode(total(encoder, uploads))
    assert [leaf.shape for leaf in found] == [(SIZE - 1,), ()]
    error = vector(found) - np.mean(clipped, axis=0)
    # Rounding has a standard deviation of at most half an integer.
    assert error.std() < 0.5 / encoder.quantization(SIZE).scale / np.sqrt(CLIENTS)


@pytest.mark.thorough
def test_sum_of_equal_uploads_is_within_the_modulus():
    """Tests the worst case, in which the sum is largest."""
    one = [tf.concat([[NORM], tf.zeros([SIZE - 2])], 0), tf.constant(0.0)]
    encoder = mechanism(0.0, clients_per_round=50)
    found = encoder.decode(total(encoder, [one] * 50))
    np.testing.assert_allclose(vector(found), vector(one), atol=1e-4)


def test_noise_and_rounding_are_functions_of_the_seed():
    encoder, values = mechanism(), upload(np.random.default_rng(3))
    first, again, other = (vector(encoder.encode(values, seed(number))) for number in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.abs(np.corrcoef(first, other)[0, 1]) < 0.2


def test_moments_of_the_privacy_loss_equal_the_gaussian_mechanism(order=3):
    """Uses two integers that differ by 3; for vectors, moments are multiplied."""
    deviation, shift = 4.0, 3
    values = np.arange(-100, 101)
    weights = np.exp(-((values / deviation) ** 2) / 2)
    moved = np.exp(-(((values - shift) / deviation) ** 2) / 2)
    moment = np.sum(weights * (moved / weights) ** order) / weights.sum()
    gaussian = np.exp(order * (order - 1) * (shift / deviation) ** 2 / 2)
    assert moment == pytest.approx(gaussian, rel=1e-9)


@pytest.mark.thorough
def test_epsilon_of_the_sum_equals_dp_accounting():
    """Computes it from the deviation and the largest difference of integers."""
    accountant = Accountant(100, CLIENTS, 1e-3, "fixed")
    z = accountant.noise_multiplier(epsilon=4.0, rounds=10)
    quantization = mechanism(z).quantization(SIZE)
    sum_deviation = np.sqrt(CLIENTS) * quantization.deviation
    by_hand = rdp.RdpAccountant(
        orders=range(2, 40), neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE
    )
    gaussian = dp_accounting.GaussianDpEvent(sum_deviation / (2 * quantization.norm_bound))
    by_hand.compose(dp_accounting.SampledWithoutReplacementDpEvent(100, CLIENTS, gaussian), 10)
    assert by_hand.get_epsilon(1e-3) == pytest.approx(4.0, rel=0.01)
    # The bound exceeds the norm before rounding, which would give too small an epsilon.
    assert quantization.norm_bound > quantization.scale * NORM + np.sqrt(SIZE)


@together(
    ("changes", "size", "message"),
    [
        ({"bits": 8}, 10_000, "bits=8 are too few for 10000 numbers of 4 clients .* Set more bits"),
        ({"noise_multiplier": 0.001, "bits": 8}, 10, "noise would be below 4 integers"),
    ],
)
def test_quantization_refuses_too_few_bits(changes, size, message):
    with pytest.raises(AggregatorError, match=message):
        mechanism(**changes).quantization(size)


def test_encode_refuses_other_types():
    with pytest.raises(AggregatorError, match="needs float32 uploads, found"):
        mechanism().encode([tf.zeros([3], tf.float64)], seed(0))
