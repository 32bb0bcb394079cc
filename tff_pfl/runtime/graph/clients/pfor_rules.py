"""Rules that TensorFlow's parallel-for lacks or gets wrong.

Parallel-for (`tf.vectorized_map`) rewrites a client's graph op by op. A tensor that differs between
clients is "stacked": the clients are its leading axis. The rule of an op computes its stacked
outputs. In TensorFlow 2.14, some ops of client work have no rule, some have a rule that loops or
needs a shared input, and a few rules are wrong. `rules()` returns the following rules, which
`vectorization` installs temporarily:

    top_k                   the op itself, since it works on the last axis.
    bitcast                 the op itself, since it works on each number.
    l2_loss                 a sum over all axes except the first.
    stateless random ops    a loop over the clients, so that every client draws the same numbers as
                            it would alone. One larger draw would give other numbers.
    depthwise convolutions  TensorFlow's rules, extended to shared inputs.
    pad                     pads with the given constant. TensorFlow's rule pads with 0.
    roll                    extended to negative axes. TensorFlow's rule takes the next axis: for -1
                            it takes the axis of the clients, and mixes them.
    matmul                  extended to clients without rows, whose shapes TensorFlow's rule gets
                            wrong, and to complex matrices, which it conjugates when it should only
                            transpose them.
    slice                   starts at each client's own position, if all slices have the same size.
                            TensorFlow's rule gives all clients slices of the largest size.
    searches                extended to sorted values that clients share, without copies.
                            TensorFlow's rule copies these for every client.
    unsorted segments       extended to negative ids, which drop a row. TensorFlow's rule gives
                            such rows to the previous client.
    sparse segments         extended to indices out of range, which TensorFlow's rule takes from
                            other clients. Gradients by a loop over the clients: TensorFlow's rule
                            returns numbers of other clients if the last segments are empty.

TensorFlow's rules remain for all other cases of these ops. `pfor_convolutions` and `pfor_random`
have further rules.
"""

import functools
from collections.abc import Callable, Mapping

import tensorflow as tf

from tff_pfl.runtime.graph import internals
from tff_pfl.runtime.graph.internals import pfor_wrap as wrap


class NotVectorizableError(ValueError):
    """An error for a client's graph that cannot be vectorized; the message names the op."""

    ag_pass_through = True  # prevents AutoGraph from replacing the exception


# TensorFlow has a rule, also a loop, for the stateless random ops that are missing here.
_ONE_BY_ONE = (
    "RandomIndexShuffle",
    "SparseSegmentMeanGrad",
    "SparseSegmentSqrtNGrad",
    "SparseSegmentSumGrad",
    "StatelessRandomGammaV3",
    "StatelessRandomGetAlg",
    "StatelessRandomGetKeyCounter",
    "StatelessRandomGetKeyCounterAlg",
    "StatelessRandomNormalV2",
    "StatelessRandomUniformFullIntV2",
    "StatelessRandomUniformIntV2",
    "StatelessRandomUniformV2",
    "StatelessSampleDistortedBoundingBox",
    "StatelessShuffle",
    "StatelessTruncatedNormalV2",
)


_SEGMENTS = {
    "UnsortedSegmentMax": tf.math.unsorted_segment_max,
    "UnsortedSegmentMin": tf.math.unsorted_segment_min,
    "UnsortedSegmentProd": tf.math.unsorted_segment_prod,
    "UnsortedSegmentSum": tf.math.unsorted_segment_sum,
}


