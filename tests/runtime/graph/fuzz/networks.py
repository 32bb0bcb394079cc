"""Convolutions, pooling, normalizations, losses, Keras layers."""

import functools

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
        f"transposed {_padding}",
        lambda x, k, p=_padding: tf.nn.conv2d_transpose(
            x, k, tf.shape(x) * [1, 2, 2, 1] + [0, 0, 0, 1], 2, p
        ),
        real(1, 2, 3, 2),
        real(2, 2, 3, 2),
    )
add(
    "conv2d, padded",
    lambda x, k: tf.nn.conv2d(x, k, 1, [[0, 0], [1, 0], [0, 1], [0, 0]]),
    _IMAGES,
    real(2, 2, 2, 3),
)
add("grouped", lambda x, k: tf.nn.conv2d(x, k, 1, "SAME"), real(1, 4, 4, 4), real(2, 2, 2, 4))

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
    "sigmoid cross entropy",
    lambda y, z: tf.nn.sigmoid_cross_entropy_with_logits(y, z),
    probabilities(3, 4),
    real(3, 4),
)
for _format, _shape in {"NHWC": (2, 3, 3, 2), "NCHW": (2, 2, 3, 3)}.items():
    add(
        f"bias_add {_format}",
        lambda x, b, f=_format: tf.nn.bias_add(x, b, f),
        real(*_shape),
        real(2),
    )
add("bias_add of a matrix", tf.nn.bias_add, real("n", 3), real(3))
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
add(
    "attention",
    lambda q, k, v: tf.matmul(tf.nn.softmax(tf.matmul(q, k, transpose_b=True)), v),
    real(2, 3, 4),
    real(2, 5, 4),
    real(2, 5, 4),
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
    "embedding": ((3,), lambda: [_layers.Embedding(7, 4), _layers.Flatten()]),
    "lstm": ((3, 2), lambda: [_layers.LSTM(3)]),
    "gru": ((3, 2), lambda: [_layers.GRU(3)]),
}


def _functional(inputs, make):
    x = tf.keras.Input(inputs)
    return tf.keras.Model(x, _layers.Dense(3)(_layers.Flatten()(make(x))))


_FUNCTIONAL = {
    "multi-head attention": ((3, 4), lambda x: _layers.MultiHeadAttention(2, 2)(x, x)),
    "attention": ((3, 4), lambda x: _layers.Attention()([_layers.Dense(4)(x), x])),
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
