"""Arithmetic on weights: nested structures of tensors, each treated as one vector."""

import math
from collections.abc import Callable

import tensorflow as tf


def add(a, b):
    """Computes `a + b`, leaf by leaf."""
    return tf.nest.map_structure(tf.add, a, b)


def subtract(a, b):
    """Computes `a - b`, leaf by leaf."""
    return tf.nest.map_structure(tf.subtract, a, b)


def scale(a, factor):
    """Computes `factor * a` for a scalar `factor`."""
    return tf.nest.map_structure(lambda leaf: leaf * tf.cast(factor, leaf.dtype), a)


def dot(a, b) -> tf.Tensor:
    """Computes the inner product of two structures."""
    products = tf.nest.flatten(tf.nest.map_structure(lambda x, y: tf.reduce_sum(x * y), a, b))
    return tf.add_n(products) if products else tf.constant(0.0)


def norm(a) -> tf.Tensor:
    """Computes the Euclidean norm."""
    return tf.sqrt(dot(a, a))


def finite_norm(a) -> tf.Tensor:
    """Computes the Euclidean norm, or NaN if it overflows float32.

    A division by an infinite norm would silently give 0.
    """
    length = norm(a)
    return tf.where(tf.math.is_inf(length), tf.cast(math.nan, length.dtype), length)


def clip(a, longest: float):
    """Scales `a` down to the norm `longest` if its norm is larger; `longest` may be `inf`.

    The result is NaN if the norm overflows float32 (above 1.8e19).
    """
    if math.isinf(longest):
        return a
    length = finite_norm(a)
    return scale(a, tf.where(length <= longest, 1.0, longest / length))


def combine(weights: tf.Tensor, rows):
    """Computes linear combinations of `k` structures, stacked along a leading axis.

    Args:
        weights: `[k]`, or `[m, k]` for `m` combinations, which are stacked.
        rows: A structure of tensors with a leading axis of `k`.
    """
    weights = tf.convert_to_tensor(weights)
    leading = [-1] * (weights.shape.rank - 1)

    def combined(leaf):
        # With fewer operations than `tf.tensordot`, which computes shapes in the graph.
        leaf = tf.convert_to_tensor(leaf)
        shape = leaf.shape[1:]
        factors = tf.cast(weights if leading else weights[tf.newaxis], leaf.dtype)
        product = tf.matmul(factors, tf.reshape(leaf, [-1, shape.num_elements()]))
        return tf.reshape(product, [*leading, *shape])

    return tf.nest.map_structure(combined, rows)


def gram(rows) -> tf.Tensor:
    """Computes the inner products, float64 `[k, k]`, of `k` structures stacked along axis 0."""
    flat = [tf.reshape(leaf, [-1, leaf.shape[1:].num_elements()]) for leaf in tf.nest.flatten(rows)]
    flat = [tf.cast(leaf, tf.float64) for leaf in flat]
    return tf.add_n([tf.matmul(leaf, leaf, transpose_b=True) for leaf in flat])


def have_filters(weights) -> bool:
    """Returns whether weights have more than two axes, as the filters of convolutions have."""
    return any(len(weight.shape) > 2 for weight in tf.nest.flatten(weights))


def count(conditions: tf.Tensor) -> tf.Tensor:
    """Counts the true entries, as an int32 scalar."""
    return tf.reduce_sum(tf.cast(conditions, tf.int32))


def copies(a, number: int):
    """Stacks `number` copies of a structure along a new leading axis."""
    return tf.nest.map_structure(lambda leaf: tf.repeat(leaf[tf.newaxis], number, axis=0), a)


def stack(structures):
    """Stacks structures with equal shapes along a new leading axis."""
    return tf.nest.map_structure(lambda *leaves: tf.stack(leaves), *structures)


def row(rows, index):
    """Returns one of `k` structures stacked along a leading axis, or several for indices `[m]`."""
    return tf.nest.map_structure(lambda leaf: tf.gather(leaf, index), rows)


def put_rows(rows, indices: tf.Tensor, values):
    """Replaces the rows at distinct `indices`, `[m]`, by `values` with a leading axis of `m`."""
    return tf.nest.map_structure(
        lambda leaf, new: tf.tensor_scatter_nd_update(leaf, indices[:, tf.newaxis], new),
        rows,
        values,
    )


