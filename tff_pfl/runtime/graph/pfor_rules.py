"""Rules that TensorFlow's parallel-for lacks, or has wrong.

Parallel-for (`tf.vectorized_map`) rewrites a client's graph op by op: a tensor that differs between
clients is "stacked", with the clients as its leading axis, and the rule of an op says what computes
its stacked outputs. TensorFlow 2.14 has no rule for some ops of a client's work, for others a rule
that is a loop or wants an input to be shared, and a few of its rules are wrong. `rules()` has, for
as long as `vectorization` installs them:

    top_k                   itself, as it works on the last axis.
    l2_loss                 a sum over all axes but the first.
    stateless random ops    a loop over the clients. Every client draws the very numbers that it
                            would draw alone, which no single draw of more numbers would give.
    convolutions            where clients have filters of their own, one convolution with a group a
                            client; see `grouped_convolutions`.
    depthwise convolutions  TensorFlow's rules, for shared inputs as well.
    pad                     with the constant that was asked for. TensorFlow's rule pads with 0.
    roll                    of negative axes as well. TensorFlow's rule takes the axis after: for -1
                            that of the clients, which mixes them.
    matmul                  of clients without rows as well, whose shapes TensorFlow's rule gets
                            wrong, and of complex matrices, which it conjugates where they are to be
                            transposed.
    slice                   from where each client says, if all slices have the same size.
                            TensorFlow's rule gives all clients the largest.
    searches                in sorted values that clients share. TensorFlow's rule copies these for
                            every client.
    unsorted segments       with negative ids as well, which drop a row. TensorFlow's rule gives
                            such rows to the client before.
    sparse segments         gradients by a loop over the clients. TensorFlow's rule returns numbers
                            of other clients where segments at the end are empty.

All other cases of these ops stay with TensorFlow's rules.
"""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Mapping

import tensorflow as tf

from tff_pfl.runtime.graph import internals
from tff_pfl.runtime.graph.internals import pfor_wrap as wrap


class NotVectorizableError(ValueError):
    """A client's graph cannot be vectorized; the message names the op."""

    ag_pass_through = True  # or AutoGraph replaces it by an exception of its own


_groups_allowed = contextvars.ContextVar("grouped_convolutions", default=False)


@contextlib.contextmanager
def grouped_convolutions(enabled: bool):
    """Allows grouped convolutions in graphs that are traced within the context, if `enabled`.

    They pay on GPUs only. On CPUs, TensorFlow has the gradients of grouped convolutions in oneDNN
    alone, and a loop over the clients is as fast. Where they are not allowed, a convolution that
    needs one raises `NotVectorizableError`.
    """
    token = _groups_allowed.set(enabled)
    try:
        yield
    finally:
        _groups_allowed.reset(token)


