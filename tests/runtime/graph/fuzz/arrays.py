"""Reductions, shapes, gathering and scattering, segments, sorting."""

import functools

import numpy as np
import tensorflow as tf

from tests.runtime.graph.fuzz.catalogue import Family
from tests.runtime.graph.fuzz.operands import (
    LONG,
    ascending,
    between,
    booleans,
    complexes,
    distinct,
    integers,
    permutation,
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
add("reduce_prod of complex", lambda x: tf.reduce_prod(x, -1), complexes("n", 3))
add("reduce_all", lambda x: tf.reduce_all(x, 0), booleans("n", 3))
add("reduce_any", lambda x: tf.reduce_any(x, -1), booleans("n", 3))
add("reduce_sum, own axis", tf.reduce_sum, real(2, 3), integers(-2, 2))
add("reduce_max, own axes", tf.reduce_max, real(2, 3), integers(0, 2, 1))
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
        add(
            f"cumulative_logsumexp {_label}",
            lambda x, a=_axis, o=_options: tf.math.cumulative_logsumexp(x, a, **o),
            real("n", 3),
        )
add("argmax, own axis", lambda x, a: tf.argmax(x, a), distinct(3, 3), integers(0, 2))
add("l2_loss", tf.nn.l2_loss, real("n", 3))
add("norm", lambda x: tf.norm(x, axis=-1), positive("n", 3))
add("1-norm", lambda x: tf.norm(x, 1), real("n", 3))
add("moments", lambda x: tf.nn.moments(x, [0]), real(4, 3))
add("weighted moments", lambda x, w: tf.nn.weighted_moments(x, [0], w), real(4, 3), positive(4, 3))
add("normalize", lambda x: tf.math.l2_normalize(x, -1), positive("n", 3))
add("zero_fraction", tf.math.zero_fraction, real(4, 3))
add(
    "confusion",
    lambda x, y: tf.math.confusion_matrix(x, y, 4),
    integers(0, 4, 5),
    integers(0, 4, 5),
)
add("bincount", lambda x: tf.math.bincount(x, minlength=5, maxlength=5), integers(0, 5, "n"))
add("weighted bincount", lambda x, w: tf.math.bincount(x, w, 5, 5), integers(0, 5, 4), real(4))
add("histogram", lambda x: tf.histogram_fixed_width(x, [-1.0, 1.0], 4), real("n"))

shapes = Family("shapes")
add = shapes.add

_MATRIX = real("n", 3)
add("reshape", lambda x: tf.reshape(x, [3, -1]), real(2, 6))
add("flatten", lambda x: tf.reshape(x, [-1]), _MATRIX)
add("reshape to its shape", lambda x, y: tf.reshape(x, tf.shape(y)), real(6), real(2, 3))
add("transpose", tf.transpose, _MATRIX)
add("transpose 3", lambda x: tf.transpose(x, [2, 0, 1]), real("n", 2, 3))
add("conjugate transpose", lambda x: tf.transpose(x, conjugate=True), complexes("n", 3))
add("own transpose", tf.transpose, real(2, 2), permutation(2))
for _axis in (0, 1, -1):
    add(f"expand_dims {_axis}", lambda x, a=_axis: tf.expand_dims(x, a), _MATRIX)
    add(f"concat {_axis}", lambda x, y, a=_axis: tf.concat([x, y, x], a), real(2, 3), real(2, 3))
    add(f"stack {_axis}", lambda x, y, a=_axis: tf.stack([x, y], a), real(2, 3), real(2, 3))
    add(f"unstack {_axis}", lambda x, a=_axis: tf.unstack(x, 3, a), real(3, 3))
    add(f"split {_axis}", lambda x, a=_axis: tf.split(x, 2, a), real(4, 4))
    add(f"split in parts {_axis}", lambda x, a=_axis: tf.split(x, [1, 3], a), real(4, 4))
    add(f"repeat {_axis}", lambda x, a=_axis: tf.repeat(x, 2, a), _MATRIX)
    add(f"reverse {_axis}", lambda x, a=_axis: tf.reverse(x, [a]), _MATRIX)
    for _shift in (-1, 2, 5):
        add(f"roll {_shift} {_axis}", lambda x, s=_shift, a=_axis: tf.roll(x, s, a), _MATRIX)
    add(f"own roll {_axis}", lambda x, s, a=_axis: tf.roll(x, s, a), _MATRIX, integers(-4, 5))
add("own expand_dims", tf.expand_dims, real(3), integers(0, 2))
add("own reverse", tf.reverse, real(2, 3), integers(0, 2, 1))
add("roll of two axes", lambda x: tf.roll(x, [1, -1], [0, 1]), _MATRIX)
add("own repeats", lambda x, n: tf.repeat(x, n, 0), real(3, 2), integers(0, 3, 3))
add("squeeze", lambda x: tf.squeeze(x), real(1, 3, 1))
add("squeeze an axis", lambda x: tf.squeeze(x, [-1]), real("n", 3, 1))
add("tile", lambda x: tf.tile(x, [2, 3]), _MATRIX)
add("own tile", tf.tile, real(2, 2), integers(1, 3, 2))
add("broadcast_to", lambda x: tf.broadcast_to(x, [2, 4, 3]), real(3))
add("broadcast_to a matrix", lambda x: tf.broadcast_to(x, [4, 3]), real(1, 3))
add("own fill", tf.fill, integers(1, 4, 2), real())
add("fill", lambda x: tf.fill([2, 3], x), real())
add("fill of its shape", lambda x, y: tf.fill(tf.shape(x), y), _MATRIX, real())
add("zeros_like", tf.zeros_like, _MATRIX)
add("ones_like", tf.ones_like, _MATRIX)
add("shape", lambda x: (tf.shape(x), tf.size(x), tf.rank(x)), _MATRIX)
add("shape_n", lambda x, y: tf.shape_n([x, y]), _MATRIX, real(2))
add("shape in long", lambda x: tf.shape(x, tf.int64), _MATRIX)
add("size times", lambda x: x * tf.cast(tf.size(x), tf.float32), _MATRIX)
add("identity_n", lambda x, y: tf.identity_n([x, y]), _MATRIX, real(2))
add("stop_gradient", lambda x: tf.stop_gradient(x) * x, _MATRIX)
add("ensure_shape", lambda x: tf.ensure_shape(x, [2, 3]), real(2, 3))
add("meshgrid", lambda x, y: tf.meshgrid(x, y), real(3), real(2))
add("own range", lambda n: tf.range(n), integers(0, 4))
add("linspace", lambda x, y: tf.linspace(x, y, 4), real(), real())
add("sequence_mask", lambda n: tf.sequence_mask(n, 4), integers(0, 5, 3))
add("eye times", lambda x: tf.eye(3) * x, real())
for _mode in ("CONSTANT", "REFLECT", "SYMMETRIC"):
    add(f"pad {_mode}", lambda x, m=_mode: tf.pad(x, [[1, 0], [1, 2]], m), real(3, 4))
add("pad with 7", lambda x: tf.pad(x, [[1, 0], [0, 2]], constant_values=7), _MATRIX)
add("pad with own", lambda x, c: tf.pad(x, [[1, 0], [0, 2]], constant_values=c), _MATRIX, real())
add("own pad", tf.pad, real(2, 2), integers(0, 2, 2, 2))
add("diag", tf.linalg.diag, real("n", 3))
add("tensor diag", tf.linalg.tensor_diag, real(3))
add("tensor diag part", tf.linalg.tensor_diag_part, real(2, 2, 2, 2))
add("diag part", tf.linalg.diag_part, real(2, 3, 3))
for _k in (-1, 0, 1, (-1, 1)):
    add(f"diag part {_k}", lambda x, k=_k: tf.linalg.diag_part(x, k=k, padding_value=7), real(3, 4))
    if _k != (-1, 1):
        _length = 3 - abs(_k)
        add(
            f"set diag {_k}",
            lambda x, d, k=_k: tf.linalg.set_diag(x, d, k=k),
            real(3, 3),
            real(_length),
        )
        add(f"diag {_k}", lambda d, k=_k: tf.linalg.diag(d, k=k, padding_value=7), real(2, 3))
add("set diag of many", tf.linalg.set_diag, real(2, 3, 3), real(2, 3))
add("raw MatrixDiag", lambda x: tf.raw_ops.MatrixDiag(diagonal=x), _MATRIX)
add("raw MatrixDiagPart", lambda x: tf.raw_ops.MatrixDiagPart(input=x), real(2, 3, 3))
add(
    "raw MatrixSetDiag",
    lambda x, d: tf.raw_ops.MatrixSetDiag(input=x, diagonal=d),
    real(3, 3),
    real(3),
)
add(
    "raw MatrixDiagV2",
    lambda x: tf.raw_ops.MatrixDiagV2(diagonal=x, k=0, num_rows=-1, num_cols=-1, padding_value=7.0),
    real(3),
)
add(
    "raw MatrixDiagPartV2",
    lambda x: tf.raw_ops.MatrixDiagPartV2(input=x, k=0, padding_value=7.0),
    real(3, 3),
)
add(
    "raw MatrixSetDiagV2",
    lambda x, d: tf.raw_ops.MatrixSetDiagV2(input=x, diagonal=d, k=0),
    real(3, 3),
    real(3),
)
add("diag with own padding", lambda d, p: tf.linalg.diag(d, padding_value=p), real(3), real())
add("band part", lambda x: tf.linalg.band_part(x, 1, 0), real(2, 3, 3))
add("own band part", tf.linalg.band_part, real(3, 3), integers(-1, 3), integers(-1, 3))
add("space_to_depth", lambda x: tf.nn.space_to_depth(x, 2), real(1, 4, 4, 2))
add("depth_to_space", lambda x: tf.nn.depth_to_space(x, 2), real(1, 2, 2, 4))
add("space_to_batch", lambda x: tf.space_to_batch(x, [2, 2], [[0, 0], [1, 1]]), real(2, 4, 2, 3))
add("batch_to_space", lambda x: tf.batch_to_space(x, [2, 2], [[0, 0], [1, 0]]), real(8, 2, 2, 3))
add(
    "extract patches",
    lambda x: tf.image.extract_patches(x, [1, 2, 2, 1], [1, 1, 1, 1], [1, 1, 1, 1], "SAME"),
    real(1, 3, 3, 2),
)
add("one_hot", lambda i: tf.one_hot(i, 4), integers(-1, 5, "n"))
add("one_hot 0", lambda i: tf.one_hot(i, 4, 2.0, -1.0, axis=0), integers(-1, 5, 2, 3))
add(
    "one_hot, own values",
    lambda i, on, off: tf.one_hot(i, 4, on, off),
    integers(0, 4, 3),
    real(),
    real(),
)

slices = Family("gather and scatter")
add = slices.add


def _some_of_5(rng, sizes):
    return rng.permutation(5)[:3, np.newaxis].astype(np.int32)


add("slice", lambda x: tf.slice(x, [1, 0], [1, 2]), real(3, 3))
add("slice to the end", lambda x: tf.slice(x, [1, 1], [-1, 1]), real(3, 3))
add("own slice", lambda x, i: tf.slice(x, [i, 0], [1, 2]), real(3, 3), integers(0, 3))
add("own slice to the end", lambda x, i: tf.slice(x, [i], [-1]), real(4), integers(0, 3))
add("own slice in one axis", lambda x, i: tf.slice(x, [0, i], [-1, 1]), real(3, 3), integers(0, 3))
add("own size", lambda x, n: tf.slice(x, [0], tf.reshape(n, [1])), real(4), integers(1, 4))
add("own begin and size", tf.slice, real(3, 3), integers(0, 2, 2), integers(1, 2, 2))
add("index", lambda x, i: x[i], real(4, 2), integers(0, 4))
add("index from the end", lambda x, i: x[:, i], real(4, 3), integers(-3, 3))
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
add("slice of 3", lambda x: x[1:, ..., 0], real(3, 2, 2))
add(
    "StridedSliceGrad",
    lambda x: tf.raw_ops.StridedSliceGrad(
        shape=[4, 3], begin=[1, 0], end=[3, 3], strides=[1, 2], dy=x
    ),
    real(2, 2),
)
for _axis in (0, 1, -1):
    add(
        f"gather {_axis}",
        lambda x, i, a=_axis: tf.gather(x, i, axis=a),
        real(3, 3),
        integers(0, 3, "n"),
    )
    add(
        f"gather of rows {_axis}",
        lambda x, i, a=_axis: tf.gather(x, i, axis=a),
        real(3, 3, 2),
        integers(0, 2, 2, 2),
    )
add("gather one", tf.gather, real(3, 2), integers(0, 3))
add(
    "gather in own axis",
    lambda x, i, a: tf.gather(x, i, axis=a),
    real(3, 3),
    integers(0, 3, 2),
    integers(0, 2),
)
add("gather of batches", lambda x, i: tf.gather(x, i, batch_dims=1), real(3, 4), integers(0, 4, 3))
add(
    "gather of batches 2",
    lambda x, i: tf.gather(x, i, axis=2, batch_dims=1),
    real(3, 2, 4),
    integers(0, 4, 3, 2),
)
add("gather of long", lambda x, i: tf.gather(x, i), real(3, 2), integers(0, 3, 4, dtype=LONG))
add("gather of integers", tf.gather, integers(0, 99, 5), integers(0, 5, "n"))
add(
    "raw Gather", lambda x, i: tf.raw_ops.Gather(params=x, indices=i), real(3, 2), integers(0, 3, 2)
)
add("embedding", tf.nn.embedding_lookup, real(5, 2), integers(0, 5, 2, 3))
add("gather_nd", tf.gather_nd, real(3, 3), integers(0, 3, "n", 2))
add("gather_nd of rows", tf.gather_nd, real(3, 3), integers(0, 3, "n", 1))
add("gather_nd of batches", lambda x, i: tf.gather_nd(x, i, 1), real(2, 3, 2), integers(0, 3, 2, 1))
add("boolean_mask", tf.boolean_mask, real(4, 2), booleans(4))
add("where are", tf.where, booleans("n", 3))
add("scatter_nd", lambda i, x: tf.scatter_nd(i, x, [5, 2]), integers(0, 5, 3, 1), real(3, 2))
add("scatter_nd, own shape", tf.scatter_nd, integers(0, 2, 3, 1), real(3, 2), integers(2, 3, 2))
for _name in ("update", "add", "sub", "max", "min"):
    _scatter = getattr(tf, f"tensor_scatter_nd_{_name}")
    add(f"tensor scatter {_name}", _scatter, real(5, 2), _some_of_5, real(3, 2))
add("dynamic_stitch", lambda i, x: tf.dynamic_stitch([i], [x]), permutation(4), real(4, 2))
add("dynamic_partition", lambda x, i: tf.dynamic_partition(x, i, 2), real(4, 2), integers(0, 2, 4))
add("invert_permutation", tf.math.invert_permutation, permutation(5))
add("reverse_sequence", lambda x, n: tf.reverse_sequence(x, n, 1), real(3, 4), integers(0, 5, 3))
add("unique", lambda x: tf.unique(x).y, integers(0, 3, 5))
add(
    "take along",
    lambda x, i: tf.gather(x, i, axis=1, batch_dims=1),
    real(2, 4),
    integers(0, 4, 2, 3),
)
add(
    "set difference",
    lambda x, y: tf.raw_ops.ListDiff(x=x, y=y).out,
    integers(0, 3, 5),
    integers(0, 3, 2),
)

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
add(
    "unsorted sum, own number",
    lambda x, i, n: tf.math.unsorted_segment_sum(x, i, n),
    real(4),
    integers(0, 2, 4),
    integers(2, 4),
)
add(
    "unsorted sum of long",
    lambda x, i: tf.math.unsorted_segment_sum(x, i, 3),
    integers(0, 9, 4, dtype=LONG),
    integers(0, 3, 4, dtype=LONG),
)
add(
    "unsorted sum of complex",
    lambda x, i: tf.math.unsorted_segment_sum(x, i, 3),
    complexes(4),
    integers(0, 3, 4),
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
add("sort rows", lambda x: tf.sort(x, axis=0), distinct(3, 4))
add("top_k", lambda x: tf.math.top_k(x, 2), distinct(3, 4))
add("top_k of one", lambda x: tf.math.top_k(x, 1), distinct(3))
add("own top_k", tf.math.top_k, distinct(5), integers(1, 4))
add("in_top_k", lambda t, p: tf.math.in_top_k(t, p, 2), integers(0, 4, 3), distinct(3, 4))
add("nth_element", lambda x: tf.raw_ops.NthElement(input=x, n=1), distinct(2, 4))
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
add("median", lambda x: tf.sort(x)[2], between(-1, 1, 5))
add("trimmed mean", lambda x: tf.reduce_mean(tf.sort(x, axis=0)[1:-1], 0), distinct(5, 2))
