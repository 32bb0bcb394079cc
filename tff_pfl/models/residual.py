"""Residual networks with group normalisation, as in PLGU's experiments.

He et al., "Deep Residual Learning for Image Recognition" (ResNet); Zagoruyko and Komodakis, "Wide
Residual Networks"; Wu and He, "Group Normalization".

The papers normalise over the batch. These networks normalise each image separately, over
`gcd(groups, channels)` groups of channels, because not every width is a multiple of `groups` (a
wide network's stem has 16 channels and thus 16 groups). Batch and group normalisation have the same
trainable weights, so the numbers of weights match the papers.

The networks end in a global average, so their weights fit images of any size. From input to output,
layers are named `stem`, `stem_norm`, `block1_conv1`, `block1_norm1`, ..., `head`; each norm is a
separate layer. Wide networks, where norms precede convolutions, have a `final_norm` before the head
and no norm after the stem. Convolutions have no bias, and start from He's normal distribution by
fan-out.
"""

import itertools
import math
from typing import Any

import tensorflow as tf

from tff_pfl.arguments.names import check_names
from tff_pfl.arguments.ranges import each, takes, up_to, whole

_STAGES: dict[str, Any] = {
    "width": whole(1),
    "blocks": each(whole(1), fewest=1),
    "groups": whole(1),
}


@takes(**_STAGES)
def resnet18(
    image_shape, num_classes, *, width=64, blocks=(2, 2, 2, 2), stem="cifar", groups=32
) -> tf.keras.Model:
    """Builds a ResNet-18, which has 11,173,962 weights for 10 classes and 11,220,132 for 100.

    Args:
        image_shape: `(height, width, channels)`.
        num_classes: The number of logits.
        width: The channels of the first stage. Each later stage doubles them.
        blocks: The number of blocks in each stage. Each stage except the first halves height and
            width.
        stem: "cifar" for a 3x3 convolution, or "imagenet" for a 7x7 convolution and max pooling,
            both of stride 2.
        groups: The number of normalisation groups; each layer has `gcd(groups, channels)`.
    """
    return _resnet("resnet18", _basic, image_shape, num_classes, width, blocks, stem, groups)


@takes(**_STAGES)
def resnet50(
    image_shape, num_classes, *, width=64, blocks=(3, 4, 6, 3), stem="cifar", groups=32
) -> tf.keras.Model:
    """Builds a ResNet-50, which has 23,520,842 weights for 10 classes.

    The 3x3 convolutions have the strides. Each stage has four times as many output channels as
    channels of its 3x3 convolutions. See `resnet18` for the arguments.
    """
    return _resnet("resnet50", _bottleneck, image_shape, num_classes, width, blocks, stem, groups)


