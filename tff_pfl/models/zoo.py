"""Builds the networks of the papers by name.

The models take images as they are stored (uint8, `[height, width, channels]`), scale them to [0, 1]
and normalise each channel by `(x - mean) / std`. Their outputs are logits.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tff_pfl.arguments.kinds import signature_of
from tff_pfl.arguments.names import TFF_TASKS, check_names, unknown_name
from tff_pfl.arguments.ranges import each, takes, whole
from tff_pfl.arguments.recipes import recipe_of, remembering
from tff_pfl.arguments.registry import Registry
from tff_pfl.models import normalizer_free, residual, tff_tasks, transformer
from tff_pfl.models.inputs import is_shape
from tff_pfl.models.keras.adapter import from_keras
from tff_pfl.models.lora import lora
from tff_pfl.models.model import Model
from tff_pfl.models.task import Task
from tff_pfl.models.tasks import task_of

_SMALLEST = 16  # the height and width of images of which two 5x5 convolutions leave something

MODELS = Registry("model", "image_shape", "num_classes")
"""Functions `(image_shape, num_classes, *, <options>) -> tf.keras.Model`, or `-> Model` with this
annotation; see `build`."""


@MODELS.register("mlp")
@takes(hidden=each(whole(1)))
def mlp(image_shape, num_classes, *, hidden=(200, 200)) -> tf.keras.Model:
    """Builds FedPG's Fashion-MNIST network: 784-200-200-10 with ReLU, 199,210 weights."""
    model = tf.keras.Sequential(name="mlp")
    model.add(tf.keras.layers.Flatten(input_shape=image_shape))
    for index, width in enumerate(hidden, start=1):
        model.add(tf.keras.layers.Dense(width, "relu", name=f"dense{index}"))
    model.add(tf.keras.layers.Dense(num_classes, name="head"))
    return model


@MODELS.register("cnn")
@takes(widths=each(whole(1)), hidden=whole(1))
def cnn(image_shape, num_classes, *, widths=(32, 64), hidden=128) -> tf.keras.Model:
    """Builds a small convolutional network for images of any size, such as 8x8 digits."""
    model = tf.keras.Sequential([tf.keras.layers.InputLayer(input_shape=image_shape)], name="cnn")
    for index, width in enumerate(widths, start=1):
        options = {"padding": "same", "activation": "relu", "name": f"conv{index}"}
        model.add(tf.keras.layers.Conv2D(width, 3, **options))
        model.add(tf.keras.layers.MaxPool2D(2, padding="same"))
    model.add(tf.keras.layers.Flatten())
    model.add(tf.keras.layers.Dense(hidden, "relu", name="dense1"))
    model.add(tf.keras.layers.Dense(num_classes, name="head"))
    return model


@MODELS.register("cnn_fedpg")
def cnn_fedpg(image_shape, num_classes) -> tf.keras.Model:
    """Builds FedPG's CIFAR-10 network: 797,962 weights for 32x32x3 images and 10 classes."""
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
    """Builds PGFed's network: 878,538 weights for 32x32x3 images and 10 classes."""
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
    """Builds pFedMB's LeNet: 62,006 weights for 32x32x3 images and 10 classes."""
    return tf.keras.Sequential(
        [
            *_convolutions(image_shape, widths=(6, 16)),
            tf.keras.layers.Dense(120, "relu", name="dense1"),
            tf.keras.layers.Dense(84, "relu", name="dense2"),
            tf.keras.layers.Dense(num_classes, name="head"),
        ],
        name="lenet",
    )


@MODELS.register("application")
def application(
    image_shape, num_classes, *, network="MobileNetV2", weights="", frozen=False
) -> tf.keras.Model:
    """Builds a network of `tf.keras.applications`, with a head of its own.

    Args:
        image_shape: The shape of images.
        num_classes: The number of classes.
        network: A name in `tf.keras.applications`.
        weights: A file of weights of the network without its top, as Keras publishes them.
        frozen: Whether all but the head is frozen, batch normalisation included.
    """
    build_network = getattr(tf.keras.applications, network, None)
    if not callable(build_network):
        known = [name for name, it in vars(tf.keras.applications).items() if callable(it)]
        raise ValueError(unknown_name("network of tf.keras.applications", network, known))
    options = {"include_top": False, "weights": weights or None, "pooling": "avg"}
    body = build_network(input_shape=image_shape, **options)
    body.trainable = not frozen
    head = tf.keras.layers.Dense(num_classes, name="head")
    return tf.keras.Model(body.input, head(body.output), name=body.name)


def _convolutions(image_shape, widths):
    """Returns two valid 5x5 convolutions with ReLU, each with 2x2 max pooling, and a flatten layer.

    Raises:
        ValueError: The images are smaller than 16x16, of which these layers leave nothing.
    """
    if min(image_shape[:2]) < _SMALLEST:
        size = "x".join(map(str, image_shape[:2]))
        raise ValueError(
            f"Images of {size} are too small for this network, which takes {_SMALLEST}x{_SMALLEST} "
            "and larger ones. The model 'cnn' takes any."
        )
    layers = [tf.keras.layers.InputLayer(input_shape=image_shape)]
    for index, width in enumerate(widths, start=1):
        layers.append(tf.keras.layers.Conv2D(width, 5, activation="relu", name=f"conv{index}"))
        layers.append(tf.keras.layers.MaxPool2D(2))
    return [*layers, tf.keras.layers.Flatten()]


for _name in TFF_TASKS:
    MODELS.register(f"tff_{_name}")(getattr(tff_tasks, _name))
