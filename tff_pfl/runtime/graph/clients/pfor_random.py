"""Draws stateless random numbers for many clients at once.

TensorFlow draws them by Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2,
3", SC 2011) from a key and a counter, one client at a time. This module draws the same numbers, bit
for bit, for a stack of keys and counters by arithmetic on 64-bit integers.
"""

import functools
import math

import tensorflow as tf

from tff_pfl.runtime.graph import internals

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_THREEFRY = 2  # TensorFlow's number of its other algorithm
_DTYPES = (tf.int32, tf.uint32, tf.int64, tf.uint64, tf.float32, tf.float64)
_KEY_AND_COUNTER = "StatelessRandomGetKeyCounter"
_LEAST = 1e-7  # the least uniform number of which TensorFlow takes a logarithm
# Constants that TensorFlow mixes with a seed to get a key and a counter.
_SEED_KEY = (0x3EC8F720, 0x02461E29)


# Each function is traced once in a process, and each call of it is one operation.
_traced_once = tf.function(autograph=False, reduce_retracing=True)


@_traced_once
def key_and_counter(seeds: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Computes the keys `uint64[n, 1]` and counters `uint64[n, 2]` of integer seeds `[n, 2]`.

    They equal the results of `StatelessRandomGetKeyCounter`.
    """
    seeds = tf.ensure_shape(tf.cast(seeds, tf.int64), [None, 2])
    key = tf.constant([_SEED_KEY], tf.int64)
    words = _philox(key[:, tf.newaxis], _words(seeds)[:, tf.newaxis])[:, 0]
    key, high = _join(words[:, :2]), _join(words[:, 2:])
    counter = tf.concat([tf.zeros_like(high), high], axis=1)
    return tf.bitcast(key, tf.uint64), tf.bitcast(counter, tf.uint64)


@_traced_once
def bits(keys: tf.Tensor, counters: tf.Tensor, count) -> tf.Tensor:
    """Draws `count` numbers of 32 bits for each key, as `int64[n, count]`."""
    blocks = tf.range(tf.cast((count + 3) // 4, tf.int64))
    keys, counters = (
        tf.ensure_shape(tf.bitcast(words, tf.int64), [None, length])
        for words, length in ((keys, 1), (counters, 2))
    )
    low = counters[:, tf.newaxis, :1] + blocks[:, tf.newaxis]
    high = tf.broadcast_to(counters[:, tf.newaxis, 1:], tf.shape(low))
    words = _philox(_words(keys)[:, tf.newaxis], _words(tf.concat([low, high], axis=2)))
    return tf.reshape(words, tf.stack([tf.shape(words)[0], -1]))[:, :count]


def rules(general, compiled: bool) -> dict:
    """Returns parallel-for rules for random operations, some of which fall back on `general`.

    Args:
        general: TensorFlow's rules.
        compiled: Whether XLA compiles the result. XLA's own random operations draw other numbers
            than TensorFlow's, so that all draws become arithmetic, normal ones too. These equal
            TensorFlow's up to the rounding of logarithms and sines.
    """
    names = _DRAWS if compiled else _DRAWS.keys() - {"StatelessRandomNormalV2"}
    return {
        _KEY_AND_COUNTER: _convert_key_and_counter,
        **{
            name: functools.partial(_convert_draw, general[name], _DRAWS[name], compiled)
            for name in names
        },
    }


def _convert_key_and_counter(pfor_input):
    (seed,) = pfor_input.inputs
    outputs = key_and_counter(seed.t if seed.is_stacked else seed.t[tf.newaxis])
    return [
        internals.pfor_wrap(output if seed.is_stacked else output[0], seed.is_stacked)
        for output in outputs
    ]


def _convert_draw(general_rule, draw, compiled, pfor_input):
    """Converts a draw, whose inputs are its shape, key, counter and algorithm, and any bounds."""
    shape, key, counter, algorithm, *bounds = pfor_input.inputs
    dtype = pfor_input.outputs[0].dtype
    if tf.get_static_value(algorithm.t) == _THREEFRY or dtype not in _DTYPES or shape.is_stacked:
        return general_rule(pfor_input)
    is_stacked = key.is_stacked and counter.is_stacked
    is_shared = not any(x.is_stacked for x in pfor_input.inputs)
    if not (is_stacked or (compiled and is_shared)):
        return general_rule(pfor_input)
    keys, counters = (x.t if is_stacked else x.t[tf.newaxis] for x in (key, counter))
    bounds = (x.t[:, tf.newaxis] if x.is_stacked else x.t for x in bounds)
    shape = tf.concat([tf.shape(keys)[:1], tf.cast(shape.t, tf.int32)], axis=0)
    drawn = draw(dtype, keys, counters, tf.reduce_prod(shape[1:]), *bounds)
    drawn = tf.reshape(drawn, shape)
    return internals.pfor_wrap(drawn if is_stacked else drawn[0], is_stacked)


# Each of the following functions draws `[n, count]` numbers of a type, as TensorFlow does.


def _full_integers(dtype, keys, counters, count):
    if dtype.size == 4:
        return tf.cast(bits(keys, counters, count), dtype)
    return tf.bitcast(_join(_pairs(bits(keys, counters, 2 * count)))[..., 0], dtype)


def _integers(dtype, keys, counters, count, least, end):
    drawn = _full_integers(tf.uint32 if dtype.size == 4 else tf.uint64, keys, counters, count)
    least, end = tf.cast(least, tf.int64), tf.cast(end, tf.int64)
    choices = tf.bitcast(end - least, tf.uint64)
    remainder = tf.math.floormod(tf.cast(drawn, tf.uint64), choices)
    return tf.cast(least + tf.bitcast(remainder, tf.int64), dtype)


def _uniform(dtype, keys, counters, count):
    """Draws from [0, 1): random bits are the mantissa of a number in [1, 2)."""
    if dtype == tf.float32:
        words = bits(keys, counters, count)
        mantissa = tf.bitwise.bitwise_or(tf.bitwise.bitwise_and(words, 0x7FFFFF), 0x3F800000)
        return tf.bitcast(tf.cast(mantissa, tf.int32), tf.float32) - 1.0
    words = _pairs(bits(keys, counters, 2 * count))
    high = tf.bitwise.bitwise_or(tf.bitwise.bitwise_and(words[..., :1], 0xFFFFF), 0x3FF00000)
    mantissa = _join(tf.concat([words[..., 1:], high], axis=-1))[..., 0]
    return tf.bitcast(mantissa, tf.float64) - 1.0


def _normal(dtype, keys, counters, count):
    """Draws two normal numbers from two uniform ones by the method of Box and Muller."""
    pairs = _pairs(_uniform(dtype, keys, counters, count + count % 2))
    length = tf.sqrt(-2 * tf.math.log(tf.maximum(pairs[..., 0], _LEAST)))
    angle = 2 * math.pi * pairs[..., 1]
    drawn = tf.stack([tf.sin(angle) * length, tf.cos(angle) * length], axis=-1)
    return tf.reshape(drawn, [tf.shape(keys)[0], count + count % 2])[:, :count]


def _pairs(numbers):
    """Reshapes numbers `[n, 2 k]` to `[n, k, 2]`."""
    return tf.reshape(numbers, [tf.shape(numbers)[0], tf.shape(numbers)[1] // 2, 2])


_DRAWS = {
    "StatelessRandomNormalV2": _normal,
    "StatelessRandomUniformFullIntV2": _full_integers,
    "StatelessRandomUniformIntV2": _integers,
    "StatelessRandomUniformV2": _uniform,
}
OPERATIONS = (_KEY_AND_COUNTER, *_DRAWS)


def _words(numbers):
    """Splits 64-bit numbers `[..., k]` into 32-bit words, lower first, `int64[..., 2 k]`."""
    pairs = tf.stack([numbers, tf.bitwise.right_shift(numbers, tf.constant(32, tf.int64))], axis=-1)
    words = tf.bitwise.bitwise_and(pairs, tf.constant(_MASK, tf.int64))
    return tf.reshape(words, tf.concat([tf.shape(numbers)[:-1], [2 * numbers.shape[-1]]], axis=0))


def _join(words):
    """Joins two words `int64[..., 2]` to a 64-bit number `int64[..., 1]`."""
    return tf.bitwise.bitwise_or(
        words[..., :1], tf.bitwise.left_shift(words[..., 1:], tf.constant(32, tf.int64))
    )


def _philox(key, counter):
    """Computes four words `int64[..., 4]` from a key `[..., 2]` and a counter `[..., 4]`."""
    mask = tf.constant(_MASK, tf.int64)
    multipliers = tf.constant(_MULTIPLIERS, tf.int64)
    steps = tf.constant(_KEY_STEPS, tf.int64)
    left, right = counter[..., 0::2], counter[..., 1::2]
    for index in range(_ROUNDS):
        round_key = tf.bitwise.bitwise_and(key + index * steps, mask)
        product = tf.reverse(left * multipliers, [-1])
        high = tf.bitwise.bitwise_and(
            tf.bitwise.right_shift(product, tf.constant(32, tf.int64)), mask
        )
        left = tf.bitwise.bitwise_xor(tf.bitwise.bitwise_xor(high, right), round_key)
        right = tf.bitwise.bitwise_and(product, mask)
    words = tf.stack([left, right], axis=-1)
    return tf.reshape(words, tf.concat([tf.shape(left)[:-1], [4]], axis=0))
