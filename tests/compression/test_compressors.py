"""Tests compressors on vectors, against NumPy and proven bounds."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.marks import slow, together
from tff_pfl.compression import COMPRESSORS, half, quantized, rescaled, top_k
from tff_pfl.compression.compressors import packed, unpacked
from tff_pfl.compression.rotation import hadamard, rotated, rotated_back

SEED = tf.constant([3, 5])
SIZES = (1, 2, 3, 37, 64, 100)


def vector_of(size, seed=0):
    return tf.constant(np.random.default_rng([size, seed]).normal(size=size), tf.float32)


def decoded(compressor, vector, seed=SEED):
    return compressor.decode(compressor.encode(vector, seed), vector.shape[0]).numpy()


def message_bytes(compressor, size):
    message = compressor.encode(vector_of(size), SEED)
    return sum(leaf.dtype.size * leaf.shape.num_elements() for leaf in tf.nest.flatten(message))


def every_compressor():
    for name in COMPRESSORS:
        yield COMPRESSORS[name]()
        yield rescaled(COMPRESSORS[name]())


def test_unpacked_inverts_packed():
    for bits in range(1, 17):
        in_a_word = 32 // bits
        for size in (1, in_a_word, 2 * in_a_word + 1):
            numbers = np.random.default_rng(size).integers(0, 2**bits, size).astype(np.int32)
            numbers[-1] = 2**bits - 1
            words = packed(tf.constant(numbers), bits)
            assert words.dtype == tf.int32
            assert words.shape == [-(-size // in_a_word)]
            np.testing.assert_array_equal(unpacked(words, bits, size), numbers)


def test_hadamard_matches_sylvesters_construction():
    sylvester = np.ones([1, 1])
    for size in (1, 2, 4, 8):
        rows = np.stack([hadamard(tf.constant(row)) for row in np.eye(size, dtype=np.float32)])
        np.testing.assert_allclose(rows, sylvester / np.sqrt(size), atol=1e-6)
        sylvester = np.block([[sylvester, sylvester], [sylvester, -sylvester]])


def test_rotation_keeps_norms_and_can_be_inverted():
    for size in SIZES:
        vector = vector_of(size)
        turned = rotated(vector, SEED)
        assert turned.shape == vector.shape
        np.testing.assert_allclose(tf.norm(turned), tf.norm(vector), rtol=1e-5)
        np.testing.assert_allclose(rotated_back(turned, SEED), vector, atol=1e-5)


def test_rotation_spreads_a_single_entry():
    for entry in (0, 50, 99):  # In the first 64 entries, in both parts, in the last 64.
        turned = rotated(tf.one_hot(entry, 100), SEED)
        assert np.max(np.abs(turned)) < 0.3
    vector = vector_of(100)
    assert not np.allclose(rotated(vector, SEED), rotated(vector, SEED + 1))


@together("size", [1, 37, 64, 100])
def test_quantization_errors_are_less_than_a_step(size):
    vector = vector_of(size)
    for bits in (1, 4, 16):
        compressor = quantized(bits=bits, rotation=False)
        step = float(compressor.encode(vector, SEED).step)
        spread = float(tf.reduce_max(vector) - tf.reduce_min(vector))
        assert step == pytest.approx(spread / (2**bits - 1), rel=1e-5)
        error = np.abs(decoded(compressor, vector) - vector)
        assert np.all(error <= step + 1e-5 * spread)
        turned = quantized(bits=bits)
        step = float(turned.encode(vector, SEED).step)
        error = np.linalg.norm(decoded(turned, vector) - vector)
        assert error <= step * np.sqrt(size) + 1e-5 * np.linalg.norm(vector)


@pytest.mark.thorough
@pytest.mark.parametrize("rotation", [slow(False), True])
def test_quantization_is_unbiased(rotation):
    vector, draws = vector_of(20), 2000
    compressor = quantized(bits=2, rotation=rotation)

    @tf.function
    def mean_error():
        seeds = tf.stack([tf.range(draws), tf.ones([draws], tf.int32)], axis=1)
        found = tf.vectorized_map(
            lambda seed: compressor.decode(compressor.encode(vector, seed), 20), seeds
        )
        return tf.reduce_mean(found, axis=0) - vector, tf.math.reduce_std(found, axis=0)

    bias, deviation = mean_error()
    assert np.max(deviation) > 0.3  # The quantization is lossy.
    assert np.all(np.abs(bias) < 5 * deviation / np.sqrt(draws) + 1e-5)


def test_rotation_helps_if_few_entries_are_large():
    vector = vector_of(1000) * tf.where(tf.range(1000) < 5, 100.0, 1.0)

    def error(rotation):
        compressor = quantized(bits=4, rotation=rotation)
        return np.linalg.norm(decoded(compressor, vector) - vector)

    assert error(rotation=True) < 0.5 * error(rotation=False)


def test_seed_determines_the_message():
    vector = vector_of(37)
    for bits in (1, 8):
        encode = quantized(bits=bits).encode
        words = [encode(vector, tf.constant(seed)).words for seed in ((3, 5), (3, 5), (3, 6))]
        np.testing.assert_array_equal(words[0], words[1])
        assert not np.array_equal(words[0], words[2])


def test_top_k_keeps_the_largest_entries():
    vector = tf.constant([0.1, -5.0, 0.0, 3.0, -0.2, 4.0, 1.0, -1.5, 0.3, 0.4])
    np.testing.assert_allclose(
        decoded(top_k(share=0.3), vector), [0, -5, 0, 3, 0, 4, 0, 0, 0, 0], rtol=1e-6
    )
    np.testing.assert_array_equal(decoded(top_k(share=1), vector), vector)
    for share, kept in ((0, 1), (0.01, 1), (0.11, 2), (0.2, 2)):
        assert np.count_nonzero(decoded(top_k(share=share), vector)) == kept
    # Rounding must not give 8.
    assert top_k(share=0.07).encode(vector_of(100), SEED).values.shape == [7]


def test_half_is_precise_within_its_range():
    vector = vector_of(100)
    for precision, error in (("bfloat16", 2.0**-8), ("float16", 2.0**-11)):
        found = decoded(half(precision=precision), vector)
        np.testing.assert_allclose(found, vector, rtol=error, atol=1e-7)
        assert not np.array_equal(found, vector)
    large = tf.constant([1e5])
    assert np.isfinite(decoded(half(), large)).all()
    assert np.isinf(decoded(half(precision="float16"), large)).all()
    with pytest.raises(ValueError, match="precision 'float15'"):
        half(precision="float15")


def test_messages_have_the_documented_bytes():
    for compressor, expected in (
        (half(), 2 * 1001),
        (top_k(share=0.01), 8 * 11),
        (quantized(bits=8), 4 * 251 + 16),
        (quantized(bits=1, rotation=False), 4 * 32 + 8),
        (rescaled(quantized(bits=4)), 4 * 126 + 16 + 4),
        (rescaled(top_k(share=0.01)), 8 * 11),
    ):
        assert message_bytes(compressor, 1001) == expected


def test_zeros_are_exact_and_messages_of_zeros_are_finite():
    for compressor in every_compressor():
        np.testing.assert_array_equal(decoded(compressor, tf.zeros([37])), np.zeros(37))
        message = tf.nest.map_structure(tf.zeros_like, compressor.encode(vector_of(37), SEED))
        np.testing.assert_array_equal(compressor.decode(message, 37), np.zeros(37))
    constant = tf.fill([37], 0.3)
    np.testing.assert_array_equal(decoded(quantized(rotation=False), constant), constant)


def test_contractions_are_never_farther_than_zeros():
    """Includes one bit, whose quantization is far off without rescaling."""
    vector = vector_of(1000)
    length = np.linalg.norm(vector)
    assert np.linalg.norm(decoded(quantized(bits=1), vector) - vector) > 2 * length
    for size in SIZES:
        vector = vector_of(size)
        for compressor in [*every_compressor(), rescaled(quantized(bits=1))]:
            if compressor.is_contraction:
                error = np.linalg.norm(decoded(compressor, vector) - vector)
                assert error <= np.linalg.norm(vector) * (1 + 1e-5)


@pytest.mark.thorough
def test_residuals_stay_bounded():
    """Compresses the same change in each round, for which residuals grow without rescaling."""

    def longest_residual(compressor):
        change = vector_of(100)
        residual, lengths = tf.zeros([100]), []
        for round_num in range(15):
            vector = change + residual
            residual = vector - decoded(compressor, vector, tf.constant([round_num, 0]))
            lengths.append(np.linalg.norm(residual) / np.linalg.norm(change))
        return max(lengths)

    assert longest_residual(quantized(bits=1)) > 1e3
    assert longest_residual(rescaled(quantized(bits=1))) < 12
    assert longest_residual(rescaled(quantized(bits=4))) < 0.5


def test_compression_can_be_vectorised():
    """Tests the compressors that the test of unbiased quantization does not vectorise."""
    vectors = tf.stack([vector_of(37, seed) for seed in range(4)])
    seeds = tf.constant([[i, 7] for i in range(4)])
    for compressor in (half(), top_k()):

        def encode_and_decode(compressor, pair):
            return compressor.decode(compressor.encode(*pair), 37)

        one = functools.partial(encode_and_decode, compressor)
        at_once = tf.function(lambda one=one: tf.vectorized_map(one, (vectors, seeds)))()
        one_by_one = [one((vectors[i], seeds[i])) for i in range(4)]
        np.testing.assert_allclose(at_once, one_by_one, atol=1e-5)