MODELS.register("nf_resnet18")(normalizer_free.nf_resnet18)
MODELS.register("transformer")(transformer.transformer)
MODELS.register("resnet18")(residual.resnet18)
MODELS.register("resnet50")(residual.resnet50)
MODELS.register("wide_resnet")(residual.wide_resnet)


@remembering("built model", "build")
@takes(segments=whole(1))
def build(
    name: str,
    image_shape,
    num_classes: int | None,
    *,
    mean=(0.0,),
    std=(1.0,),
    segments: int = 1,
    compute_type: str = "float32",
    task: Task | str | None = None,
    start: str = "",
    new_layers: str | Sequence[str] = (),
    adapters: Mapping[str, Any] | None = None,
    **chosen,
) -> Model:
    """Builds a network by its name.

    The model takes images as they are stored, and normalises them in float32. If inputs are not
    images of bytes, a Keras model gets them by the default `preprocess` of `from_keras`, and a
    `Model` as they are stored.

    Args:
        name: A key of `MODELS`.
        image_shape: `(height, width, channels)` as stored, before normalization; the structure of
            shapes for several inputs.
        num_classes: The number of outputs: of classes, or of the numbers in an example's label;
            `None` for labels of other kinds.
        mean: The mean of images in [0, 1], for each channel or for all. `None` if inputs are not
            images of bytes.
        std: The standard deviation, for each channel or for all. Ignored if the mean is `None`.
        segments: See `from_keras`.
        compute_type: See `from_keras`.
        task: See `from_keras`. Default: the task of a `Model`, or classification.
        start: A file of initial weights; see `Model.starting_from`.
        new_layers: The layers that the file lacks, by names or patterns.
        adapters: The arguments of `lora`, for a model that is frozen but for adapters.
        **chosen: The network's options that differ from their defaults.

    Raises:
        ValueError: The network or an option is unknown (the message suggests a similar name), the
            normalization does not fit the images, or `segments` or `compute_type` is set for a
            network that is not a Keras model; or see `Model.starting_from` and `lora`.
    """
    model = _network(
        name, image_shape, num_classes, mean, std, segments, compute_type, task, chosen
    )
    if new_layers and not start:
        raise ValueError(f"new_layers={new_layers} are layers that start lacks. Set start, a file.")
    if start:
        model = model.starting_from(start, new_layers)
    return lora(model, **adapters) if adapters else model


def _network(name, image_shape, num_classes, mean, std, segments, compute_type, task, chosen):
    check_names(f"option of model {name!r}", chosen, MODELS.parameters(name))
    if is_shape(image_shape):
        image_shape = tuple(image_shape)
    channels = image_shape[-1] if isinstance(image_shape, tuple) and image_shape else 1
    sizes = {np.size(mean), np.size(std)}
    if mean is not None and (not sizes <= {1, channels} or np.min(std) <= 0):
        numbers = "one number" if channels == 1 else f"one number, or {channels},"
        raise ValueError(
            f"The normalization has the mean {mean} and the deviation {std}, but for inputs of "
            f"shape {image_shape} each needs {numbers} and deviations must be above 0."
        )

    def normalize(x):
        x = tf.cast(x, tf.float32) / 255.0
        return (x - tf.constant(mean, tf.float32)) / tf.constant(std, tf.float32)

    returns_model = signature_of(MODELS[name]).return_annotation is Model

    def made():
        model = MODELS[name](image_shape, num_classes, **chosen)
        if isinstance(model, Model) != returns_model:
            raise ValueError(
                f"The function of {name!r} returns a {type(model).__name__}. Annotate it with "
                "`-> tff_pfl.Model` if and only if it returns a Model."
            )
        return model

    if returns_model:
        if segments != 1 or compute_type != "float32":
            raise ValueError(
                f"segments={segments} and compute_type={compute_type!r} are options of Keras "
                f"models, but {name!r} returns a Model. Give them to the from_keras that makes it."
            )
        model = made() if mean is None else _with_normalized_inputs(made(), normalize)
        return model if task is None else dataclasses.replace(model, task=task_of(task))
    return from_keras(
        made,
        input_shape=image_shape,
        preprocess=None if mean is None else normalize,
        segments=segments,
        compute_type=compute_type,
        task=task,
    )


def _with_normalized_inputs(model: Model, normalize: Callable[[Any], Any]) -> Model:
    """Returns a model that normalises its inputs before it applies `model`."""

    def composed(function):
        return function and (
            lambda weights, x, **options: function(weights, normalize(x), **options)
        )

    return dataclasses.replace(
        model,
        apply=composed(model.apply),
        features=composed(model.features),
        training_pass=composed(model.training_pass),
        forward=composed(model.forward),
    )


def beside(model: Model, network: str | Model) -> Model:
    """Returns a second network for the inputs and the task of a model.

    Example:
        >>> model = models.build("cnn", (8, 8, 1), 10)
        >>> models.beside(model, "mlp").name
        'mlp'

    Args:
        model: The model.
        network: A key of `MODELS`, whose network has the model's normalization and default options;
            "" for the network of the model; or any `Model`.

    Raises:
        ValueError: The name is unknown (the message suggests a similar one), or `build` did not
            make the model.
    """
    if isinstance(network, Model):
        return network
    if not network:
        return model
    check_names("network", [network], MODELS)
    made = recipe_of(model)
    if made is None:
        raise ValueError(
            f"network={network!r} is built as the model is, but tff_pfl.models.build did not make "
            f"{model.name!r}. Pass a tff_pfl.Model instead of the name."
        )
    of_network = ("name", "chosen", "start", "new_layers", "adapters")
    arguments = {key: it for key, it in made.arguments.items() if key not in of_network}
    return build(network, **arguments)
