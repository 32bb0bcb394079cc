"""Draws stateless random numbers for many clients at once.

TensorFlow draws them by Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2,
3", SC 2011) from a key and a counter, one client at a time. This module draws the same numbers, bit
for bit, for a stack of keys and counters by arithmetic on 64-bit integers.
"""

import functools

import tensorflow as tf

from tff_pfl.runtime.graph import internals

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_THREEFRY = 2  # TensorFlow's number of its other algorithm
_DTYPES = (tf.int32, tf.uint32, tf.float32)
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


def uniform(bits_: tf.Tensor) -> tf.Tensor:
    """Converts 32 bits to `float32` in [0, 1): 23 bits are the mantissa of a number in [1, 2)."""
    mantissa = tf.bitwise.bitwise_or(tf.bitwise.bitwise_and(bits_, 0x7FFFFF), 0x3F800000)
    return tf.bitcast(tf.cast(mantissa, tf.int32), tf.float32) - 1.0


def rules(general) -> dict:
    """Returns parallel-for rules for random operations, some of which fall back on `general`."""
    return {
        "StatelessRandomGetKeyCounter": _convert_key_and_counter,
        **{
            name: functools.partial(_convert_draw, general[name], convert)
            for name, convert in {
                "StatelessRandomUniformFullIntV2": tf.cast,
                "StatelessRandomUniformV2": lambda bits, dtype: uniform(bits),
            }.items()
        },
    }


def _convert_key_and_counter(pfor_input):
    (seed,) = pfor_input.inputs
    outputs = key_and_counter(seed.t if seed.is_stacked else seed.t[tf.newaxis])
    return [
        internals.pfor_wrap(output if seed.is_stacked else output[0], seed.is_stacked)
        for output in outputs
    ]


def _convert_draw(general_rule, convert, pfor_input):
    shape, key, counter, algorithm = pfor_input.inputs
    dtype = pfor_input.get_attr("dtype")
    if tf.get_static_value(algorithm.t) == _THREEFRY:
        return general_rule(pfor_input)
    if not (key.is_stacked and counter.is_stacked and dtype in _DTYPES) or shape.is_stacked:
        return general_rule(pfor_input)
    drawn = convert(bits(key.t, counter.t, tf.reduce_prod(shape.t)), dtype)
    shape = tf.concat([tf.shape(key.t)[:1], tf.cast(shape.t, tf.int32)], axis=0)
    return internals.pfor_wrap(tf.reshape(drawn, shape), True)


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
