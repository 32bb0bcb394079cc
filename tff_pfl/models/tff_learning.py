"""Makes pure models of the models of `tff.learning`."""

import collections
from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.kinds import KindError
from tff_pfl.models.keras import from_keras
from tff_pfl.models.model import Model
from tff_pfl.models.task import Metric, Task
from tff_pfl.models.tasks import keras_metrics

_COUNTERS = ("loss", "num_examples", "num_batches")  # Metrics that TFF adds to each model.


def from_tff(
    model: tff.learning.models.FunctionalModel | Callable[[], tff.learning.models.VariableModel],
) -> Model:
    """Makes a pure `Model` of a model of `tff.learning`, with its loss and its metrics as the task.

    A model function keeps the layers' names of its Keras model, its regularizers, and the masks of
    its layers, such as those of embeddings. Initial weights are drawn by the layers' initializers;
    see `Model.starting_from` for given ones. If the Keras model has a mask, the loss needs it, and
    labels are mappings of "ids" and "mask" instead of ids alone.

    The loss must be a mean or a sum over examples. The trainable weights of a `FunctionalModel`
    become layers `weight_0`, `weight_1` and so on, or layers with the names of their mapping, with
    one weight `value` each. Its other weights are constants. Its metrics must add up over examples.

    Example:
        >>> def model_fn():
        ...     network = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(2,))])
        ...     return tff.learning.models.from_keras_model(
        ...         network,
        ...         loss=tf.keras.losses.MeanSquaredError(),
        ...         input_spec=(tf.TensorSpec([None, 2]), tf.TensorSpec([None, 1])),
        ...         metrics=[tf.keras.metrics.MeanAbsoluteError(name="mae")],
        ...     )
        >>> model = tff_pfl.from_tff(model_fn)
        >>> model.layers, list(model.task.metrics)
        (('dense',), ['mae'])

    Args:
        model: A `FunctionalModel`; or a function that returns the result of
            `tff.learning.models.from_keras_model`, as TFF's algorithms take it.

    Raises:
        KindError: `model` is something else.
        ValueError: See `from_keras`.
    """
    if isinstance(model, tff.learning.models.FunctionalModel):
        return _from_functional(model)
    if not callable(model):
        raise KindError(
            "from_tff takes a FunctionalModel, or a function that returns a VariableModel, got "
            f"{model!r:.80}."
        )
    with tf.Graph().as_default():  # Automatic names of layers start afresh.
        learned = model()
    if not hasattr(learned, "_keras_model"):
        raise KindError(
            "The function must return the result of tff.learning.models.from_keras_model, got "
            f"{learned!r:.80}."
        )
    return _from_keras_model(learned)


def _from_keras_model(learned) -> Model:
    original = learned._keras_model
    outputs = original.outputs or ()
    has_mask = any(getattr(output, "_keras_mask", None) is not None for output in outputs)

    def network():
        copy = tf.keras.models.clone_model(original)
        if not has_mask:
            return copy
        outputs = {"logits": copy.output, "mask": _Mask(name="mask")(copy.output)}
        return tf.keras.Model(copy.input, outputs)

    spec = learned.input_spec
    x = spec["x"] if isinstance(spec, Mapping) else spec[0]
    made = from_keras(
        network,
        input_shape=tf.nest.map_structure(lambda leaf: tuple(leaf.shape[1:]), x),
        input_dtype=tf.nest.map_structure(lambda leaf: leaf.dtype, x),
        preprocess=lambda inputs: inputs,
        task=_task(learned, has_mask),
    )
    return made


class _Mask(tf.keras.layers.Layer):
    """Returns the mask of its input as float32."""

    def compute_mask(self, inputs, mask=None):
        """Returns no mask, since the output is one."""
        del inputs, mask

    def call(self, inputs, mask=None):
        """Returns the mask."""
        del inputs
        return tf.cast(mask, tf.float32)


