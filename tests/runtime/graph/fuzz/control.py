"""Control flow within client work, and random numbers."""

import functools

import tensorflow as tf

from tests.runtime.graph.fuzz.catalogue import Family
from tests.runtime.graph.fuzz.operands import (
    LONG,
    between,
    booleans,
    integers,
    positive,
    real,
    seed,
)

flow = Family("control flow")
add = flow.add


def _while(condition, body, *start):
    return tf.while_loop(
        lambda i, *_: condition(i), lambda i, *x: (i + 1, *body(i, *x)), (0, *start)
    )[1:]


add("alike", lambda x: _while(lambda i: i < 3, lambda i, y: [y * 0.5 + 1], x), real("n", 3))
add(
    "own steps",
    lambda x, n: _while(lambda i: i < n, lambda i, y: [y * 0.5 + 1], x),
    real("n", 3),
    integers(0, 4),
)
add(
    "until large",
    lambda x: tf.while_loop(lambda y: tf.reduce_sum(y) < 9, lambda y: [y + 1], [x]),
    real(3),
)
add(
    "shared becomes own, own steps",
    lambda x, n: _while(lambda i: i < n, lambda i, y, z: [y + x, y], tf.zeros([3]), tf.zeros([3])),
    real(3),
    integers(0, 4),
)
add(
    "nested",
    lambda x, n, m: _while(
        lambda i: i < n,
        lambda i, y: [_while(lambda j: j < m, lambda j, z: [z * 0.5 + x], y)[0] + 1],
        x,
    ),
    real(3),
    integers(0, 3),
    integers(0, 3),
)
add(
    "grows",
    lambda n: tf.while_loop(
        lambda i, _: i < n,
        lambda i, x: (i + 1, tf.concat([x, [1.0]], 0)),
        (0, tf.zeros([1])),
        (tf.TensorShape([]), tf.TensorShape([None])),
    )[1],
    integers(0, 4),
)
add(
    "branch in a loop",
    lambda x, n: _while(
        lambda i: i < n,
        lambda i, y: [tf.cond(tf.reduce_sum(y) > 0, lambda: y - x, lambda: y + 1)],
        x,
    ),
    real(3),
    integers(0, 4),
)
add("branches", lambda x, c: tf.cond(c, lambda: x * 2, lambda: x - 1), real("n", 3), booleans())
add(
    "nested branches",
    lambda x, c, d: tf.cond(c, lambda: tf.cond(d, lambda: x, lambda: -x), lambda: x * 3),
    real(3),
    booleans(),
    booleans(),
)
add(
    "cases",
    lambda x, i: tf.switch_case(i, [lambda: x, lambda: -x, lambda: x * 3]),
    real(3),
    integers(0, 3),
)
add("map_fn", lambda x: tf.map_fn(lambda row: row * 2 + tf.reduce_sum(row), x), real(3, 2))
add("scan", lambda x: tf.scan(lambda total, row: total + row, x), real(3, 2))
add(
    "vectorized_map",
    lambda x, y: tf.vectorized_map(lambda row: row * y + tf.reduce_sum(row), x),
    real(3, 2),
    real(2),
)
add(
    "tensor array",
    lambda x: tf.TensorArray(tf.float32, 2).write(0, x).write(1, x * 2).stack(),
    real(3),
)
add("jacobian", lambda x: _jacobian(lambda y: tf.sin(y) * tf.reduce_sum(y), x), real(3))
add("custom gradient", lambda x: _doubled(x), real("n", 3))
add(
    "power method",
    lambda a, n: _while(
        lambda i: i < n,
        lambda i, v: [tf.linalg.matvec(a, v) / tf.norm(tf.linalg.matvec(a, v))],
        tf.ones([3]),
    ),
    positive(3, 3),
    integers(0, 4),
)
add(
    "newton",
    lambda a: tf.while_loop(
        lambda x, d: d > 1e-3,
        lambda x, d: ((x + a / x) / 2, tf.abs((x + a / x) / 2 - x)),
        (a, tf.constant(1.0)),
    ),
    between(1.0, 9.0),
)


def _jacobian(function, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return tape.jacobian(y, x)


@tf.custom_gradient
def _doubled(x):
    return x * 2, lambda upstream: upstream * 3


randoms = Family("random numbers", draws=True)
add = randoms.add

random = tf.random
for _name, _dtypes in {
    "stateless_uniform": (tf.float32, tf.float64, tf.float16, tf.int32, tf.int64),
    "stateless_normal": (tf.float32, tf.float64, tf.float16),
    "stateless_truncated_normal": (tf.float32,),
}.items():
    _draw = getattr(random, _name)
    for _dtype in _dtypes:
        _limits = {"minval": 3, "maxval": 90} if _dtype.is_integer else {}
        _call = functools.partial(_draw, [2, 3], dtype=_dtype, **_limits)
        add(f"{_name} {_dtype.name}", _call, seed())
    add(f"{_name}, long seed", functools.partial(_draw, [5]), seed(LONG))
    for _algorithm in ("philox", "threefry"):
        add(f"{_name} {_algorithm}", functools.partial(_draw, [5], alg=_algorithm), seed())
add("all bits", lambda s: random.stateless_uniform([5], s, None, None, tf.int32), seed())
add("all bits, unsigned", lambda s: random.stateless_uniform([5], s, None, None, tf.uint32), seed())
add("all bits, long", lambda s: random.stateless_uniform([5], s, None, None, tf.int64), seed())
add(
    "own limits",
    lambda s, a, b: random.stateless_uniform([4], s, a, b),
    seed(),
    real(),
    between(3, 4),
)
add(
    "own integers",
    lambda s, b: random.stateless_uniform([4], s, 0, b, tf.int32),
    seed(),
    integers(2, 9),
)
add("own shape", lambda s, n: random.stateless_normal(n, s), seed(), integers(1, 3, 2))
add("gamma", lambda s, a: random.stateless_gamma([4, 3], s, a), seed(), positive(3))
add("poisson", lambda s, m: random.stateless_poisson([4, 3], s, m), seed(), positive(3))
add("categorical", lambda s, z: random.stateless_categorical(z, 5, s), seed(), real(2, 3))
add("shuffle", lambda s, x: random.experimental.stateless_shuffle(x, s), seed(), real(5, 2))
add("fold in", random.experimental.stateless_fold_in, seed(), integers(0, 99))
add("split", lambda s: random.split(s, 3), seed())
add("dropout", lambda s, x: tf.nn.experimental.stateless_dropout(x, 0.4, s), seed(), real(4, 3))
