"""Makes pure models of the models of `tff.learning`."""

import collections
import dataclasses
from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.arguments.kinds import KindError
from tff_pfl.arguments.names import check_names
from tff_pfl.models.keras.adapter import from_keras
from tff_pfl.models.keras.metrics import keras_metrics
from tff_pfl.models.model import Model
from tff_pfl.models.task import Metric, Task

_COUNTERS = ("loss", "num_examples", "num_batches")  # Metrics that TFF adds to each model.


def from_tff(
    model: tff.learning.models.FunctionalModel | Callable[[], tff.learning.models.VariableModel],
    *,
    directions: Mapping[str, int] | None = None,
) -> Model:
    """Makes a pure `Model` of a model of `tff.learning`, with its loss and its metrics as the task.

    A model function keeps the layers' names of its Keras model, and its regularizers. Initial
    weights are drawn by the layers' initializers; see `Model.starting_from` for given ones. As in
    `tff.learning`, the loss counts all tokens of a sequence, even if layers mask some.

    The loss must be a mean or a sum over examples; a sum moves training steps, as in TFF. The
    trainable weights of a `FunctionalModel` become layers `weight_0`, `weight_1` and so on, or
    layers with the names of their mapping, with one weight `value` each. Its other weights are
    constants. Its metrics must add up over examples.

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
        directions: 1 (more is better) or -1 by the name of a metric; see `keras_metrics`.

    Raises:
        KindError: `model` is something else.
        ValueError: The loss is neither a mean nor a sum over examples; or see `from_keras`.
    """
    if isinstance(model, tff.learning.models.FunctionalModel):
        return _from_functional(model, directions or {})
    if not callable(model) or isinstance(model, tf.keras.layers.Layer):
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
    original, spec = learned._keras_model, learned.input_spec
    x = spec["x"] if isinstance(spec, Mapping) else spec[0]
    return from_keras(
        lambda: tf.keras.models.clone_model(original),
        input_shape=tf.nest.map_structure(lambda leaf: tuple(leaf.shape[1:]), x),
        input_dtype=tf.nest.map_structure(lambda leaf: leaf.dtype, x),
        preprocess=lambda inputs: inputs,
        task=_task(learned, directions),
    )


def _task(learned, directions) -> Task:
    """Returns the task of a model of `tff.learning.models.from_keras_model`."""
    losses, factors = learned._loss_fns, learned._loss_weights
    is_sum = losses[0].reduction == tf.keras.losses.Reduction.SUM
    if any((loss.reduction == tf.keras.losses.Reduction.SUM) != is_sum for loss in losses):
        raise ValueError("All losses must be means over examples, or all must be sums.")
    reduce = tf.reduce_sum if is_sum else tf.reduce_mean

    def of_examples(loss, y, outputs):
        return reduce(_flat(loss.call(y, outputs)), axis=1)

    def example_loss(y, outputs):
        if len(losses) == 1:
            return of_examples(losses[0], y, outputs)
        pairs = zip(losses, factors, strict=True)
        return sum(f * of_examples(loss, y[i], outputs[i]) for i, (loss, f) in enumerate(pairs))

    metrics = [metric for metric in learned.get_metrics() if metric.name not in _COUNTERS]
    return Task(
        "the task of tff.learning",
        example_loss,
        {
            name: _of_tokens(it)
            for name, it in keras_metrics(metrics, directions=directions).items()
        },
        reduction="sum" if is_sum else "mean",
    )


def _flat(values):
    return tf.reshape(values, [tf.shape(values)[0], -1])


def _of_tokens(metric: Metric) -> Metric:
    """Returns the metric that counts each token of a sequence as an example."""

    def sums(y, outputs, weight):
        is_of_tokens = tf.is_tensor(y) and 1 < y.shape.rank == outputs.shape.rank - 1
        if is_of_tokens:
            weight = tf.repeat(weight, y.shape[1])
            y = tf.reshape(y, [-1])
            outputs = tf.reshape(outputs, [-1, outputs.shape[-1]])
        return metric.sums(y, outputs, weight)

    return dataclasses.replace(metric, sums=sums, of_tokens=False)


def _from_functional(model: tff.learning.models.FunctionalModel, directions) -> Model:
    trainable, constant = model.initial_weights
    container, is_mapping = type(trainable), isinstance(trainable, Mapping)
    if not is_mapping:
        trainable = {f"weight_{i}": weight for i, weight in enumerate(trainable)}
    start = collections.OrderedDict(
        (name, collections.OrderedDict(value=np.asarray(weight, np.float32)))
        for name, weight in trainable.items()
    )

    def apply(weights, x, *, training, seed):
        del seed
        values = {name: weights[name]["value"] for name in start}
        given = container(values) if is_mapping else container(values.values())
        return model.predict_on_batch((given, constant), x, training)

    def example_loss(y, outputs):
        def of_row(row):
            y, outputs = tf.nest.map_structure(lambda leaf: leaf[tf.newaxis], row)
            return tf.cast(model.loss(outputs, y), tf.float32)

        return tf.vectorized_map(of_row, (y, outputs))

    return Model(
        init=lambda seed: tf.nest.map_structure(tf.constant, start),
        apply=apply,
        task=Task(
            "the task of a FunctionalModel",
            example_loss,
            _functional_metrics(model, directions),
            reduction=_reduction(model),
        ),
        name="functional_model",
        starts_alike=True,
    )


def _reduction(model) -> str:
    """Returns whether the loss of a `FunctionalModel` is the "mean" or the "sum" over examples."""
    rng = np.random.default_rng(0)

    def drawn(spec):
        shape = [2, *(size or 2 for size in spec.shape[1:])]
        if spec.dtype in (tf.string, tf.bool):
            return tf.zeros(shape, spec.dtype)
        is_float = spec.dtype.is_floating
        return tf.cast(
            rng.uniform(size=shape) if is_float else rng.integers(2, size=shape), spec.dtype
        )

    spec = model.input_spec
    x, y = (spec["x"], spec["y"]) if isinstance(spec, Mapping) else spec
    x, y = tf.nest.map_structure(drawn, (x, y))
    outputs = model.predict_on_batch(model.initial_weights, x, False)

    def loss(rows):
        return float(model.loss(*tf.nest.map_structure(lambda leaf: leaf[rows], (outputs, y))))

    total = loss(slice(0, 1)) + loss(slice(1, 2))
    for reduction, expected in (("mean", total / 2), ("sum", total)):
        if total and np.isclose(loss(slice(0, 2)), expected, rtol=1e-3, atol=0):
            return reduction
    raise ValueError(
        f"The loss of the FunctionalModel is {loss(slice(0, 2)):.6g} for a batch of two examples "
        f"with a total of {total:.6g}, which is neither the mean nor the sum over examples. Reduce "
        "the losses of examples by tf.reduce_mean or tf.reduce_sum."
    )


def _functional_metrics(model, directions) -> dict[str, Metric]:
    """Returns the metrics of a `FunctionalModel`, each of which keeps the state of all."""
    with tf.Graph().as_default():
        names = list(model.finalize_metrics(model.initialize_metrics_state()))

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

    check_names("metric of directions", directions, names)
    return {name: Metric(sums, finalize(name), directions.get(name)) for name in names}