# Stateless random ops that are missing here have a rule in TensorFlow, a loop as well.
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
    """Returns rules by op type; a rule maps parallel-for's input to one or several wrapped outputs.

    Args:
        general: TensorFlow's rules, for what these do not cover.
    """
    extensions = {
        "Conv2D": _conv,
        "Conv2DBackpropInput": _conv_input_gradient,
        "Conv2DBackpropFilter": _conv_filter_gradient,
        "DepthwiseConv2dNative": _depthwise,
        "DepthwiseConv2dNativeBackpropInput": _depthwise_input_gradient,
        "DepthwiseConv2dNativeBackpropFilter": _depthwise_filter_gradient,
        "LowerBound": _search,
        "Roll": _roll,
        "Slice": _slice,
        "UpperBound": _search,
    }
    return {
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


def _outputs(pfor_input, inputs):
    """Returns the outputs of an op like the converted one, on other inputs."""
    dtypes = [output.dtype for output in pfor_input.outputs]
    attributes = pfor_input.op.node_def.attr
    return internals.pfor_create_op(pfor_input.op_type, inputs, dtypes, attributes).outputs


def _matmul(pfor_input):
    """Inputs: matrices, of which one may be shared."""
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
    """Inputs: rows, the segment of each, the number of segments."""
    pfor_input.stack_inputs([0, 1])
    rows, ids = pfor_input.stacked_input(0), tf.cast(pfor_input.stacked_input(1), tf.int64)
    num_segments = tf.cast(pfor_input.unstacked_input(2), tf.int64)
    clients = tf.shape(ids, tf.int64)[0]
    total = clients * num_segments
    offsets = tf.reshape(
        num_segments * tf.range(clients),
        tf.concat([[clients], tf.ones([tf.rank(ids) - 1], tf.int64)], 0),
    )
    # Ids that are out of range stay so.
    own = tf.where(ids < num_segments, ids + offsets, tf.broadcast_to(total, tf.shape(ids)))
    reduced = reduce(rows, tf.where(ids < 0, tf.constant(-1, tf.int64), own), total)
    shape = tf.concat([[clients, num_segments], tf.shape(reduced, tf.int64)[1:]], axis=0)
    return wrap(tf.reshape(reduced, shape))


def _top_k(pfor_input):
    inputs = [pfor_input.stacked_input(0), pfor_input.unstacked_input(1)]
    return [wrap(output) for output in _outputs(pfor_input, inputs)]


def _l2_loss(pfor_input):
    values = pfor_input.stacked_input(0)
    return wrap(tf.reduce_sum(tf.square(values), axis=tf.range(1, tf.rank(values))) / 2)


def _pad(pfor_input):
    """Inputs: values, number of constants before and after along every axis, constant."""
    values = pfor_input.stacked_input(0)
    paddings = tf.pad(pfor_input.unstacked_input(1), [[1, 0], [0, 0]])
    (output,) = _outputs(pfor_input, [values, paddings, pfor_input.unstacked_input(2)])
    return wrap(output)


def _slice(pfor_input, otherwise):
    """Inputs: values, where the slice begins, its size; -1 is all that is left."""
    if pfor_input.input(1).is_stacked:
        begins = tf.get_static_value(pfor_input.op.inputs[1], partial=True)
        sizes = tf.get_static_value(pfor_input.unstacked_input(2))
        unknown = [None] * (0 if sizes is None else len(sizes))
        begins = unknown if begins is None else begins
        if sizes is None or any(
            size < 0 and begin is None for begin, size in zip(begins, sizes, strict=True)
        ):
            raise NotVectorizableError("Slices whose sizes may differ by client.")
    return otherwise(pfor_input)


def _search(pfor_input, otherwise):
    """Inputs: rows that are sorted, rows of values to search for."""
    if pfor_input.input(0).is_stacked:
        return otherwise(pfor_input)
    values = pfor_input.stacked_input(1)
    clients, rows, length = tf.unstack(tf.shape(values))
    side_by_side = tf.reshape(tf.transpose(values, [1, 0, 2]), [rows, clients * length])
    (found,) = _outputs(pfor_input, [pfor_input.unstacked_input(0), side_by_side])
    found = tf.reshape(found, [rows, clients, length])
    return wrap(tf.transpose(found, [1, 0, 2]))


def _roll(pfor_input, otherwise):
    """Inputs: values, distances, axes."""
    axes = pfor_input.unstacked_input(2)
    rank = tf.rank(pfor_input.stacked_input(0)) - 1
    pfor_input.inputs[2] = wrap(axes % tf.cast(rank, axes.dtype), False)
    return otherwise(pfor_input)


def _one_by_one(pfor_input):
    """Runs the op for each client alone, one after the other."""
    if not any(x.is_stacked for x in pfor_input.inputs):  # an op that TensorFlow calls stateful
        return [wrap(t, False) for t in _outputs(pfor_input, [x.t for x in pfor_input.inputs])]

    @tf.autograph.experimental.do_not_convert
    def run(i):
        return _outputs(pfor_input, [x.t[i] if x.is_stacked else x.t for x in pfor_input.inputs])

    outputs = tf.map_fn(
        run,
        tf.range(pfor_input.pfor.loop_len_vector[0]),
        fn_output_signature=[tf.TensorSpec(t.shape, t.dtype) for t in pfor_input.outputs],
    )
    return [wrap(t) for t in outputs]


# The axis of channels, behind the batch, is `_channels(pfor_input)`; a filter's are these.
_FILTER_IN = 2
_FILTER_OUT = 3


def _channels(pfor_input):
    return 1 if pfor_input.get_attr("data_format") == b"NCHW" else 3


def _conv(pfor_input, otherwise):
    """Inputs: images, filter."""
    images, kernel = pfor_input.inputs
    channels = _channels(pfor_input)
    if not kernel.is_stacked:
        return otherwise(pfor_input)
    if not images.is_stacked and _has_one_group(pfor_input, kernel=pfor_input.op.inputs[1]):
        return _side_by_side(pfor_input, {1: _FILTER_OUT}, channels)
    return _grouped(pfor_input, {0: channels, 1: _FILTER_OUT}, channels)


def _conv_input_gradient(pfor_input, otherwise):
    """Inputs: shape of the images, filter, gradient of the outputs."""
    if not pfor_input.input(1).is_stacked:
        return otherwise(pfor_input)
    channels = _channels(pfor_input)
    return _grouped(pfor_input, {1: _FILTER_OUT, 2: channels}, channels, shape=0)


def _conv_filter_gradient(pfor_input, otherwise):
    """Inputs: images, shape of the filter, gradient of the outputs.

    The gradient of a filter that is shared differs by client, too.
    """
    images = pfor_input.input(0)
    if not images.is_stacked and _has_one_group(pfor_input, kernel=pfor_input.output(0)):
        return otherwise(pfor_input)
    channels = _channels(pfor_input)
    return _grouped(pfor_input, {0: channels, 2: channels}, _FILTER_OUT, shape=1)


def _has_one_group(pfor_input, kernel):
    """Returns whether each client's own convolution is known to be an ordinary one."""
    in_channels = pfor_input.op.inputs[0].shape[_channels(pfor_input)]
    return in_channels is not None and in_channels == kernel.shape[_FILTER_IN]


def _grouped(pfor_input, axes, out_axis, shape=None):
    if not _groups_allowed.get():
        raise NotVectorizableError(
            f"{pfor_input.op_type} ({pfor_input.op.name}) with a filter, or the gradient of one, "
            "that differs by client takes a grouped convolution, which is not enabled here."
        )
    return _side_by_side(pfor_input, axes, out_axis, shape)


def _side_by_side(pfor_input, axes, out_axis, shape=None):
    """Runs the op once, with the clients side by side along an axis of channels.

    Args:
        pfor_input: The op's inputs.
        axes: From the index of an input to the axis in which its clients come to lie.
        out_axis: The axis in which they lie in the output.
        shape: Index of the input that holds the shape of the output.
    """
    pfor_input.stack_inputs(list(axes))
    num_clients = pfor_input.pfor.loop_len_vector
    inputs = [x.t for x in pfor_input.inputs]
    for index, axis in axes.items():
        inputs[index] = internals.pfor_flatten_with_inner_dim(inputs[index], axis + 1, 5)
    if shape is not None:
        sizes = pfor_input.unstacked_input(shape)
        inputs[shape] = tf.concat(
            [sizes[:out_axis], sizes[out_axis : out_axis + 1] * num_clients, sizes[out_axis + 1 :]],
            axis=0,
        )
    (output,) = _outputs(pfor_input, inputs)
    return wrap(internals.pfor_unflatten_with_inner_dim(output, out_axis, 4, num_clients[0]))


def _depthwise(pfor_input, otherwise):
    """Inputs: images, filter."""
    if not pfor_input.input(1).is_stacked:
        return internals.pfor_convert_flatten_batch(pfor_input, pfor_input.op_type, dims=[0])
    pfor_input.stack_inputs([0])
    return otherwise(pfor_input)


def _depthwise_input_gradient(pfor_input, otherwise):
    """Inputs: shape of the images, filter, gradient of the outputs."""
    if not pfor_input.input(1).is_stacked:
        return internals.pfor_convert_flatten_batch_shape_input(
            pfor_input, pfor_input.op_type, flatten_dims=[2], shape_dim=0
        )
    pfor_input.stack_inputs([2])
    return otherwise(pfor_input)


def _depthwise_filter_gradient(pfor_input, otherwise):
    """Inputs: images, shape of the filter, gradient of the outputs."""
    pfor_input.stack_inputs([0, 2])
    return otherwise(pfor_input)
