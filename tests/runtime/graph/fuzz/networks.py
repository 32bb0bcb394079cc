"""Convolutions, pooling, normalizations, losses, Keras layers."""

import functools

import numpy as np
import tensorflow as tf

from tests.runtime.graph.fuzz.catalogue import Family
from tests.runtime.graph.fuzz.operands import distinct, integers, positive, probabilities, real
from tff_pfl import models

convolutions = Family("convolutions and pooling")
add = convolutions.add

_IMAGES = real(2, 5, 6, 2)
# Of maxima that are equal, TensorFlow's kernels give the gradient to one or to all, and differ in
# that between a graph and eager calls.
_DISTINCT_IMAGES = distinct(2, 5, 6, 2)
_WINDOW = {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": "VALID"}
for _padding in ("SAME", "VALID"):
    for _strides in (1, 2):
        add(
            f"conv2d {_padding} {_strides}",
            lambda x, k, p=_padding, s=_strides: tf.nn.conv2d(x, k, s, p),
            _IMAGES,
            real(3, 2, 2, 3),
        )
        add(
            f"depthwise {_padding} {_strides}",
            lambda x, k, p=_padding, s=_strides: tf.nn.depthwise_conv2d(x, k, [1, s, s, 1], p),
            _IMAGES,
            real(2, 2, 2, 2),
        )
        add(
            f"conv1d {_padding} {_strides}",
            lambda x, k, p=_padding, s=_strides: tf.nn.conv1d(x, k, s, p),
            real(2, 6, 2),
            real(3, 2, 3),
        )
        for _name in ("max_pool2d", "avg_pool2d"):
            _options = {"ksize": 2, "strides": _strides, "padding": _padding}
            add(
                f"{_name} {_padding} {_strides}",
                functools.partial(
                    getattr(tf.nn, _name), ksize=2, strides=_strides, padding=_padding
                ),
                _DISTINCT_IMAGES,
            )
    add(
        f"dilated {_padding}",
        lambda x, k, p=_padding: tf.nn.conv2d(x, k, 1, p, dilations=2),
        _IMAGES,
        real(2, 2, 2, 3),
    )
    add(
        f"conv3d {_padding}",
        lambda x, k, p=_padding: tf.nn.conv3d(x, k, [1] * 5, p),
        real(1, 3, 3, 3, 2),
        real(2, 2, 2, 2, 2),
    )
    add(
        f"max_pool3d {_padding}",
        lambda x, p=_padding: tf.nn.max_pool3d(x, 2, 2, p),
        distinct(1, 4, 4, 4, 2),
    )
    add(
        f"avg_pool3d {_padding}",
        lambda x, p=_padding: tf.nn.avg_pool3d(x, 2, 2, p),
        real(1, 4, 4, 4, 2),
    )
    add(
        f"max_pool1d {_padding}",
        lambda x, p=_padding: tf.nn.max_pool1d(x, 2, 2, p),
        distinct(2, 6, 2),
    )
    add(
        f"transposed {_padding}",
        lambda x, k, p=_padding: tf.nn.conv2d_transpose(
            x, k, tf.shape(x) * [1, 2, 2, 1] + [0, 0, 0, 1], 2, p
        ),
        real(1, 2, 3, 2),
        real(2, 2, 3, 2),
    )
add("raw MaxPoolV2", lambda x: tf.raw_ops.MaxPoolV2(input=x, **_WINDOW), _DISTINCT_IMAGES)
add(
    "raw MaxPoolGradV2",
    lambda x, g: tf.raw_ops.MaxPoolGradV2(
        orig_input=x, orig_output=tf.nn.max_pool2d(x, 2, 2, "VALID"), grad=g, **_WINDOW
    ),
    _DISTINCT_IMAGES,
    real(2, 2, 3, 2),
)
add(
    "conv2d, padded",
    lambda x, k: tf.nn.conv2d(x, k, 1, [[0, 0], [1, 0], [0, 1], [0, 0]]),
    _IMAGES,
    real(2, 2, 2, 3),
)
add("grouped", lambda x, k: tf.nn.conv2d(x, k, 1, "SAME"), real(1, 4, 4, 4), real(2, 2, 2, 4))
add(
    "separable",
    lambda x, d, p: tf.nn.separable_conv2d(x, d, p, [1] * 4, "SAME"),
    _IMAGES,
    real(2, 2, 2, 1),
    real(1, 1, 2, 3),
)
add(
    "erosion",
    lambda x, k: tf.nn.erosion2d(x, k, [1] * 4, "SAME", "NHWC", [1] * 4),
    _IMAGES,
    real(2, 2, 2),
)
add("fractional", lambda x: tf.nn.max_pool_with_argmax(x, 2, 2, "VALID").output, _DISTINCT_IMAGES)
add(
    "own sizes",
    lambda k, g, n: tf.raw_ops.Conv2DBackpropInput(
        input_sizes=n, filter=k, out_backprop=g, strides=[1] * 4, padding="SAME"
    ),
    real(2, 2, 2, 3),
    real(1, 3, 3, 3),
    lambda rng, sizes: np.array([1, 3, 3, 2], np.int32),
)
for _method in ("nearest", "bilinear", "bicubic"):
    add(f"resize {_method}", lambda x, m=_method: tf.image.resize(x, [4, 4], m), real(1, 3, 3, 2))
add("flip", tf.image.flip_left_right, real(2, 3, 3, 2))
add("crop", lambda x: tf.image.central_crop(x, 0.5), real(2, 4, 4, 2))
add(
    "crop and resize",
    lambda x, b, i: tf.image.crop_and_resize(x, b, i, [2, 2]),
    real(2, 4, 4, 2),
    probabilities(3, 4),
    integers(0, 2, 3),
)
add("adjust contrast", lambda x: tf.image.adjust_contrast(x, 0.7), positive(2, 3, 3, 3))
add("adjust hue", lambda x: tf.image.adjust_hue(x, 0.1), probabilities(2, 3, 3, 3))
add("adjust saturation", lambda x: tf.image.adjust_saturation(x, 0.7), probabilities(2, 3, 3, 3))

functions = Family("functions of networks")
add = functions.add

for _axis in (-1, 0):
    add(f"softmax {_axis}", lambda x, a=_axis: tf.nn.softmax(x, a), real(3, 4))
    add(f"log_softmax {_axis}", lambda x, a=_axis: tf.nn.log_softmax(x, a), real(3, 4))
add(
    "cross entropy",
    lambda y, z: tf.nn.softmax_cross_entropy_with_logits(y, z),
    probabilities(3, 4),
    real(3, 4),
)
add(
    "raw cross entropy",
    lambda y, z: tf.raw_ops.SoftmaxCrossEntropyWithLogits(features=z, labels=y).loss,
    probabilities(3, 4),
    real(3, 4),
)
add(
    "raw cross entropy, broadcast",
    lambda y, z: tf.raw_ops.SoftmaxCrossEntropyWithLogits(features=z, labels=y).loss,
    probabilities(1, 4),
    real(3, 4),
)
add(
    "sparse cross entropy",
    lambda y, z: tf.nn.sparse_softmax_cross_entropy_with_logits(y, z),
    integers(0, 4, "n"),
    real("n", 4),
)
add(
    "sparse cross entropy of 3",
    lambda y, z: tf.nn.sparse_softmax_cross_entropy_with_logits(y, z),
    integers(0, 4, 2, 3),
    real(2, 3, 4),
)
add(
    "sigmoid cross entropy",
    lambda y, z: tf.nn.sigmoid_cross_entropy_with_logits(y, z),
    probabilities(3, 4),
    real(3, 4),
)
add(
    "keras cross entropy",
    lambda y, z: tf.keras.losses.sparse_categorical_crossentropy(y, z, True),
    integers(0, 4, 3),
    real(3, 4),
)
add("keras hinge", tf.keras.losses.squared_hinge, integers(0, 2, 3), real(3))
add("keras huber", tf.keras.losses.huber, real(3, 2), real(3, 2))
add("keras kl", tf.keras.losses.kl_divergence, probabilities(3, 4), probabilities(3, 4))
add(
    "accuracy",
    lambda y, z: tf.reduce_mean(tf.cast(tf.equal(tf.argmax(z, -1, tf.int32), y), tf.float32)),
    integers(0, 4, 3),
    real(3, 4),
)
for _format, _shape in {"NHWC": (2, 3, 3, 2), "NCHW": (2, 2, 3, 3)}.items():
    add(
        f"bias_add {_format}",
        lambda x, b, f=_format: tf.nn.bias_add(x, b, f),
        real(*_shape),
        real(2),
    )
    add(
        f"BiasAddGrad {_format}",
        lambda x, f=_format: tf.raw_ops.BiasAddGrad(out_backprop=x, data_format=f),
        real(*_shape),
    )
add("bias_add of a matrix", tf.nn.bias_add, real("n", 3), real(3))
add("BiasAddV1", lambda x, b: tf.raw_ops.BiasAddV1(value=x, bias=b), real("n", 3), real(3))
for _training in (True, False):
    add(
        f"fused batch norm {_training}",
        lambda x, s, o, m, v, t=_training: (
            tf.raw_ops.FusedBatchNormV3(
                x=x,
                scale=s,
                offset=o,
                mean=m,
                variance=v,
                is_training=t,
                exponential_avg_factor=1.0,
            ).y
        ),
        real(2, 3, 3, 2),
        real(2),
        real(2),
        real(2),
        positive(2),
    )
add(
    "batch_normalization",
    lambda x, m, v, o, s: tf.nn.batch_normalization(x, m, v, o, s, 1e-3),
    real(4, 3),
    real(3),
    positive(3),
    real(3),
    real(3),
)
add("local response", lambda x: tf.nn.local_response_normalization(x, 1), real(1, 2, 2, 4))
add(
    "attention",
    lambda q, k, v: tf.matmul(tf.nn.softmax(tf.matmul(q, k, transpose_b=True)), v),
    real(2, 3, 4),
    real(2, 5, 4),
    real(2, 5, 4),
)
add(
    "own dropout",
    lambda x, s: tf.nn.experimental.stateless_dropout(x, 0.4, s),
    real(3, 4),
    integers(0, 99, 2),
)

keras = Family("Keras layers", draws=True)  # their initial weights

_layers = tf.keras.layers
_LAYERS = {
    "dense": ((4,), lambda: [_layers.Dense(5, "relu")]),
    "dropout": ((4,), lambda: [_layers.Dense(5, "tanh"), _layers.Dropout(0.4)]),
    "convolution": (
        (6, 6, 2),
        lambda: [
            _layers.Conv2D(3, 3),
            _layers.GroupNormalization(3),
            _layers.MaxPool2D(),
            _layers.Flatten(),
        ],
    ),
    "depthwise": (
        (4, 4, 2),
        lambda: [_layers.DepthwiseConv2D(2), _layers.GlobalAveragePooling2D()],
    ),
    "separable": ((4, 4, 2), lambda: [_layers.SeparableConv2D(3, 2), _layers.Flatten()]),
    "transposed": ((3, 3, 2), lambda: [_layers.Conv2DTranspose(3, 2, 2), _layers.Flatten()]),
    "layer norm": ((4,), lambda: [_layers.Dense(5), _layers.LayerNormalization()]),
    "unit norm": ((4,), lambda: [_layers.Dense(5), _layers.UnitNormalization()]),
    "prelu": ((4,), lambda: [_layers.Dense(5), _layers.PReLU()]),
    "embedding": ((3,), lambda: [_layers.Embedding(7, 4), _layers.Flatten()]),
    "lstm": ((3, 2), lambda: [_layers.LSTM(3)]),
    "gru": ((3, 2), lambda: [_layers.GRU(3)]),
    "simple rnn": ((3, 2), lambda: [_layers.SimpleRNN(3)]),
    "bidirectional": (
        (3, 2),
        lambda: [_layers.Bidirectional(_layers.GRU(2, return_sequences=True)), _layers.Flatten()],
    ),
    "conv lstm": ((2, 3, 3, 1), lambda: [_layers.ConvLSTM2D(2, 2), _layers.Flatten()]),
    "time distributed": (
        (3, 2),
        lambda: [_layers.TimeDistributed(_layers.Dense(2)), _layers.Flatten()],
    ),
    "einsum dense": (
        (3, 2),
        lambda: [_layers.EinsumDense("abc,cd->abd", (None, 4)), _layers.Flatten()],
    ),
}


def _functional(inputs, make):
    x = tf.keras.Input(inputs)
    return tf.keras.Model(x, _layers.Dense(3)(_layers.Flatten()(make(x))))


_FUNCTIONAL = {
    "multi-head attention": ((3, 4), lambda x: _layers.MultiHeadAttention(2, 2)(x, x)),
    "attention": ((3, 4), lambda x: _layers.Attention()([_layers.Dense(4)(x), x])),
    "additive attention": ((3, 4), lambda x: _layers.AdditiveAttention()([_layers.Dense(4)(x), x])),
    "residual": ((4, 4, 2), lambda x: x + _layers.Conv2D(2, 3, padding="same")(x)),
}


def _network(name):
    if name in _FUNCTIONAL:
        inputs, make = _FUNCTIONAL[name]
        return functools.partial(_functional, inputs, make), inputs
    inputs, make = _LAYERS[name]
    return (
        lambda: tf.keras.Sequential([tf.keras.Input(inputs), *make(), _layers.Dense(3)])
    ), inputs


@functools.cache
def _model(name):
    network, inputs = _network(name)
    return models.from_keras(network, input_shape=inputs)


def _add(name):
    """The loss of a batch, of weights near a client's initial ones."""
    _, inputs = _network(name)

    def loss(x, y, seed, near):
        model = _model(name)
        weights = tf.nest.map_structure(lambda w: w + 0.1 * tf.reduce_sum(near), model.init(0))
        logits = model.apply(weights, x, training=True, seed=seed)
        return tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)

    draw = integers(0, 7, 2, *inputs) if name == "embedding" else real(2, *inputs)
    keras.add(name, loss, draw, integers(0, 3, 2), integers(0, 99, 2), real(2))


for _name in (*_LAYERS, *_FUNCTIONAL):
    _add(_name)
