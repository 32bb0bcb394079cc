"""Rules of parallel-for for convolutions whose filters, or their gradients, differ by client.

There are two ways to convolve each client's images with its own filters at once:

    grouped     one convolution, with the clients side by side as groups of channels.
    patches     a batched product of matrices, of patches of the images and filters. The patches are
                slices of the images, one for each entry of a filter, which XLA fuses.

The derivatives of a convolution are convolutions, too: for each way there are rules of the output,
the gradient of the images and that of the filter. TensorFlow's rules remain for filters that
clients share.
"""

import contextlib
import contextvars
import functools
import itertools
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import tensorflow as tf

from tff_pfl.runtime.graph import internals
from tff_pfl.runtime.graph.clients.pfor_rules import NotVectorizableError, same_op
from tff_pfl.runtime.graph.internals import pfor_wrap as wrap

GROUPED, PATCHES = "grouped", "patches"

# Where both ways are allowed, which is on CPUs with XLA. Reasoned, not measured: a product of
# patches needs 16 columns or more, and reads and writes the patches, which take as many bytes as
# the images times the entries of a filter.
_FEWEST_OUTPUTS = 16
_MOST_INPUTS = 64
_MOST_ELEMENTS = 1 << 23

_ways: contextvars.ContextVar[tuple[str, ...]] = contextvars.ContextVar("ways", default=())
_forced = []  # the ways that `forced` chose, for all threads

# The axes of channels in a filter. `_channels(pfor_input)` is the axis of channels in images.
_FILTER_IN, _FILTER_OUT = 2, 3


@contextlib.contextmanager
def own_filters(*ways: str):
    """Allows convolutions whose filters differ by client, in graphs that are traced in the context.

    On GPUs `GROUPED` is faster for PGFed's CNN by 1.2 to 1.7 times (docs/results/gpu.md). On CPUs
    without XLA no way is allowed: only oneDNN has the gradients of grouped convolutions, and a loop
    over the clients is as fast. If none is allowed, such a convolution raises
    `NotVectorizableError`.

    Args:
        *ways: `GROUPED`, `PATCHES`, or both, between which sizes decide.
    """
    token = _ways.set(ways)
    try:
        yield
    finally:
        _ways.reset(token)


@contextlib.contextmanager
def forced(way: str):
    """Makes all graphs that are traced in the context convolve in one way where any is allowed.

    A benchmark compares both ways by it. Convolutions with channels first, or with groups of their
    own, remain groups.
    """
    _forced.append(way)
    try:
        yield
    finally:
        _forced.pop()


def rules(general: Mapping[str, Callable]) -> dict[str, Callable]:
    """Returns rules by op type; see `pfor_rules.rules`."""
    own = {
        "Conv2D": _conv,
        "Conv2DBackpropInput": _conv_input_gradient,
        "Conv2DBackpropFilter": _conv_filter_gradient,
    }
    return {
        op_type: functools.partial(rule, otherwise=general[op_type])
        for op_type, rule in own.items()
    }


def _channels(pfor_input):
    return 1 if pfor_input.get_attr("data_format") == b"NCHW" else 3


def _conv(pfor_input, otherwise):
    """Converts Conv2D; inputs are images, a filter."""
    images, kernel = pfor_input.inputs
    channels = _channels(pfor_input)
    if not kernel.is_stacked:
        return otherwise(pfor_input)
    shapes = pfor_input.op.inputs[0].shape, pfor_input.op.inputs[1].shape
    if not images.is_stacked and _has_one_group(pfor_input, *shapes):
        return _side_by_side(pfor_input, {1: _FILTER_OUT}, channels)
    if _window(pfor_input, *shapes) is not None:
        return _by_patches(pfor_input, _output_of_patches, *shapes)
    return _grouped(pfor_input, {0: channels, 1: _FILTER_OUT}, channels)


def _conv_input_gradient(pfor_input, otherwise):
    """Converts its input gradient; inputs are the images' shape, a filter, the output gradient."""
    if not pfor_input.input(1).is_stacked:
        return otherwise(pfor_input)
    shapes = pfor_input.op.outputs[0].shape, pfor_input.op.inputs[1].shape
    if _window(pfor_input, *shapes) is not None:
        return _by_patches(pfor_input, _images_of_patches, *shapes)
    channels = _channels(pfor_input)
    return _grouped(pfor_input, {1: _FILTER_OUT, 2: channels}, channels, shape=0)


def _conv_filter_gradient(pfor_input, otherwise):
    """Converts its filter gradient; inputs are images, the filter's shape, the output gradient.

    Gradients of a shared filter differ by client too.
    """
    shapes = pfor_input.op.inputs[0].shape, pfor_input.op.outputs[0].shape
    if not pfor_input.input(0).is_stacked and _has_one_group(pfor_input, *shapes):
        return otherwise(pfor_input)
    if _window(pfor_input, *shapes) is not None:
        return _by_patches(pfor_input, _filter_of_patches, *shapes)
    channels = _channels(pfor_input)
    return _grouped(pfor_input, {0: channels, 2: channels}, _FILTER_OUT, shape=1)


def _has_one_group(pfor_input, images: tf.TensorShape, kernel: tf.TensorShape) -> bool:
    """Returns whether each client's own convolution is known to have one group."""
    channels = images[_channels(pfor_input)]
    return channels is not None and channels == kernel[_FILTER_IN]


