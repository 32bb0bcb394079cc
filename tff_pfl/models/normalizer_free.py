"""A residual network without normalisation, as in FedPG's experiments on CIFAR-100.

Brock et al., "Characterizing signal propagation to close the performance gap in unnormalized
ResNets", ICLR 2021. These networks do not normalise activations, but control their variance:

    convolution   kernel  gain (W - mean(W)) / sqrt(fan_in var(W)), for each output channel
    activation    s ReLU(x),  s = 1.71396
    block         shortcut(x) + scale f(s ReLU(x))

Convolutions have no bias, and a gain for each output channel, which starts at 1. The shortcut of a
block that changes shape projects the input of `f`, as in pre-activation networks. `s` is the
constant of the published code; the paper's formula gives sqrt(2 / (1 - 1 / pi)) = 1.71286. The
layers are named `stem`, `block1_conv1`, `block1_conv2`, `block1_shortcut`, ..., `head`.
"""

import math

import tensorflow as tf

from tff_pfl.arguments.ranges import at_least, each, takes, whole
from tff_pfl.models import residual

_RELU_SCALE = 1.71396
_LEAST_VARIANCE = 1e-4  # A floor for a kernel's variance times its fan-in.


@takes(
    stem_width=whole(1),
    width=whole(1),
    blocks=each(whole(1), fewest=1),
    residual_scale=at_least(0),
)
def nf_resnet18(
    image_shape, num_classes, *, stem_width=64, width=16, blocks=(2, 2, 2), residual_scale=0.2
) -> tf.keras.Model:
    """Builds FedPG's narrow NF-ResNet-18, which has 189,844 weights for 100 classes.

    Args:
        image_shape: `(height, width, channels)`.
        num_classes: The number of logits.
        stem_width: The channels of the first convolution (3x3), which 3x3 max pooling of stride 2
            follows.
        width: The channels of the first stage. Each later stage doubles them.
        blocks: The number of blocks in each stage. Each stage except the first halves height and
            width.
        residual_scale: The factor of a block's residual branch before it is added.
    """
    inputs = tf.keras.Input(image_shape)
    x = _activation(_conv(inputs, stem_width, 3, 1, "stem"))
    x = tf.keras.layers.MaxPool2D(3, 2, "same")(x)
    for name, factor, stride in residual.plan(blocks):
        x = _block(x, width * factor, stride, residual_scale, name)
    return residual.classifier("nf_resnet18", inputs, x, num_classes)


class _StandardizedConv2D(tf.keras.layers.Conv2D):
    """A convolution whose kernel is standardized for each output channel and scaled by a gain."""

    def build(self, input_shape):
        super().build(input_shape)
        self.gain = self.add_weight("gain", shape=[self.filters], initializer="ones")

    def convolution_op(self, inputs, kernel):
        kernel, gain = (tf.cast(weight, tf.float32) for weight in (kernel, self.gain))
        mean, variance = tf.nn.moments(kernel, axes=[0, 1, 2], keepdims=True)
        fan_in = math.prod(kernel.shape[:-1])
        scale = gain * tf.math.rsqrt(tf.maximum(variance * fan_in, _LEAST_VARIANCE))
        return super().convolution_op(inputs, tf.cast((kernel - mean) * scale, inputs.dtype))


def _block(x, width, stride, residual_scale, name):
    activated = _activation(x)
    y = _conv(activated, width, 3, stride, f"{name}_conv1")
    y = _conv(_activation(y), width, 3, 1, f"{name}_conv2")
    if x.shape != y.shape:
        x = _conv(activated, width, 1, stride, f"{name}_shortcut")
    return tf.keras.layers.add([x, tf.keras.layers.Rescaling(residual_scale)(y)])


def _conv(x, width, size, stride, name):
    initializer = tf.keras.initializers.VarianceScaling(2.0, "fan_out", "untruncated_normal")
    return _StandardizedConv2D(
        width, size, stride, "same", use_bias=False, kernel_initializer=initializer, name=name
    )(x)


def _activation(x):
    return tf.keras.layers.Rescaling(_RELU_SCALE)(tf.keras.layers.ReLU()(x))
