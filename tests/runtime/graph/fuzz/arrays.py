"""Operations on arrays: reductions, shapes, gather and scatter, segments, sorting."""

import numpy as np

from tests.runtime.graph.fuzz.catalogue import family
from tests.runtime.graph.fuzz.operands import (
    LONG,
    ascending,
    booleans,
    complexes,
    distinct,
    integers,
    positive,
    real,
)

_AXES = (0, 1, -1)
_FLAGS = (False, True)
_MATRIX = real("n", 3)

_REDUCTIONS = (
    *("sum", "mean", "prod", "max", "min"),
    *("logsumexp", "std", "variance", "euclidean_norm"),
)
_WAYS = ("None", "0", "-1", "[0, 2]", "[]", "0, True", "-1, True")

reductions = family(
    "reductions",
    {
        **{
            f"tf.math.reduce_{name}(x, {way})": [real("n", 2, 3)]
            for name in _REDUCTIONS
            for way in _WAYS
        },
        **{f"tf.math.count_nonzero(x, {way})": [real("n", 2, 3)] for way in _WAYS},
        "tf.reduce_sum(x, 0) # integers": [integers(-5, 5, "n", 3, dtype=LONG)],
        "tf.reduce_sum(x, -1) # complex": [complexes("n", 3)],
        "tf.reduce_all(x, 0)": [booleans("n", 3)],
        "tf.reduce_sum(x, y)": [real(2, 3), integers(-2, 2)],
        **{f"tf.argmax(x, {axis})": [distinct(3, 4)] for axis in _AXES},
        **{f"tf.argmin(x, {axis}, tf.int32)": [distinct(3, 4)] for axis in _AXES},
        **{
            f"tf.math.{name}(x, {axis}, {exclusive}, {reverse})": [_MATRIX]
            for name in ("cumsum", "cumprod")
            for axis in _AXES
            for exclusive in _FLAGS
            for reverse in _FLAGS
        },
        "tf.nn.l2_loss(x)": [_MATRIX],
        "tf.nn.moments(x, [0])": [real(4, 3)],
        "tf.math.l2_normalize(x, -1)": [positive("n", 3)],
        "tf.math.bincount(x, minlength=5, maxlength=5)": [integers(0, 5, "n")],
    },
)

shapes = family(
    "shapes",
    {
        "tf.reshape(x, [3, -1])": [real(2, 6)],
        "tf.reshape(x, [-1])": [_MATRIX],
        "tf.reshape(x, tf.shape(y))": [real(6), real(2, 3)],
        "tf.transpose(x)": [_MATRIX],
        **{f"tf.expand_dims(x, {axis})": [_MATRIX] for axis in _AXES},
        **{f"tf.concat([x, y, x], {axis})": [real(2, 3), real(2, 3)] for axis in _AXES},
        **{f"tf.stack([x, y], {axis})": [real(2, 3), real(2, 3)] for axis in _AXES},
        **{f"tf.split(x, 2, {axis})": [real(4, 4)] for axis in _AXES},
        **{f"tf.repeat(x, 2, {axis})": [_MATRIX] for axis in _AXES},
        **{f"tf.reverse(x, [{axis}])": [_MATRIX] for axis in _AXES},
        **{f"tf.roll(x, {by}, {axis})": [_MATRIX] for by in (-1, 2, 5) for axis in _AXES},
        **{f"tf.roll(x, y, {axis})": [_MATRIX, integers(-4, 5)] for axis in _AXES},
        "tf.squeeze(x)": [real(1, 3, 1)],
        "tf.squeeze(x, [-1])": [real("n", 3, 1)],
        "tf.tile(x, [2, 3])": [_MATRIX],
        "tf.tile(x, y)": [real(2, 2), integers(1, 3, 2)],
        "tf.broadcast_to(x, [2, 4, 3])": [real(3)],
        "tf.fill(x, y)": [integers(1, 4, 2), real()],
        "tf.fill([2, 3], x)": [real()],
        "(tf.shape(x), tf.size(x), tf.rank(x))": [_MATRIX],
        "tf.stop_gradient(x) * x": [_MATRIX],
        "tf.ensure_shape(x, [2, 3])": [real(2, 3)],
        "tf.range(x)": [integers(0, 4)],
        **{
            f"tf.pad(x, [[1, 0], [1, 2]], '{mode}')": [real(3, 4)]
            for mode in ("CONSTANT", "REFLECT", "SYMMETRIC")
        },
        "tf.pad(x, [[1, 0], [0, 2]], constant_values=y)": [_MATRIX, real()],
        "tf.pad(x, y)": [real(2, 2), integers(0, 2, 2, 2)],
        "tf.linalg.diag(x)": [_MATRIX],
        "tf.linalg.diag_part(x)": [real(2, 3, 3)],
        "tf.linalg.band_part(x, 1, 0)": [real(2, 3, 3)],
        "tf.one_hot(x, 4)": [integers(-1, 5, "n")],
        "tf.one_hot(x, 4, 2.0, -1.0, axis=0)": [integers(-1, 5, 2, 3)],
    },
)


