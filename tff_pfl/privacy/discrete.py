"""The distributed discrete Gaussian mechanism, in which each client adds a part of the noise.

Client `i` of `k` converts a vector of `d` numbers, clipped to the norm `C`, to integers, with a
scale `s` and a rotation `R` that all clients share:

    x_i = round( s R u_i min(1, C / ||u_i||) ),        each number up or down at random
    y_i = x_i + N_Z(0, z^2 D^2 / k)  modulo 2^bits,    D = s C + sqrt(d)

The server learns the sum of the `y_i` by a secure sum with this modulus. Rounding changes a number
by less than 1, so `D` bounds the norm of `x_i`. The noise is relative to `D`, not to `s C`: in the
sum, it has the standard deviation `z D`. (Kairouz, Liu, Steinke, "The distributed discrete Gaussian
mechanism for federated learning with secure aggregation", ICML 2021, Algorithms 1 and 2, with a
rounding that is not repeated.)

For vectors of integers, the moments of integer order of the privacy loss of discrete Gaussian noise
equal those of the Gaussian mechanism: `E_q[(p / q)^a] = exp(a (a - 1) ||x - x'||^2 / (2 z^2 D^2))`.
Epsilon of cohorts of a fixed size is computed only from these moments, and thus is the same. The
sum of `k` discrete Gaussians is a discrete Gaussian up to a factor in the probabilities of at most
`exp(10 d k e^(-pi^2 t^2))`, where `t` is the deviation of one client's noise (Theorem 5). The
factor is 1 for `t >= 4`.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import tensorflow as tf

from tff_pfl.arguments.ranges import above, at_least, takes, whole
from tff_pfl.compression.rotation import rotated, rotated_back
from tff_pfl.local import trees
from tff_pfl.templates.errors import AggregatorError

# Folded into a client's seed, so that noise and training draw different numbers.
_ROUNDING, _NOISE = 0x20DD, 0x9015E
_ROTATION = (0, 0x2074)  # The seed of the rotation, which is public and the same for all.
_LEAST_DEVIATION = 4.0
# The modulus holds this many standard deviations of a number of the sum.
_DEVIATIONS_WITHIN = 6.0
# The relative error of the norm of a clipped vector in single precision.
_LEEWAY = 1e-4
# Noise beyond this many of its standard deviations has a probability below 1e-18.
_LONGEST_TAIL = 9.0


class Quantization(NamedTuple):
    """The quantization of vectors of a given size to integers.

    Attributes:
        scale: `s`, in integers per unit.
        norm_bound: `D`, the bound of the norm of a client's integers.
        deviation: The standard deviation of a client's noise, in integers.
    """

    scale: float
    norm_bound: float
    deviation: float


@takes(
    noise_multiplier=at_least(0), clients_per_round=whole(1), clip_norm=above(0), bits=whole(8, 24)
)
@dataclasses.dataclass(frozen=True)
class DiscreteGaussian:
    """The distributed discrete Gaussian mechanism.

    Attributes:
        noise_multiplier: `z`, relative to `D`.
        clients_per_round: `k`, the number of clients, all of which must report.
        clip_norm: `C`.
        bits: The number of bits of each number that is sent, and of the sum.
    """

    noise_multiplier: float
    clients_per_round: int
    clip_norm: float
    bits: int = 20

    @property
    def modulus(self) -> int:
        """The modulus of the secure sum."""
        return 1 << self.bits

    def quantization(self, size: int) -> Quantization:
        """Finds the finest quantization with which the sum stays within the modulus.

        The rotation makes the numbers of a vector similar. In the sum of `k` vectors of length
        `r = s C`, they have a standard deviation of at most `k r / sqrt(m)`, where `m` is the
        largest power of two up to `d`. Rounding adds a deviation of `sqrt(k) / 2`, and the noise
        one of `z (r + sqrt(d))`. `r` is chosen such that the total deviation is a sixth of half the
        modulus.

        Args:
            size: `d`, the size of the vectors.

        Raises:
            AggregatorError: There are too few bits.
        """
        z, k, root = self.noise_multiplier, self.clients_per_round, math.sqrt(size)
        most = self.modulus / 2 / _DEVIATIONS_WITHIN
        evened_out = 1 << (int(size).bit_length() - 1)  # `m`; rotations are of powers of two.
        # The length is the positive root of a r^2 + 2 b r + c = 0.
        a = k**2 / evened_out + z**2
        b = z**2 * root
        c = (z * root) ** 2 + k / 4 - most**2
        length = (math.sqrt(b**2 - a * c) - b) / a if c < 0 else 0.0
        norm_bound = length * (1 + _LEEWAY) + root
        deviation = z * norm_bound / math.sqrt(k)
        if length < root or 0 < deviation < _LEAST_DEVIATION:
            raise AggregatorError(
                f"config.privacy.bits={self.bits} are too few for {size} numbers of {k} clients "
                f"with noise of {z:.3g} clipping norms: rounding would move an upload by more than "
                "the clipping norm, or a client's noise would be below "
                f"{_LEAST_DEVIATION:g} integers. Set more bits, up to 24, or use a smaller model."
            )
        return Quantization(length / self.clip_norm, norm_bound, deviation)

    def encode(self, upload: Any, seed: tf.Tensor) -> Any:
        """Encodes an upload as `y`, int32 from 0 to the modulus, in the upload's structure.

        Args:
            upload: A structure of finite float32 tensors.
            seed: int32 `[2]`, the seed of the client, the round and the exchange.

        Raises:
            AggregatorError: The upload has tensors of another type, or there are too few bits.
        """
        integers, quantization = self.rounded(upload, seed)
        if quantization.deviation:
            seed = tf.random.experimental.stateless_fold_in(seed, _NOISE)
            integers += discrete_gaussian(integers.shape[0], quantization.deviation, seed)
        integers = tf.math.floormod(integers, self.modulus)
        leaves = [tf.TensorSpec(leaf.shape, tf.int32) for leaf in tf.nest.flatten(upload)]
        return trees.from_vector(integers, tf.nest.pack_sequence_as(upload, leaves))

    def rounded(self, upload: Any, seed: tf.Tensor) -> tuple[tf.Tensor, Quantization]:
        """Computes `x`, the integers without noise: int32 `[d]` with a norm of at most `D`."""
        if any(leaf.dtype != tf.float32 for leaf in tf.nest.flatten(upload)):
            raise AggregatorError(
                f"Distributed noise needs float32 uploads, found\n  {trees.specs(upload)}"
            )
        vector = trees.to_vector(upload)
        quantization = self.quantization(vector.shape[0])
        length = tf.cast(tf.norm(tf.cast(vector, tf.float64)), tf.float32)
        vector *= self.clip_norm / tf.maximum(length, self.clip_norm)
        vector = quantization.scale * rotated(vector, tf.constant(_ROTATION))
        seed = tf.random.experimental.stateless_fold_in(seed, _ROUNDING)
        floor = tf.floor(vector)
        is_up = tf.random.stateless_uniform(vector.shape, seed) < vector - floor
        integers = tf.cast(floor, tf.int32) + tf.cast(is_up, tf.int32)
        # Enforces the bound, on which privacy depends, regardless of rounding errors above.
        is_within = tf.norm(tf.cast(integers, tf.float64)) <= quantization.norm_bound
        return tf.where(is_within, integers, 0), quantization

    def decode(self, total: Any) -> Any:
        """Decodes the sum of encoded uploads, modulo the modulus, to the float32 mean."""
        vector = trees.to_vector(total)
        half = self.modulus // 2
        centred = tf.math.floormod(vector + half, self.modulus) - half
        scale = self.quantization(vector.shape[0]).scale * self.clients_per_round
        vector = rotated_back(tf.cast(centred, tf.float32) / scale, tf.constant(_ROTATION))
        leaves = [tf.TensorSpec(leaf.shape, tf.float32) for leaf in tf.nest.flatten(total)]
        return trees.from_vector(vector, tf.nest.pack_sequence_as(total, leaves))


def discrete_gaussian(size: int, deviation: float, seed: tf.Tensor) -> tf.Tensor:
    """Draws integers `x` with probabilities proportional to `exp(-x^2 / (2 deviation^2))`.

    Probabilities are computed in double precision, and tails with a probability below 1e-18 are cut
    off.

    Args:
        size: The number of integers.
        deviation: The deviation, above 0.
        seed: int32 `[2]`.

    Returns:
        int32 `[size]`.
    """
    most = math.ceil(_LONGEST_TAIL * deviation)
    values = tf.range(-most, most + 1, dtype=tf.float64)
    cumulated = tf.cumsum(tf.exp(-((values / deviation) ** 2) / 2))
    drawn = cumulated[-1] * tf.random.stateless_uniform([size], seed, dtype=tf.float64)
    return tf.searchsorted(cumulated, drawn, side="right") - most