def fill_rows(
    start: tf.Tensor, row: Callable[[tf.Tensor], tf.Tensor], *, parallel_iterations: int = 10
) -> tf.Tensor:
    """Replaces each row of `start` by the value of `row` at its index.

    Unlike `tf.map_fn`, it can be vectorised over clients, and does not use AutoGraph.

    Args:
        start: `[k, ...]`; `k` may be 0.
        row: A function that computes a row from its index, an int32.
        parallel_iterations: The maximum number of rows computed at a time.
    """
    number = tf.shape(start)[0]

    def put_row(index, rows):
        return index + 1, tf.tensor_scatter_nd_update(rows, [[index]], [row(index)])

    return tf.while_loop(
        lambda index, _: index < number,
        put_row,
        (tf.constant(0), start),
        parallel_iterations=parallel_iterations,
    )[1]


def scale_rows(rows, factors: tf.Tensor):
    """Multiplies `k` structures stacked along a leading axis by their `factors`, `[k]`."""

    def scaled(leaf):
        factor = tf.reshape(factors, [-1] + [1] * (leaf.shape.rank - 1))
        return leaf * tf.cast(factor, leaf.dtype)

    return tf.nest.map_structure(scaled, rows)


def zeros_like(a):
    """Returns zeros of the shapes and types of `a`."""
    return tf.nest.map_structure(tf.zeros_like, a)


def specs(a):
    """Returns shapes and data types as `tf.TensorSpec`s, for optimizers of `tff.learning`."""
    return tf.nest.map_structure(lambda leaf: tf.TensorSpec(leaf.shape, leaf.dtype), a)


def to_vector(a) -> tf.Tensor:
    """Concatenates all leaves of `a` into one vector."""
    return tf.concat([tf.reshape(leaf, [-1]) for leaf in tf.nest.flatten(a)], axis=0)


def from_vector(vector: tf.Tensor, like):
    """Converts a vector back to a structure, the inverse of `to_vector`.

    Args:
        vector: As many numbers as `like` has.
        like: The structure, with the shapes and data types of its leaves.
    """
    leaves = tf.nest.flatten(like)
    parts = tf.split(vector, [leaf.shape.num_elements() for leaf in leaves])
    parts = [
        tf.reshape(tf.cast(part, leaf.dtype), leaf.shape)
        for part, leaf in zip(parts, leaves, strict=True)
    ]
    return tf.nest.pack_sequence_as(like, parts)


def no_rows(shape, dtype) -> tf.Tensor:
    """Returns a tensor without rows, whose TFF type has an unknown number of rows."""
    empty = tf.zeros([0, *shape], dtype)
    return tf.raw_ops.PlaceholderWithDefault(input=empty, shape=[None, *shape])


def select(condition, a, b):
    """Returns `a` if the scalar bool `condition` is true, else `b`.

    The operation copies only the chosen side, which for large models is several times cheaper than
    `tf.where`. Unlike `tf.cond`, it stays a single operation when vectorised over clients. Leaves
    with unknown dimensions, which may differ in size, use `tf.cond`.
    """
    condition = tf.convert_to_tensor(condition)

    def choose(x, y):
        x, y = tf.convert_to_tensor(x), tf.convert_to_tensor(y)
        if x.shape.is_fully_defined() and y.shape.is_fully_defined():
            return tf.raw_ops.Select(condition=condition, x=x, y=y)
        return tf.cond(condition, lambda: tf.identity(x), lambda: y)

    return tf.nest.map_structure(choose, a, b)


def all_finite(*trees) -> tf.Tensor:
    """Returns whether all floating-point and complex leaves are finite."""
    checks = finite_checks(*trees)
    return tf.reduce_all(tf.stack(checks)) if checks else tf.constant(True)


def finite_checks(*trees) -> list[tf.Tensor]:
    """Returns bool scalars, all true if all floating-point and complex leaves are finite."""
    leaves = []
    for leaf in tf.nest.flatten(trees):
        # Checks both parts, because the absolute value of large numbers overflows.
        leaves += [tf.math.real(leaf), tf.math.imag(leaf)] if leaf.dtype.is_complex else [leaf]
    return [tf.reduce_all(tf.math.is_finite(leaf)) for leaf in leaves if leaf.dtype.is_floating]
