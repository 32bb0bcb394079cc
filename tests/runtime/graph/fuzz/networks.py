"""Operations of networks: convolutions, pooling, normalizations, losses, Keras layers."""

import functools

import tensorflow as tf

from tests.runtime.graph.fuzz.catalogue import family
from tests.runtime.graph.fuzz.operands import distinct, integers, positive, probabilities, real
from tff_pfl import models

_IMAGES = real(2, 5, 6, 2)
# TensorFlow's kernels give the gradient of equal maxima to one or all of them, and graphs differ
# from eager execution.
_DISTINCT_IMAGES = distinct(2, 5, 6, 2)
_STRIDED = {
    "tf.nn.conv2d(x, y, {strides}, '{padding}')": [_IMAGES, real(3, 2, 2, 3)],
    "tf.nn.depthwise_conv2d(x, y, [1, {strides}, {strides}, 1], '{padding}')": [
        _IMAGES,
        real(2, 2, 2, 2),
    ],
    "tf.nn.conv1d(x, y, {strides}, '{padding}')": [real(2, 6, 2), real(3, 2, 3)],
    "tf.nn.max_pool2d(x, 2, {strides}, '{padding}')": [_DISTINCT_IMAGES],
    "tf.nn.avg_pool2d(x, 2, {strides}, '{padding}')": [_DISTINCT_IMAGES],
}
_PADDED = {
    "tf.nn.conv2d(x, y, 1, '{padding}', dilations=2)": [_IMAGES, real(2, 2, 2, 3)],
    "tf.nn.conv2d_transpose(x, y, tf.shape(x) * [1, 2, 2, 1] + [0, 0, 0, 1], 2, '{padding}')": [
        real(1, 2, 3, 2),
        real(2, 2, 3, 2),
    ],
}

convolutions = family(
    "convolutions and pooling",
    {
        **{
            expression.format(strides=strides, padding=padding): operands
            for expression, operands in (_STRIDED | _PADDED).items()
            for padding in ("SAME", "VALID")
            for strides in (1, 2)
        },
        "tf.nn.conv2d(x, y, 1, [[0, 0], [1, 0], [0, 1], [0, 0]])": [_IMAGES, real(2, 2, 2, 3)],
        "tf.nn.conv2d(x, y, 1, 'SAME') # grouped": [real(1, 4, 4, 4), real(2, 2, 2, 4)],
    },
)


def _batch_norm(is_training, *inputs):
    names = ("x", "scale", "offset", "mean", "variance")
    options = {"is_training": is_training, "exponential_avg_factor": 1.0}
    return tf.raw_ops.FusedBatchNormV3(**dict(zip(names, inputs, strict=True)), **options).y


functions = family(
    "functions of networks",
    {
        **{
            f"tf.nn.{name}(x, {axis})": [real(3, 4)]
            for name in ("softmax", "log_softmax")
            for axis in (-1, 0)
        },
        "tf.nn.softmax_cross_entropy_with_logits(x, y)": [probabilities(3, 4), real(3, 4)],
        "tf.raw_ops.SoftmaxCrossEntropyWithLogits(labels=x, features=y).loss": [
            probabilities(1, 4),
            real(3, 4),
        ],
        "tf.nn.sparse_softmax_cross_entropy_with_logits(x, y)": [
            integers(0, 4, "n"),
            real("n", 4),
        ],
        "tf.nn.sigmoid_cross_entropy_with_logits(x, y)": [probabilities(3, 4), real(3, 4)],
        "tf.nn.bias_add(x, y)": [real(2, 3, 3, 2), real(2)],
        "tf.nn.bias_add(x, y, 'NCHW')": [real(2, 2, 3, 3), real(2)],
        "tf.nn.bias_add(x, y) # of a matrix": [real("n", 3), real(3)],
        **{
            f"batch_norm({is_training}, x, y, z, v, w)": [
                *(real(2, 3, 3, 2), real(2), real(2), real(2), positive(2))
            ]
            for is_training in (True, False)
        },
        "tf.nn.batch_normalization(x, y, z, v, w, 1e-3)": [
            *(real(4, 3), real(3), positive(3), real(3), real(3))
        ],
        "tf.matmul(tf.nn.softmax(tf.matmul(x, y, transpose_b=True)), z)": [
            *(real(2, 3, 4), real(2, 5, 4), real(2, 5, 4))
        ],
    },
    batch_norm=_batch_norm,
)

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


def _loss(name, x, y, seed, near):
    """Computes the loss of a batch with weights near the initial weights."""
    model = _model(name)
    weights = tf.nest.map_structure(lambda w: w + 0.1 * tf.reduce_sum(near), model.init(0))
    logits = model.apply(weights, x, training=True, seed=seed)
    return tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)


def _operands(name):
    _, inputs = _network(name)
    draw = integers(0, 7, 2, *inputs) if name == "embedding" else real(2, *inputs)
    return [draw, integers(0, 3, 2), integers(0, 99, 2), real(2)]


keras = family(
    "Keras layers",
    {f"loss('{name}', x, y, z, v)": _operands(name) for name in (*_LAYERS, *_FUNCTIONAL)},
    draws=True,  # initial weights are random
    loss=_loss,
)