def rules(general: Mapping[str, Callable]) -> dict[str, Callable]:
    """Returns rules by op type; a rule maps parallel-for's input to wrapped outputs.

    Args:
        general: TensorFlow's rules, for all other cases.
    """
    extensions = {
        "DepthwiseConv2dNative": _depthwise,
        "DepthwiseConv2dNativeBackpropInput": _depthwise_input_gradient,
        "DepthwiseConv2dNativeBackpropFilter": _depthwise_filter_gradient,
        "LowerBound": _search,
        "Roll": _roll,
        "Slice": _slice,
        **{
            f"SparseSegment{name}{number}": _sparse_segments
            for name in ("Mean", "SqrtN", "Sum")
            for number in ("", "WithNumSegments")
        },
        "UpperBound": _search,
    }
    return {
        "Bitcast": lambda pfor_input: wrap(same_op(pfor_input, [pfor_input.stacked_input(0)])[0]),
        "L2Loss": _l2_loss,
        "MatMul": _matmul,
        "PadV2": _pad,
        **{
            name: functools.partial(_unsorted_segments, reduce)
            for name, reduce in _SEGMENTS.items()
        },
        "TopKV2": _top_k,
        **dict.fromkeys(_ONE_BY_ONE, _one_by_one),
        **{
            op_type: functools.partial(rule, otherwise=general[op_type])
            for op_type, rule in extensions.items()
        },
    }


def same_op(pfor_input, inputs):
    """Applies an op of the same type and attributes to other inputs; returns its outputs."""
    dtypes = [output.dtype for output in pfor_input.outputs]
    attributes = pfor_input.op.node_def.attr
    return internals.pfor_create_op(pfor_input.op_type, inputs, dtypes, attributes).outputs


def _matmul(pfor_input):
    """Converts MatMul; its inputs are two matrices, one of which may be shared."""
    left, right = pfor_input.inputs
    transposed = [pfor_input.get_attr(name) for name in ("transpose_a", "transpose_b")]
    if right.is_stacked:
        matrices = left.t if left.is_stacked else left.t[tf.newaxis]
        return wrap(tf.matmul(matrices, right.t, *transposed))
    matrices = tf.linalg.matrix_transpose(left.t) if transposed[0] else left.t
    clients, rows, columns = tf.unstack(tf.shape(matrices))
    product = tf.matmul(
        tf.reshape(matrices, [clients * rows, columns]), right.t, transpose_b=transposed[1]
    )
    return wrap(tf.reshape(product, [clients, rows, tf.shape(product)[1]]))


def _unsorted_segments(reduce, pfor_input):
    """Converts segment ops; inputs are rows, the segment of each row, the number of segments."""
    pfor_input.stack_inputs([0, 1])
    rows, ids = pfor_input.stacked_input(0), tf.cast(pfor_input.stacked_input(1), tf.int64)
    num_segments = tf.cast(pfor_input.unstacked_input(2), tf.int64)
    clients = tf.shape(ids, tf.int64)[0]
    total = clients * num_segments
    offsets = tf.reshape(
        num_segments * tf.range(clients),
        tf.concat([[clients], tf.ones([tf.rank(ids) - 1], tf.int64)], 0),
    )
    # Ids that are out of range stay out of range.
    own = tf.where(ids < num_segments, ids + offsets, tf.broadcast_to(total, tf.shape(ids)))
    reduced = reduce(rows, tf.where(ids < 0, tf.constant(-1, tf.int64), own), total)
    shape = tf.concat([[clients, num_segments], tf.shape(reduced, tf.int64)[1:]], axis=0)
    return wrap(tf.reshape(reduced, shape))


def _sparse_segments(pfor_input, otherwise):
    """Converts sparse segment ops; inputs are rows, indices of rows, their segments, a number."""
    clients = pfor_input.pfor.loop_len_vector[0]

    def outside_stays_outside(position, number):
        values, is_stacked = pfor_input.inputs[position][:2]
        number = tf.cast(number, values.dtype)
        invalid = -1 - number * tf.cast(clients, values.dtype)
        inside = (values >= 0) & (values < number)
        pfor_input.inputs[position] = wrap(tf.where(inside, values, invalid), is_stacked)

    rows = pfor_input.input(0)
    outside_stays_outside(1, tf.shape(rows.t)[int(rows.is_stacked)])
    if len(pfor_input.inputs) == 4:
        outside_stays_outside(2, pfor_input.unstacked_input(3))
    return otherwise(pfor_input)


def _top_k(pfor_input):
    inputs = [pfor_input.stacked_input(0), pfor_input.unstacked_input(1)]
    return [wrap(output) for output in same_op(pfor_input, inputs)]


