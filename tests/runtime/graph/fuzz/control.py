"""Operations of control flow and random numbers in client work."""

import tensorflow as tf

from tests.runtime.graph.fuzz.catalogue import family
from tests.runtime.graph.fuzz.operands import (
    LONG,
    between,
    booleans,
    integers,
    positive,
    real,
    seed,
)


def loop(steps, body, *start):
    """Repeats a function of one or several values, from `start` on."""
    return tf.while_loop(lambda i, *_: i < steps, lambda i, *x: (i + 1, *body(*x)), (0, *start))[1:]


def nested(x, steps, inner_steps):
    def step(y):
        return [loop(inner_steps, lambda z: [z * 0.5 + x], y)[0] + 1]

    return loop(steps, step, x)


def grows(steps):
    return tf.while_loop(
        lambda i, _: i < steps,
        lambda i, x: (i + 1, tf.concat([x, [1.0]], 0)),
        (0, tf.zeros([1])),
        (tf.TensorShape([]), tf.TensorShape([None])),
    )[1]


def branch_in_a_loop(x, steps):
    def step(y):
        return [tf.cond(tf.reduce_sum(y) > 0, lambda: y - x, lambda: y + 1)]

    return loop(steps, step, x)


def nested_branches(x, c, d):
    return tf.cond(c, lambda: tf.cond(d, lambda: x, lambda: -x), lambda: x * 3)


def power_method(matrix, steps):
    def step(v):
        v = tf.linalg.matvec(matrix, v)
        return [v / tf.norm(v)]

    return loop(steps, step, tf.ones([3]))


def newton(a):
    def step(x, _):
        better = (x + a / x) / 2
        return better, tf.abs(better - x)

    return tf.while_loop(lambda x, d: d > 1e-3, step, (a, tf.constant(1.0)))


def jacobian(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.sin(x) * tf.reduce_sum(x)
    return tape.jacobian(y, x)


@tf.custom_gradient
def doubled(x):
    return x * 2, lambda upstream: upstream * 3


flow = family(
    "control flow",
    {
        "loop(3, lambda a: [a * 0.5 + 1], x)": [real("n", 3)],
        "loop(y, lambda a: [a * 0.5 + 1], x)": [real("n", 3), integers(0, 4)],
        "tf.while_loop(lambda a: tf.reduce_sum(a) < 9, lambda a: [a + 1], [x])": [real(3)],
        "loop(y, lambda a, b: [a + x, a], tf.zeros([3]), tf.zeros([3]))": [
            real(3),
            integers(0, 4),
        ],
        "nested(x, y, z)": [real(3), integers(0, 3), integers(0, 3)],
        "grows(x)": [integers(0, 4)],
        "branch_in_a_loop(x, y)": [real(3), integers(0, 4)],
        "tf.cond(y, lambda: x * 2, lambda: x - 1)": [real("n", 3), booleans()],
        "nested_branches(x, y, z)": [real(3), booleans(), booleans()],
        "tf.switch_case(y, [lambda: x, lambda: -x, lambda: x * 3])": [real(3), integers(0, 3)],
        "tf.map_fn(lambda row: row * 2 + tf.reduce_sum(row), x)": [real(3, 2)],
        "tf.scan(lambda total, row: total + row, x)": [real(3, 2)],
        "tf.vectorized_map(lambda row: row * y + tf.reduce_sum(row), x)": [real(3, 2), real(2)],
        "tf.TensorArray(tf.float32, 2).write(0, x).write(1, x * 2).stack()": [real(3)],
        "jacobian(x)": [real(3)],
        "doubled(x)": [real("n", 3)],
        "power_method(x, y)": [positive(3, 3), integers(0, 4)],
        "newton(x)": [between(1.0, 9.0)],
    },
    loop=loop,
    nested=nested,
    grows=grows,
    branch_in_a_loop=branch_in_a_loop,
    nested_branches=nested_branches,
    jacobian=jacobian,
    doubled=doubled,
    power_method=power_method,
    newton=newton,
)

_DRAWS = ("uniform", "normal", "truncated_normal")
randoms = family(
    "random numbers",
    {
        **{
            f"random.stateless_{name}([2, 3], x, dtype=tf.float{bits})": [seed()]
            for name in _DRAWS
            for bits in ((32,) if name == "truncated_normal" else (16, 32, 64))
        },
        **{
            f"random.stateless_uniform([2, 3], x, 3, 90, tf.int{bits})": [seed()]
            for bits in (32, 64)
        },
        **{f"random.stateless_{name}([5], x)": [seed(LONG)] for name in _DRAWS},
        **{
            f"random.stateless_{name}([5], x, alg='{algorithm}')": [seed()]
            for name in _DRAWS
            for algorithm in ("philox", "threefry")
        },
        **{
            f"random.stateless_uniform([5], x, None, None, tf.{dtype})": [seed()]
            for dtype in ("int32", "uint32", "int64")
        },
        "random.stateless_uniform([4], x, y, z)": [seed(), real(), between(3, 4)],
        "random.stateless_uniform([4], x, 0, y, tf.int32)": [seed(), integers(2, 9)],
        "random.stateless_normal(y, x)": [seed(), integers(1, 3, 2)],
        "random.stateless_gamma([4, 3], x, y)": [seed(), positive(3)],
        "random.stateless_poisson([4, 3], x, y)": [seed(), positive(3)],
        "random.stateless_categorical(y, 5, x)": [seed(), real(2, 3)],
        "random.experimental.stateless_shuffle(y, x)": [seed(), real(5, 2)],
        "random.experimental.stateless_fold_in(x, y)": [seed(), integers(0, 99)],
        "random.split(x, 3)": [seed()],
        "tf.nn.experimental.stateless_dropout(y, 0.4, x)": [seed(), real(4, 3)],
    },
    draws=True,
    random=tf.random,
)