def _some_of_5(rng, sizes):
    return rng.permutation(5)[:3, np.newaxis].astype(np.int32)


slices = family(
    "gather and scatter",
    {
        "tf.slice(x, [1, 0], [1, 2])": [real(3, 3)],
        "tf.slice(x, [1, 1], [-1, 1])": [real(3, 3)],
        "tf.slice(x, [y, 0], [1, 2])": [real(3, 3), integers(0, 3)],
        "tf.slice(x, [y], [-1])": [real(4), integers(0, 3)],
        "tf.slice(x, [0], tf.reshape(y, [1]))": [real(4), integers(1, 4)],
        "tf.slice(x, y, z)": [real(3, 3), integers(0, 2, 2), integers(1, 2, 2)],
        "x[y]": [real(4, 2), integers(0, 4)],
        "x[y:]": [real(4), integers(0, 3)],
        "x[y : y + 2]": [real(5), integers(0, 3)],
        "x[1]": [real(3, 4)],
        "x[..., -1]": [real(3, 4)],
        "x[::2, ::-1]": [real(3, 4)],
        "x[:, tf.newaxis, 1:]": [real(3, 4)],
        "x[1, ..., tf.newaxis]": [real(3, 4)],
        "x[3:]": [real(3, 4)],
        "x[tf.newaxis, 1, :2]": [real(3, 4)],
        **{f"tf.gather(x, y, axis={axis})": [real(3, 3), integers(0, 3, "n")] for axis in _AXES},
        "tf.gather(x, y)": [real(3, 2), integers(0, 3)],
        "tf.gather(x, y, batch_dims=1)": [real(3, 4), integers(0, 4, 3)],
        "tf.nn.embedding_lookup(x, y)": [real(5, 2), integers(0, 5, 2, 3)],
        "tf.gather_nd(x, y)": [real(3, 3), integers(0, 3, "n", 2)],
        "tf.gather_nd(x, y) # rows": [real(3, 3), integers(0, 3, "n", 1)],
        "tf.boolean_mask(x, y)": [real(4, 2), booleans(4)],
        "tf.scatter_nd(x, y, [5, 2])": [integers(0, 5, 3, 1), real(3, 2)],
        **{
            f"tf.tensor_scatter_nd_{name}(x, y, z)": [real(5, 2), _some_of_5, real(3, 2)]
            for name in ("update", "add", "sub", "max", "min")
        },
        "tf.reverse_sequence(x, y, 1)": [real(3, 4), integers(0, 5, 3)],
        "tf.unique(x).y": [integers(0, 3, 5)],
    },
)

