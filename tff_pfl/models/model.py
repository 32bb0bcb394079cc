"""Pure functional models: weights are a value, never a variable."""

import collections
import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff
import tree

from tff_pfl.equality import elementwise_equality
from tff_pfl.kinds import KindError
from tff_pfl.models.rows import depends_on_other_rows
from tff_pfl.names import IN_PARTS, is_part


class Mean(NamedTuple):
    """A mean over examples, kept as its two sums so that it can be added up over clients.

    Attributes:
        total: float32 scalar, the sum of the quantity.
        count: float32 scalar, the number of examples it was summed over.
    """

    total: tf.Tensor
    count: tf.Tensor

    @property
    def mean(self) -> tf.Tensor:
        """The mean, in TensorFlow; 0 without examples."""
        return self.total / tf.maximum(self.count, 1.0)


Totals = Mapping[str, Mean]

Weights = Mapping[str, Mapping[str, Any]]


def prefixed(prefix: str, totals: Totals) -> Totals:
    """Renames totals to `PREFIX_NAME`, for a model that is trained beside another one."""
    return {f"{prefix}_{name}": mean for name, mean in totals.items()}


def merged(*several: Totals) -> Totals:
    """Merges several measurements.

    Raises:
        ValueError: If two have the same name.
    """
    result = {}
    for totals in several:
        if twice := result.keys() & totals.keys():
            raise ValueError(
                f"The algorithm has a metric {min(twice)!r} of its own: give the model's another "
                "name, or the algorithm's."
            )
        result |= totals
    return result


def check_weights(weights: Weights) -> None:
    """Raises a `KindError` if a weight is not float32, as all mathematics of weights is."""
    for path, weight in tree.flatten_with_path(weights):
        if weight.dtype != tf.float32:
            raise KindError(
                f"Weights are float32, but {'/'.join(map(str, path))} is {weight.dtype.name}. A "
                "model's init returns float32, whatever its apply computes in; a Keras layer has "
                "no dtype of its own."
            )


