"""Reductions, shapes, gathering and scattering, segments, sorting."""

import functools

import numpy as np
import tensorflow as tf

from tests.runtime.graph.fuzz.catalogue import Family
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

reductions = Family("reductions")
add = reductions.add

_REDUCTIONS = (
    "reduce_sum",
    "reduce_mean",
    "reduce_prod",
    "reduce_max",
    "reduce_min",
    "reduce_logsumexp",
    "reduce_std",
    "reduce_variance",
    "reduce_euclidean_norm",
    "count_nonzero",
)
for _name in _REDUCTIONS:
    for _axis in (None, 0, -1, [0, 2], []):
        for _keep in (False, True):
            if _axis in (0, -1) or not _keep:
                _call = functools.partial(getattr(tf.math, _name), axis=_axis, keepdims=_keep)
                add(f"{_name} {_axis} {_keep}", _call, real("n", 2, 3))
add("reduce_sum of integers", lambda x: tf.reduce_sum(x, 0), integers(-5, 5, "n", 3, dtype=LONG))
add("reduce_sum of complex", lambda x: tf.reduce_sum(x, -1), complexes("n", 3))
add("reduce_all", lambda x: tf.reduce_all(x, 0), booleans("n", 3))
add("reduce_sum, own axis", tf.reduce_sum, real(2, 3), integers(-2, 2))
for _axis in (0, 1, -1):
    add(f"argmax {_axis}", lambda x, a=_axis: tf.argmax(x, a), distinct(3, 4))
    add(f"argmin {_axis}", lambda x, a=_axis: tf.argmin(x, a, tf.int32), distinct(3, 4))
    for _options in (
        {},
        {"exclusive": True},
        {"reverse": True},
        {"exclusive": True, "reverse": True},
    ):
        _label = f"{_axis} {sorted(_options)}"
        add(f"cumsum {_label}", lambda x, a=_axis, o=_options: tf.cumsum(x, a, **o), real("n", 3))
        add(
            f"cumprod {_label}",
            lambda x, a=_axis, o=_options: tf.math.cumprod(x, a, **o),
            real("n", 3),
        )
add("l2_loss", tf.nn.l2_loss, real("n", 3))
add("moments", lambda x: tf.nn.moments(x, [0]), real(4, 3))
add("normalize", lambda x: tf.math.l2_normalize(x, -1), positive("n", 3))
add("bincount", lambda x: tf.math.bincount(x, minlength=5, maxlength=5), integers(0, 5, "n"))

shapes = Family("shapes")
add = shapes.add

_MATRIX = real("n", 3)
add("reshape", lambda x: tf.reshape(x, [3, -1]), real(2, 6))
add("flatten", lambda x: tf.reshape(x, [-1]), _MATRIX)
add("reshape to its shape", lambda x, y: tf.reshape(x, tf.shape(y)), real(6), real(2, 3))
add("transpose", tf.transpose, _MATRIX)
for _axis in (0, 1, -1):
    add(f"expand_dims {_axis}", lambda x, a=_axis: tf.expand_dims(x, a), _MATRIX)
    add(f"concat {_axis}", lambda x, y, a=_axis: tf.concat([x, y, x], a), real(2, 3), real(2, 3))
    add(f"stack {_axis}", lambda x, y, a=_axis: tf.stack([x, y], a), real(2, 3), real(2, 3))
    add(f"split {_axis}", lambda x, a=_axis: tf.split(x, 2, a), real(4, 4))
    add(f"repeat {_axis}", lambda x, a=_axis: tf.repeat(x, 2, a), _MATRIX)
    add(f"reverse {_axis}", lambda x, a=_axis: tf.reverse(x, [a]), _MATRIX)
    for _shift in (-1, 2, 5):
        add(f"roll {_shift} {_axis}", lambda x, s=_shift, a=_axis: tf.roll(x, s, a), _MATRIX)
    add(f"own roll {_axis}", lambda x, s, a=_axis: tf.roll(x, s, a), _MATRIX, integers(-4, 5))