# Some operands are out of range, or 0.
failures = family(
    "failures",
    {
        **{f"tf.gather(x, y, axis={axis})": [real(3, 3), integers(-1, 4, "n")] for axis in _AXES},
        "tf.gather(x, y)": [real(3, 2), integers(-1, 4)],
        "tf.gather(x, y, batch_dims=1)": [real(3, 4), integers(-1, 5, 3)],
        "tf.gather_nd(x, y)": [real(3, 3), integers(0, 4, "n", 2)],
        "tf.gather_nd(x, y) # rows": [real(3, 3), integers(-1, 4, "n", 1)],
        "tf.slice(x, [y, 0], [2, 2])": [real(3, 3), integers(-1, 4)],
        "x[y]": [real(3, 2), integers(-4, 5)],
        "tf.tensor_scatter_nd_update(x, y, z)": [real(3, 2), integers(-1, 4, 1, 1), real(1, 2)],
        "tf.tensor_scatter_nd_add(x, y, z)": [real(3, 2), integers(-1, 4, 2, 1), real(2, 2)],
        "tf.scatter_nd(x, y, [3, 2])": [integers(-1, 4, 2, 1), real(2, 2)],
        **{
            f"{name}(x, y)": [integers(-9, 9, 2), integers(-1, 3, 2)]
            for name in ("tf.math.floordiv", "tf.math.floormod", "tf.truncatediv", "tf.pow")
        },
        **{
            f"tf.math.unsorted_segment_{name}(x, y, 3)": [real(4, 2), integers(-1, 4, 4)]
            for name in ("sum", "max", "min", "prod")
        },
        **{
            f"tf.sparse.segment_{name}(x, y, z, 3)": [
                real(3, 2),
                integers(-1, 4, 4),
                ascending(0, 4, 4),
            ]
            for name in ("sum", "mean", "sqrt_n")
        },
        "tf.sparse.segment_sum(x, y, [0, 0, 1])": [real(3, 2), integers(-1, 4, 3)],
        "tf.nn.sparse_softmax_cross_entropy_with_logits(y, x)": [real(2, 3), integers(-1, 4, 2)],
    },
    fails=True,
)

segments = family(
    "segments",
    {
        **{
            f"tf.math.unsorted_segment_{name}(x, y, 3) # of {what}": [draw, segment]
            for name in ("sum", "mean", "max", "min", "prod", "sqrt_n")
            for what, draw, segment in (
                ("rows", real("n", 2), integers(0, 3, "n")),
                ("numbers", real(2, 3), integers(0, 3, 2, 3)),
            )
        },
        **{
            f"tf.math.unsorted_segment_{name}(x, y, 3) # some dropped": [
                real(4, 2),
                integers(-1, 3, 4),
            ]
            for name in ("sum", "max", "min", "prod")
        },
        **{
            f"tf.math.segment_{name}(x, y)": [real(4, 2), ascending(0, 3, 4)]
            for name in ("sum", "mean", "max", "min", "prod")
        },
        **{
            f"tf.sparse.segment_{name}(x, y, z{number})": [
                real(5, 2),
                integers(0, 5, 4),
                ascending(0, 3, 4),
            ]
            for name in ("sum", "mean", "sqrt_n")
            for number in ("", ", 4")
        },
    },
)

sorting = family(
    "sorting",
    {
        **{
            f"tf.{name}(x, direction='{direction}')": [distinct(3, 4)]
            for name in ("sort", "argsort")
            for direction in ("ASCENDING", "DESCENDING")
        },
        **{
            f"tf.argsort(x, direction='{direction}', stable=True)": [integers(0, 3, 6)]
            for direction in ("ASCENDING", "DESCENDING")
        },
        "tf.sort(x)": [integers(0, 99, "n")],
        "tf.math.top_k(x, 2)": [distinct(3, 4)],
        "tf.math.top_k(x, y)": [distinct(5), integers(1, 4)],
        **{
            f"tf.searchsorted(x, y, '{side}') # rows {rows}": [
                ascending(0, 9, *rows, 5),
                integers(0, 9, *rows, 3),
            ]
            for side in ("left", "right")
            for rows in ((), (2,))
        },
        "tf.reduce_mean(tf.sort(x, axis=0)[1:-1], 0)": [distinct(5, 2)],
    },
)
