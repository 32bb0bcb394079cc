"""The networks of the papers, built by name.

All take images as they are stored (uint8, `[height, width, channels]`), scale them to [0, 1] and
normalise each channel by `(x - mean) / std`. All return logits.
"""

import numpy as np
import tensorflow as tf

from tff_pfl.models import normalizer_free, residual
from tff_pfl.models.keras import from_keras
from tff_pfl.models.model import Model
from tff_pfl.names import check_names
from tff_pfl.ranges import each, takes, whole
from tff_pfl.registry import Registry

MODELS = Registry("model")
"""Functions `(image_shape, num_classes, *, <options>) -> tf.keras.Model`; see `build`."""


@MODELS.register("mlp")
@takes(hidden=each(whole(1)))
def mlp(image_shape, num_classes, *, hidden=(200, 200)) -> tf.keras.Model:
    """FedPG's Fashion-MNIST network: 784-200-200-10, ReLU; 199,210 weights."""
    model = tf.keras.Sequential(name="mlp")
    model.add(tf.keras.layers.Flatten(input_shape=image_shape))
    for index, width in enumerate(hidden, start=1):
        model.add(tf.keras.layers.Dense(width, "relu", name=f"dense{index}"))
    model.add(tf.keras.layers.Dense(num_classes, name="head"))
    return model


@MODELS.register("cnn_fedpg")
def cnn_fedpg(image_shape, num_classes) -> tf.keras.Model:
    """FedPG's CIFAR-10 network; 797,962 weights for 32x32x3 images and 10 classes."""
    return tf.keras.Sequential(
        [
            *_convolutions(image_shape, widths=(64, 64)),
            tf.keras.layers.Dense(384, name="dense1"),
            tf.keras.layers.Dropout(0.2),
            tf.keras.layers.ReLU(),
            tf.keras.layers.Dense(192, name="dense2"),
            tf.keras.layers.Dropout(0.5),
            tf.keras.layers.ReLU(),
            tf.keras.layers.Dense(num_classes, name="head"),
        ],
        name="cnn_fedpg",
    )


@MODELS.register("cnn_pgfed")
def cnn_pgfed(image_shape, num_classes) -> tf.keras.Model:
    """PGFed's network; 878,538 weights for 32x32x3 images and 10 classes."""
    return tf.keras.Sequential(
        [
            *_convolutions(image_shape, widths=(32, 64)),
            tf.keras.layers.Dense(512, "relu", name="dense1"),
            tf.keras.layers.Dense(num_classes, name="head"),
        ],
        name="cnn_pgfed",
    )


@MODELS.register("lenet")
def lenet(image_shape, num_classes) -> tf.keras.Model:
    """pFedMB's LeNet; 62,006 weights for 32x32x3 images and 10 classes."""
    return tf.keras.Sequential(
        [
            *_convolutions(image_shape, widths=(6, 16)),
            tf.keras.layers.Dense(120, "relu", name="dense1"),
            tf.keras.layers.Dense(84, "relu", name="dense2"),
            tf.keras.layers.Dense(num_classes, name="head"),
        ],
        name="lenet",
    )


def _convolutions(image_shape, widths):
    """Valid 5x5 convolutions with ReLU, each followed by 2x2 max pooling; then flattened."""
    layers = [tf.keras.layers.InputLayer(input_shape=image_shape)]
    for index, width in enumerate(widths, start=1):
        layers.append(tf.keras.layers.Conv2D(width, 5, activation="relu", name=f"conv{index}"))
        layers.append(tf.keras.layers.MaxPool2D(2))
    return [*layers, tf.keras.layers.Flatten()]


MODELS.register("nf_resnet18")(normalizer_free.nf_resnet18)
MODELS.register("resnet18")(residual.resnet18)
MODELS.register("resnet50")(residual.resnet50)
MODELS.register("wide_resnet")(residual.wide_resnet)


@takes(segments=whole(1))
def build(
    name: str,
    image_shape,
    num_classes: int,
    *,
    mean=(0.0,),
    std=(1.0,),
    segments: int = 1,
    compute_type: str = "float32",
    **chosen,
) -> Model:
    """Builds a network by its name.

    Args:
        name: A key of `MODELS`.
        image_shape: `(height, width, channels)`.
        num_classes: Number of logits.
        mean: Per-channel mean of images in [0, 1], subtracted; `None`: inputs are no images of
            bytes, and taken as they are.
        std: Per-channel standard deviation, divided by, unless the mean is `None`.
        segments: See `from_keras`.
        compute_type: See `from_keras`.
        **chosen: Those of its options that are not to have their defaults.

    Raises:
        ValueError: For an unknown name, of a network or an option; it gives the nearest one. Or
            if the normalization is not one of such images.
    """
    check_names(f"option of model {name!r}", chosen, MODELS.parameters(name))
    channels = image_shape[-1] if len(image_shape) else 1
    sizes = {np.size(mean), np.size(std)}
    if mean is not None and (not sizes <= {1, channels} or np.min(std) <= 0):
        numbers = "one number" if channels == 1 else f"one number, or {channels},"
        raise ValueError(
            f"The normalization has the mean {mean} and the deviation {std}, but of inputs of "
            f"shape {tuple(image_shape)} each has {numbers} and deviations are above 0."
        )

    def normalize(x):
        return (x / 255.0 - tf.constant(mean, tf.float32)) / tf.constant(std, tf.float32)

    return from_keras(
        lambda: MODELS[name](tuple(image_shape), num_classes, **chosen),
        input_shape=tuple(image_shape),
        preprocess=tf.identity if mean is None else normalize,
        segments=segments,
        compute_type=compute_type,
    )