def _task(learned, has_mask: bool) -> Task:
    """Returns the task of a model of `tff.learning.models.from_keras_model`."""
    losses, factors = learned._loss_fns, learned._loss_weights
    is_sum = {loss.reduction == tf.keras.losses.Reduction.SUM for loss in losses}
    if len(is_sum) > 1:
        raise ValueError("All losses must be means over examples, or all must be sums.")

    def elements(y, outputs):
        """Returns the losses of an example's elements, such as tokens, `[batch, elements]`."""
        if len(losses) == 1:
            return _flat(losses[0].call(y, outputs))
        return sum(
            factor * tf.reduce_mean(_flat(loss.call(y[i], outputs[i])), axis=1, keepdims=True)
            for i, (loss, factor) in enumerate(zip(losses, factors, strict=True))
        )

    def example_loss(y, outputs):
        if has_mask:
            weight = tf.cast(y["mask"], tf.float32)
            found = tf.where(weight > 0.0, elements(y["ids"], outputs["logits"]), 0.0)
            total = tf.reduce_sum(found * weight, axis=1)
            return tf.math.divide_no_nan(total, tf.reduce_sum(weight, axis=1))
        found = elements(y, outputs)
        return tf.reduce_sum(found, axis=1) if is_sum == {True} else tf.reduce_mean(found, axis=1)

    metrics = [metric for metric in learned.get_metrics() if metric.name not in _COUNTERS]
    return Task(
        "the task of tff.learning",
        example_loss,
        {name: _of_tokens(metric) for name, metric in keras_metrics(metrics).items()},
        example_weight=_tokens if has_mask else None,
        reduction="sum" if is_sum == {True} else "mean",
    )


def _flat(values):
    return tf.reshape(values, [tf.shape(values)[0], -1])


def _tokens(y):
    return tf.reduce_sum(tf.cast(y["mask"], tf.float32), axis=1)


def _of_tokens(metric: Metric) -> Metric:
    """Returns the metric that counts each token of a sequence as an example."""

    def sums(y, outputs, weight):
        if isinstance(y, Mapping) and set(y) == {"ids", "mask"}:
            y, outputs = y["ids"], outputs["logits"]
        is_of_tokens = tf.is_tensor(y) and 1 < y.shape.rank == outputs.shape.rank - 1
        if is_of_tokens:
            weight = tf.repeat(weight, y.shape[1])
            y = tf.reshape(y, [-1])
            outputs = tf.reshape(outputs, [-1, outputs.shape[-1]])
        return metric.sums(y, outputs, weight)

    return Metric(sums, metric.finalize, metric.direction)


def _from_functional(model: tff.learning.models.FunctionalModel) -> Model:
    trainable, constant = model.initial_weights
    if not isinstance(trainable, Mapping):
        trainable = {f"weight_{i}": weight for i, weight in enumerate(trainable)}
    container = type(model.initial_weights[0])
    start = collections.OrderedDict(
        (name, collections.OrderedDict(value=np.asarray(weight, np.float32)))
        for name, weight in trainable.items()
    )

    def apply(weights, x, *, training, seed):
        del seed
        values = {name: weights[name]["value"] for name in start}
        is_mapping = issubclass(container, Mapping)
        given = container(values) if is_mapping else container(values.values())
        return model.predict_on_batch((given, constant), x, training)

    def example_loss(y, outputs):
        def of_row(row):
            y, outputs = tf.nest.map_structure(lambda leaf: leaf[tf.newaxis], row)
            return tf.cast(model.loss(outputs, y), tf.float32)

        return tf.vectorized_map(of_row, (y, outputs))

    result = Model(
        init=lambda seed: tf.nest.map_structure(tf.constant, start),
        apply=apply,
        task=Task("the task of a FunctionalModel", example_loss, _functional_metrics(model)),
        name="functional_model",
        starts_alike=True,
    )
    return result


def _functional_metrics(model) -> dict[str, Metric]:
    """Returns the metrics of a `FunctionalModel`, each of which keeps the state of all."""
    with tf.Graph().as_default():
        names = [name for name in model.finalize_metrics(model.initialize_metrics_state())]

    def sums(y, outputs, weight):
        start = model.initialize_metrics_state()

        def of_row(row):
            (y, outputs), weight = row
            y, outputs = tf.nest.map_structure(lambda leaf: leaf[tf.newaxis], (y, outputs))
            batch = tff.learning.models.BatchOutput(predictions=outputs)
            after = model.update_metrics_state(start, y, batch)
            return tf.nest.map_structure(
                lambda b, a: tf.where(weight > 0.0, a - b, tf.zeros_like(a)), start, after
            )

        rows = tf.vectorized_map(of_row, ((y, outputs), weight))
        return tf.nest.map_structure(lambda leaf: tf.reduce_sum(leaf, axis=0), rows)

    def finalize(name):
        def of_sums(found):
            start = model.initialize_metrics_state()
            state = tf.nest.map_structure(tf.add, start, found)
            return model.finalize_metrics(state)[name]

        return of_sums

    return {name: Metric(sums, finalize(name)) for name in names}