def _grouped(pfor_input, axes, out_axis, shape=None):
    if GROUPED not in _ways.get():
        raise NotVectorizableError(
            f"{pfor_input.op_type} ({pfor_input.op.name}) has a filter, or a filter gradient, that "
            "differs by client. It needs a grouped convolution, which is not enabled here."
        )
    return _side_by_side(pfor_input, axes, out_axis, shape)


def _side_by_side(pfor_input, axes, out_axis, shape=None):
    """Runs the op once, with the clients side by side along an axis of channels.

    Args:
        pfor_input: The op's inputs.
        axes: The axis of the clients, by the index of an input.
        out_axis: The axis of the clients in the output.
        shape: The index of the input that has the shape of the output.
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
    (output,) = same_op(pfor_input, inputs)
    return wrap(internals.pfor_unflatten_with_inner_dim(output, out_axis, 4, num_clients[0]))


class _Window(NamedTuple):
    """The places of a filter in images, with channels last.

    Attributes:
        size: Its height and width.
        strides: The steps between places, of height and width.
        dilations: The steps between its entries.
        padding: The rows before and after images, and the columns.
        places: The numbers of places, which are the height and width of the output.
        image: The height, the width and the channels of an image.
    """

    size: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    padding: tuple[tuple[int, int], ...]
    places: tuple[int, int]
    image: tuple[int, int, int]


def _window(pfor_input, images: tf.TensorShape, kernel: tf.TensorShape) -> _Window | None:
    """Returns the window of a convolution by patches, or `None` if it is to be grouped."""
    ways = _ways.get()
    if _forced and ways:
        ways = (_forced[-1],)
    is_known = images.rank == 4 and kernel.is_fully_defined() and images[1:].is_fully_defined()
    if PATCHES not in ways or not is_known or not _has_one_group(pfor_input, images, kernel):
        return None
    if pfor_input.get_attr("data_format") == b"NCHW":
        return None
    size, image = tuple(kernel[:2]), tuple(images[1:])
    strides, dilations = (tuple(pfor_input.get_attr(k)[1:3]) for k in ("strides", "dilations"))
    explicit = pfor_input.get_attr("explicit_paddings")
    padding, places = [], []
    for axis in range(2):
        reach = dilations[axis] * (size[axis] - 1) + 1
        sides = tuple(explicit[2 + 2 * axis : 4 + 2 * axis]) or (0, 0)
        if pfor_input.get_attr("padding") == b"SAME":
            rest = (-(-image[axis] // strides[axis]) - 1) * strides[axis] + reach - image[axis]
            sides = (max(rest, 0) // 2, (max(rest, 0) + 1) // 2)
        padding.append(sides)
        places.append((image[axis] + sum(sides) - reach) // strides[axis] + 1)
    if GROUPED in ways:
        elements = (images[0] or math.inf) * math.prod((*places, *size, image[2]))
        if kernel[3] < _FEWEST_OUTPUTS or image[2] > _MOST_INPUTS or elements > _MOST_ELEMENTS:
            return None
    return _Window(size, strides, dilations, tuple(padding), tuple(places), image)


def _by_patches(pfor_input, combine, images: tf.TensorShape, kernel: tf.TensorShape):
    """Applies one of the functions below to the inputs, in which one client stands for shared."""
    stacks = [x.t if x.is_stacked else x.t[tf.newaxis] for x in pfor_input.inputs]
    return wrap(combine(*stacks, _window(pfor_input, images, kernel)))


def _output_of_patches(images, kernels, window):
    patches = _patches(images, window)
    product = tf.matmul(patches, _as_matrices(kernels))
    shape = [tf.shape(product)[0], -1, *window.places, kernels.shape[-1]]
    return tf.reshape(product, shape)


def _images_of_patches(sizes, kernels, gradients, window):
    del sizes
    columns = tf.matmul(_as_rows(gradients), _as_matrices(kernels), transpose_b=True)
    clients, number = tf.shape(columns)[0], tf.shape(gradients)[1]
    images = tf.zeros([clients, number, *window.image], columns.dtype)
    (result,) = tf.gradients(_patches(images, window), images, columns)  # it is linear
    return result


def _filter_of_patches(images, sizes, gradients, window):
    del sizes
    product = tf.matmul(_patches(images, window), _as_rows(gradients), transpose_a=True)
    shape = [tf.shape(product)[0], *window.size, window.image[2], gradients.shape[-1]]
    return tf.reshape(product, shape)


def _patches(images, window):
    """Returns all patches of each client's images as rows, `[clients, rows, entries]`."""
    padded = tf.pad(images, [(0, 0), (0, 0), *window.padding, (0, 0)])
    slices = []
    for corner in itertools.product(*map(range, window.size)):
        rows, columns = (
            slice(first := index * dilation, first + (count - 1) * stride + 1, stride)
            for index, dilation, count, stride in zip(
                corner, window.dilations, window.places, window.strides, strict=True
            )
        )
        slices.append(padded[:, :, rows, columns])
    return _as_rows(tf.concat(slices, axis=-1))


def _as_rows(tensor):
    """Reshapes `[clients, images, height, width, channels]` to `[clients, rows, channels]`."""
    return tf.reshape(tensor, [tf.shape(tensor)[0], -1, tensor.shape[-1]])


def _as_matrices(kernels):
    """Reshapes filters to matrices, with a row for each entry and channel of the images."""
    return tf.reshape(kernels, [tf.shape(kernels)[0], -1, kernels.shape[-1]])