add("squeeze", lambda x: tf.squeeze(x), real(1, 3, 1))
add("squeeze an axis", lambda x: tf.squeeze(x, [-1]), real("n", 3, 1))
add("tile", lambda x: tf.tile(x, [2, 3]), _MATRIX)
add("own tile", tf.tile, real(2, 2), integers(1, 3, 2))
add("broadcast_to", lambda x: tf.broadcast_to(x, [2, 4, 3]), real(3))
add("own fill", tf.fill, integers(1, 4, 2), real())
add("fill", lambda x: tf.fill([2, 3], x), real())
add("shape", lambda x: (tf.shape(x), tf.size(x), tf.rank(x)), _MATRIX)
add("stop_gradient", lambda x: tf.stop_gradient(x) * x, _MATRIX)
add("ensure_shape", lambda x: tf.ensure_shape(x, [2, 3]), real(2, 3))
add("own range", lambda n: tf.range(n), integers(0, 4))
for _mode in ("CONSTANT", "REFLECT", "SYMMETRIC"):
    add(f"pad {_mode}", lambda x, m=_mode: tf.pad(x, [[1, 0], [1, 2]], m), real(3, 4))
add("pad with own", lambda x, c: tf.pad(x, [[1, 0], [0, 2]], constant_values=c), _MATRIX, real())
add("own pad", tf.pad, real(2, 2), integers(0, 2, 2, 2))
add("diag", tf.linalg.diag, real("n", 3))
add("diag part", tf.linalg.diag_part, real(2, 3, 3))
add("band part", lambda x: tf.linalg.band_part(x, 1, 0), real(2, 3, 3))
add("one_hot", lambda i: tf.one_hot(i, 4), integers(-1, 5, "n"))
add("one_hot 0", lambda i: tf.one_hot(i, 4, 2.0, -1.0, axis=0), integers(-1, 5, 2, 3))

slices = Family("gather and scatter")
add = slices.add


def _some_of_5(rng, sizes):
    return rng.permutation(5)[:3, np.newaxis].astype(np.int32)


add("slice", lambda x: tf.slice(x, [1, 0], [1, 2]), real(3, 3))
add("slice to the end", lambda x: tf.slice(x, [1, 1], [-1, 1]), real(3, 3))
add("own slice", lambda x, i: tf.slice(x, [i, 0], [1, 2]), real(3, 3), integers(0, 3))
add("own slice to the end", lambda x, i: tf.slice(x, [i], [-1]), real(4), integers(0, 3))
add("own size", lambda x, n: tf.slice(x, [0], tf.reshape(n, [1])), real(4), integers(1, 4))
add("own begin and size", tf.slice, real(3, 3), integers(0, 2, 2), integers(1, 2, 2))
add("index", lambda x, i: x[i], real(4, 2), integers(0, 4))
add("slice from own", lambda x, i: x[i:], real(4), integers(0, 3))
add("slice of own place", lambda x, i: x[i : i + 2], real(5), integers(0, 3))
for _label, _call in {
    "row": lambda x: x[1],
    "last": lambda x: x[..., -1],
    "steps": lambda x: x[::2, ::-1],
    "new axis": lambda x: x[:, tf.newaxis, 1:],
    "ellipsis": lambda x: x[1, ..., tf.newaxis],
    "nothing": lambda x: x[3:],
    "new, shrunk": lambda x: x[tf.newaxis, 1, :2],
}.items():
    add(f"slice: {_label}", _call, real(3, 4))
for _axis in (0, 1, -1):
    add(
        f"gather {_axis}",
        lambda x, i, a=_axis: tf.gather(x, i, axis=a),
        real(3, 3),
        integers(0, 3, "n"),
    )