@dataclasses.dataclass(frozen=True)
class Model:
    """A model as pure functions of its weights.

    Weights `W` are an `OrderedDict` from layer name to an `OrderedDict` from weight name to tensor,
    in the order of the layers; a layer is what belongs together (kernel and bias). All functions
    are stateless TensorFlow: they can be traced, differentiated, vectorised over clients and
    compiled.

    Attributes:
        init: `(seed: int) -> W`, the initial weights; equal seeds give equal weights.
        apply: `(W, x, *, training, seed) -> outputs`, with `x` as it is stored, `training` a Python
            bool and `seed` an `int32[2]` for stochastic layers, both by keyword.
        example_loss: `(y, outputs) -> float32[batch]`, the loss of each example.
        example_metrics: further quantities of each example, `(y, outputs) -> float32[batch]`.
        name: For messages and summaries.
        features: `(W, x, *, training, seed) -> float32[batch, d]`, the inputs of the linear head
            that ends a model: outputs are `linear(W[last], features)`. `None` for other models.
        constant_layers: Names of layers that fine-tuning keeps. No gradient changes them, but
            weight decay would.
        num_classes: The number of classes that labels are from, or `None` if it is not known.
        made_of: The model from which a block derived this one. Its rows are checked instead,
            because this one may hold tensors of the block.
    """

    init: Callable[[int], Weights]
    apply: Callable[..., Any]
    example_loss: Callable[[Any, Any], Any]
    example_metrics: Mapping[str, Callable[[Any, Any], Any]] = dataclasses.field(
        default_factory=dict
    )
    name: str = "model"
    features: Callable[..., Any] | None = None
    constant_layers: tuple[str, ...] = ()
    num_classes: int | None = None
    made_of: "Model | None" = None

    def __post_init__(self):
        if not isinstance(self.example_metrics, Mapping):
            raise KindError(
                "example_metrics must be a mapping from names to functions (y, outputs) -> [batch],"
                f" got {self.example_metrics!r:.80}."
            )
        if "loss" in self.example_metrics:
            raise ValueError(
                'example_metrics has "loss", which is the name of what example_loss gives. Choose '
                "another name."
            )
        functions = {name: getattr(self, name) for name in ("init", "apply", "example_loss")}
        for name, metric in self.example_metrics.items():
            if not is_part(name):
                raise ValueError(
                    f"example_metrics has {name!r}. The name of a metric has {IN_PARTS} alone: it "
                    "becomes part of others, as personalized/local_test/NAME."
                )
            functions[f"The metric {name!r}"] = metric
        for name, function in functions.items():
            if not callable(function) or isinstance(function, tf.keras.layers.Layer):
                raise KindError(f"{name} of a model must be a function, got {function!r:.80}.")

    @functools.cached_property
    def weights_type(self) -> tff.types.Type:
        """The TFF type of `W`; see `check_weights`."""
        init = elementwise_equality()(lambda: self.init(0))
        found = tff.tensorflow.computation(init).type_signature.result
        check_weights(tff.types.type_to_tf_tensor_specs(found))
        return found

    @property
    def layers(self) -> tuple[str, ...]:
        """The names of the layers that have weights, from input to output."""
        return tuple(tff.structure.name_list(self.weights_type))

    @property
    def num_weights(self) -> int:
        """The number of scalar weights."""
        specs = tff.types.type_to_tf_tensor_specs(self.weights_type)
        return sum(spec.shape.num_elements() for spec in tf.nest.flatten(specs))

    def check_classes(self, num_classes: int) -> None:
        """Raises a `ValueError` if the model has fewer logits than there are classes.

        Devices need not: some compute a NaN as the loss of a label without a logit.
        """
        if self.num_classes is not None and num_classes > self.num_classes:
            raise ValueError(
                f"The model {self.name!r} has {self.num_classes} logits, but the data have "
                f"{num_classes} classes. Its last layer needs {num_classes} units."
            )

    def in_terms_of(self, init: Callable[[int], Any], weights_of: Callable[[Any], Weights]):
        """Returns the model as a function of parts from which its weights are computed.

        Args:
            init: `(seed) -> parts`, the initial parts.
            weights_of: `(parts) -> W`.
        """

        def through(function):
            return function and (
                lambda parts, x, **options: function(weights_of(parts), x, **options)
            )

        return dataclasses.replace(
            self,
            init=init,
            apply=through(self.apply),
            features=through(self.features),
            made_of=self.made_of or self,
        )

    def totals(self, weights, batch, *, training: bool = False) -> Totals:
        """Sums the loss and the metrics of a batch."""
        return self._loss_and_totals(weights, batch, training)[1]

    def gradient(self, weights, batch, *, training: bool = True) -> tuple[Weights, Totals]:
        """Computes the gradient of the batch's mean loss, and the totals of the same forward pass.

        Rows of weight 0 do not count. The gradient of a batch without examples is 0.
        """
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            loss, totals = self._loss_and_totals(weights, batch, training)
        gradient = tape.gradient(loss, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        # The gradient of a table of embeddings is slices, which some operations do not take.
        return tf.nest.map_structure(tf.convert_to_tensor, gradient), totals

    def zero_totals(self) -> Totals:
        """Returns the totals of no examples."""
        names = ["loss", *self.example_metrics]
        return collections.OrderedDict(
            (name, Mean(tf.constant(0.0), tf.constant(0.0))) for name in names
        )

    def example_values(self, weights, batch, *, training: bool = False) -> Mapping[str, Any]:
        """Computes the loss and the metrics of each example, float32 `[batch]`.

        Raises:
            ValueError: If one is of another shape, or depends on other rows of the batch, which may
                be padding.
        """
        self._check_rows(weights, batch, training)
        return self._example_values(weights, batch, training)

    @functools.cached_property
    def _checked_rows(self) -> set:
        return set()

    def _check_rows(self, weights, batch, training):
        """Checks, once for each type of inputs, that values of a row depend on that row alone."""
        model = self.made_of or self
        key = batch.x.dtype, tuple(batch.x.shape[1:]), batch.y.dtype, training
        if key in model._checked_rows or batch.x.shape[0] == 1:
            return

        def values(weights, batch):
            return model._example_values(weights, batch, training)

        def initial():
            return weights if model is self else model.init(0)

        if name := depends_on_other_rows(values, initial, batch, self.num_classes):
            raise ValueError(
                f"The {name} of an example in model {self.name!r} depends on other rows of its "
                "batch, which may be padding. In preprocess, layers, loss and metrics, compute "
                "each row from its own input alone, and use constants for statistics of the data."
            )
        model._checked_rows.add(key)

    def _example_values(self, weights, batch, training):
        outputs = self.apply(weights, batch.x, training=training, seed=batch.seed)
        values = collections.OrderedDict(loss=self.example_loss(batch.y, outputs))
        for name, metric in self.example_metrics.items():
            values[name] = metric(batch.y, outputs)
        for name, value in values.items():
            shape = tf.convert_to_tensor(value).shape
            if not (shape.rank is None or shape.is_compatible_with(batch.weight.shape)):
                raise ValueError(
                    f"The model {self.name!r} has {name!r} of shape {tuple(shape)} for a batch of "
                    f"{tuple(batch.weight.shape)}: return one number for each example, without "
                    "further axes. A Keras loss does so with reduction='none'."
                )
        return tf.nest.map_structure(lambda value: tf.cast(value, tf.float32), values)

    def _loss_and_totals(self, weights, batch, training):
        count = tf.reduce_sum(batch.weight)
        values = self.example_values(weights, batch, training=training)
        totals = collections.OrderedDict(
            # Padding rows may hold anything, so that they are left out rather than multiplied.
            (name, Mean(tf.reduce_sum(tf.where(batch.weight > 0.0, value, 0.0)), count))
            for name, value in values.items()
        )
        return totals["loss"].total / tf.maximum(count, 1.0), totals


def linear(layer: Mapping[str, Any], features):
    """Applies a dense layer without activation to `features`, `[batch, d]`."""
    outputs = tf.matmul(features, layer["kernel"])
    return outputs + layer["bias"] if "bias" in layer else outputs


def linear_head_shape(model: Model, method: str) -> tuple[int, int]:
    """Returns the numbers of features and of classes of a model's linear head.

    Args:
        model: The model.
        method: The name of the method that needs such a head, for messages.

    Raises:
        ValueError: If the model has no features (see `Model`), or a single logit.
    """
    if model.features is None:
        raise ValueError(
            f"{method} needs the features of model {model.name!r}, the inputs of its last layer, "
            "and it has none. Keras models have them, Sequential or functional, if they begin with "
            "an Input and end in a Dense layer without activation."
        )
    num_features, num_classes = model.init(0)[model.layers[-1]]["kernel"].shape
    if num_classes < 2:
        raise ValueError(
            f"{method} tells classes apart, but model {model.name!r} has one logit. Give its last "
            "layer a unit for each class."
        )
    return num_features, num_classes


def sparse_cross_entropy(y, logits):
    """Computes the cross-entropy of integer labels `y` and `logits`, in nats."""
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)


def correct(y, logits):
    """Returns 1 where the largest logit is the label's, else 0; its mean is the accuracy.

    Logits that are not all finite are wrong; `argmax` would take all NaNs for class 0.
    """
    finite = tf.reduce_all(tf.math.is_finite(logits), axis=-1)
    right = tf.equal(tf.argmax(logits, axis=-1, output_type=y.dtype), y)
    return tf.cast(tf.logical_and(finite, right), tf.float32)