def _l2_loss(pfor_input):
    values = pfor_input.stacked_input(0)
    return wrap(tf.reduce_sum(tf.square(values), axis=tf.range(1, tf.rank(values))) / 2)


def _pad(pfor_input):
    """Converts PadV2; inputs are values, paddings before and after every axis, a constant."""
    values = pfor_input.stacked_input(0)
    paddings = tf.pad(pfor_input.unstacked_input(1), [[1, 0], [0, 0]])
    (output,) = same_op(pfor_input, [values, paddings, pfor_input.unstacked_input(2)])
    return wrap(output)


def _slice(pfor_input, otherwise):
    """Converts Slice; inputs are values, the beginning and the size, -1 for up to the end."""
    if pfor_input.input(1).is_stacked:
        begins = tf.get_static_value(pfor_input.op.inputs[1], partial=True)
        sizes = tf.get_static_value(pfor_input.unstacked_input(2))
        unknown = [None] * (0 if sizes is None else len(sizes))
        begins = unknown if begins is None else begins
        if sizes is None or any(
            size < 0 and begin is None for begin, size in zip(begins, sizes, strict=True)
        ):
            raise NotVectorizableError("Slices whose sizes differ by client cannot be stacked.")
    return otherwise(pfor_input)


def _search(pfor_input, otherwise):
    """Converts searches; inputs are sorted rows, and rows of values to search for."""
    if pfor_input.input(0).is_stacked:
        return otherwise(pfor_input)
    values = pfor_input.stacked_input(1)
    clients, rows, length = tf.unstack(tf.shape(values))
    side_by_side = tf.reshape(tf.transpose(values, [1, 0, 2]), [rows, clients * length])
    (found,) = same_op(pfor_input, [pfor_input.unstacked_input(0), side_by_side])
    found = tf.reshape(found, [rows, clients, length])
    return wrap(tf.transpose(found, [1, 0, 2]))


def _roll(pfor_input, otherwise):
    """Converts Roll; inputs are values, distances, axes."""
    axes = pfor_input.unstacked_input(2)
    rank = tf.rank(pfor_input.stacked_input(0)) - 1
    pfor_input.inputs[2] = wrap(axes % tf.cast(rank, axes.dtype), False)
    return otherwise(pfor_input)


def _one_by_one(pfor_input):
    """Runs the op for one client after the other."""
    if not any(x.is_stacked for x in pfor_input.inputs):  # TensorFlow treats the op as stateful
        return [wrap(t, False) for t in same_op(pfor_input, [x.t for x in pfor_input.inputs])]

    @tf.autograph.experimental.do_not_convert
    def run(i):
        return same_op(pfor_input, [x.t[i] if x.is_stacked else x.t for x in pfor_input.inputs])

    outputs = tf.map_fn(
        run,
        tf.range(pfor_input.pfor.loop_len_vector[0]),
        fn_output_signature=[tf.TensorSpec(t.shape, t.dtype) for t in pfor_input.outputs],
    )
    return [wrap(t) for t in outputs]


def _depthwise(pfor_input, otherwise):
    """Converts depthwise convolutions; inputs are images, a filter."""
    if not pfor_input.input(1).is_stacked:
        return internals.pfor_convert_flatten_batch(pfor_input, pfor_input.op_type, dims=[0])
    pfor_input.stack_inputs([0])
    return otherwise(pfor_input)


def _depthwise_input_gradient(pfor_input, otherwise):
    """Converts their input gradient; inputs are as in `_conv_input_gradient`."""
    if not pfor_input.input(1).is_stacked:
        return internals.pfor_convert_flatten_batch_shape_input(
            pfor_input, pfor_input.op_type, flatten_dims=[2], shape_dim=0
        )
    pfor_input.stack_inputs([2])
    return otherwise(pfor_input)


def _depthwise_filter_gradient(pfor_input, otherwise):
    """Converts their filter gradient; inputs are as in `_conv_filter_gradient`."""
    pfor_input.stack_inputs([0, 2])
    return otherwise(pfor_input)