add("gather one", tf.gather, real(3, 2), integers(0, 3))
add("gather of batches", lambda x, i: tf.gather(x, i, batch_dims=1), real(3, 4), integers(0, 4, 3))
add("embedding", tf.nn.embedding_lookup, real(5, 2), integers(0, 5, 2, 3))
add("gather_nd", tf.gather_nd, real(3, 3), integers(0, 3, "n", 2))
add("gather_nd of rows", tf.gather_nd, real(3, 3), integers(0, 3, "n", 1))
add("boolean_mask", tf.boolean_mask, real(4, 2), booleans(4))
add("scatter_nd", lambda i, x: tf.scatter_nd(i, x, [5, 2]), integers(0, 5, 3, 1), real(3, 2))
for _name in ("update", "add", "sub", "max", "min"):
    _scatter = getattr(tf, f"tensor_scatter_nd_{_name}")
    add(f"tensor scatter {_name}", _scatter, real(5, 2), _some_of_5, real(3, 2))
add("reverse_sequence", lambda x, n: tf.reverse_sequence(x, n, 1), real(3, 4), integers(0, 5, 3))
add("unique", lambda x: tf.unique(x).y, integers(0, 3, 5))

segments = Family("segments")
add = segments.add

for _name in ("sum", "mean", "max", "min", "prod", "sqrt_n"):
    _segments = getattr(tf.math, f"unsorted_segment_{_name}")
    add(
        f"unsorted {_name}", lambda x, i, f=_segments: f(x, i, 3), real("n", 2), integers(0, 3, "n")
    )
    add(
        f"unsorted {_name} of matrices",
        lambda x, i, f=_segments: f(x, i, 3),
        real(2, 3),
        integers(0, 3, 2, 3),
    )
    if _name in ("sum", "max", "min", "prod"):
        add(
            f"unsorted {_name}, dropped",
            lambda x, i, f=_segments: f(x, i, 3),
            real(4, 2),
            integers(-1, 3, 4),
        )
    if _name != "sqrt_n":
        add(f"sorted {_name}", getattr(tf.math, f"segment_{_name}"), real(4, 2), ascending(0, 3, 4))
for _name in ("sum", "mean", "sqrt_n"):
    _sparse = getattr(tf.sparse, f"segment_{_name}")
    add(f"sparse {_name}", _sparse, real(5, 2), integers(0, 5, 4), ascending(0, 3, 4))
    add(
        f"sparse {_name} of 4",
        lambda x, i, s, f=_sparse: f(x, i, s, 4),
        real(5, 2),
        integers(0, 5, 4),
        ascending(0, 3, 4),
    )

sorting = Family("sorting")
add = sorting.add

for _direction in ("ASCENDING", "DESCENDING"):
    add(f"sort {_direction}", lambda x, d=_direction: tf.sort(x, direction=d), distinct(3, 4))
    add(f"argsort {_direction}", lambda x, d=_direction: tf.argsort(x, direction=d), distinct(3, 4))
    add(
        f"stable argsort {_direction}",
        lambda x, d=_direction: tf.argsort(x, direction=d, stable=True),
        integers(0, 3, 6),
    )
add("sort of integers", tf.sort, integers(0, 99, "n"))
add("top_k", lambda x: tf.math.top_k(x, 2), distinct(3, 4))
add("own top_k", tf.math.top_k, distinct(5), integers(1, 4))
for _side in ("left", "right"):
    add(
        f"searchsorted {_side}",
        lambda x, v, s=_side: tf.searchsorted(x, v, s),
        ascending(0, 9, 5),
        integers(0, 9, 3),
    )
    add(
        f"searchsorted {_side} of rows",
        lambda x, v, s=_side: tf.searchsorted(x, v, s),
        ascending(0, 9, 2, 5),
        integers(0, 9, 2, 3),
    )
add("trimmed mean", lambda x: tf.reduce_mean(tf.sort(x, axis=0)[1:-1], 0), distinct(5, 2))