@takes(depth=whole(10), widen=whole(1), dropout_rate=up_to(0, 1), groups=whole(1))
def wide_resnet(
    image_shape, num_classes, *, depth=28, widen=10, dropout_rate=0.0, groups=32
) -> tf.keras.Model:
    """Builds a WideResNet-28-10, with 36,479,194 weights for 10 classes and 36,536,884 for 100.

    Args:
        image_shape: `(height, width, channels)`.
        num_classes: The number of logits.
        depth: 6n + 4 for three stages of n blocks: 6n + 1 convolutions, and 3 in shortcuts.
        widen: The widening factor. The stages have `16 widen`, `32 widen` and `64 widen` channels.
        dropout_rate: The rate of the dropout between the convolutions of a block.
        groups: The number of normalisation groups; each layer has `gcd(groups, channels)`.
    """
    if depth % 6 != 4:
        raise ValueError(f"depth must be 6n + 4 with n >= 1, such as 10, 16 or 28, got {depth}.")
    inputs = tf.keras.Input(image_shape)
    x = _conv(inputs, 16, 3, 1, "stem")
    for name, factor, stride in plan(blocks=[(depth - 4) // 6] * 3):
        x = _pre_activation(x, 16 * widen * factor, stride, dropout_rate, groups, name)
    x = _relu(_norm(x, groups, "final_norm"))
    return classifier("wide_resnet", inputs, x, num_classes)


def _resnet(model_name, convolutions, image_shape, num_classes, width, blocks, stem, groups):
    check_names("stem", [stem], ["cifar", "imagenet"])
    inputs = tf.keras.Input(image_shape)
    size, stride = (3, 1) if stem == "cifar" else (7, 2)
    x = _relu(_norm(_conv(inputs, width, size, stride, "stem"), groups, "stem_norm"))
    if stem == "imagenet":
        x = tf.keras.layers.MaxPool2D(3, 2, "same")(x)
    for name, factor, stride in plan(blocks):
        x = _post_activation(x, convolutions(width * factor, stride), stride, groups, name)
    return classifier(model_name, inputs, x, num_classes)


def plan(blocks):
    """Yields `(name, multiple of the first stage's width, stride)` for each block."""
    numbers = itertools.count(1)
    for stage, count in enumerate(blocks):
        for position in range(count):
            yield f"block{next(numbers)}", 2**stage, 2 if stage > 0 and position == 0 else 1


def _basic(width, stride):
    """Returns `(width, size, stride)` of each convolution of a block."""
    return [(width, 3, stride), (width, 3, 1)]


def _bottleneck(width, stride):
    return [(width, 1, 1), (width, 3, stride), (4 * width, 1, 1)]


def _post_activation(x, convolutions, block_stride, groups, name):
    """Computes `relu(x + f(x))`; if shapes differ, a 1x1 convolution and a norm project `x`."""
    y = x
    for number, (width, size, stride) in enumerate(convolutions, start=1):
        y = _conv(y if number == 1 else _relu(y), width, size, stride, f"{name}_conv{number}")
        y = _norm(y, groups, f"{name}_norm{number}")
    if x.shape != y.shape:
        x = _conv(x, y.shape[-1], 1, block_stride, f"{name}_shortcut")
        x = _norm(x, groups, f"{name}_shortcut_norm")
    return _relu(tf.keras.layers.add([x, y]))


def _pre_activation(x, width, stride, dropout_rate, groups, name):
    """Computes `x + f(relu(norm(x)))`; if shapes differ, `x` is a convolution of `f`'s input."""
    activated = _relu(_norm(x, groups, f"{name}_norm1"))
    y = _conv(activated, width, 3, stride, f"{name}_conv1")
    y = _relu(_norm(y, groups, f"{name}_norm2"))
    if dropout_rate:
        y = tf.keras.layers.Dropout(dropout_rate)(y)
    y = _conv(y, width, 3, 1, f"{name}_conv2")
    if x.shape != y.shape:
        x = _conv(activated, width, 1, stride, f"{name}_shortcut")
    return tf.keras.layers.add([x, y])


def classifier(name, inputs, x, num_classes):
    """Returns the model that adds a global average and the head to `x`."""
    x = tf.keras.layers.GlobalAveragePooling2D()(x)
    return tf.keras.Model(inputs, tf.keras.layers.Dense(num_classes, name="head")(x), name=name)


def _conv(x, width, size, stride, name):
    initializer = tf.keras.initializers.VarianceScaling(2.0, "fan_out", "untruncated_normal")
    return tf.keras.layers.Conv2D(
        width, size, stride, "same", use_bias=False, kernel_initializer=initializer, name=name
    )(x)


def _norm(x, groups, name):
    height, width, channels = x.shape[1:]
    groups = math.gcd(groups, channels)
    if height == width == 1 and groups == channels:
        raise ValueError(
            f"Layer {name!r} would normalise each value by itself, to 0: its images are 1x1, with "
            f"{channels} channels in {groups} groups. Use larger images, more channels or fewer "
            "`groups`."
        )
    return tf.keras.layers.GroupNormalization(groups, epsilon=1e-5, name=name)(x)


def _relu(x):
    return tf.keras.layers.ReLU()(x)
