"""Pure functional models: weights are a value, never a variable."""

import collections
import dataclasses
import fnmatch
import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff
import tree

from tff_pfl.arguments.kinds import KindError, check_kind
from tff_pfl.arguments.names import check_names
from tff_pfl.models.derived import check_parts, derived, with_frozen
from tff_pfl.models.keras.weights import weights_like
from tff_pfl.models.low_rank import summed
from tff_pfl.models.rows import depends_on_other_rows, depends_on_padding, types_of
from tff_pfl.models.start import Start
from tff_pfl.models.statistics import record_use
from tff_pfl.models.task import Task, check_function, finalized
from tff_pfl.models.totals import Mean, Totals
from tff_pfl.tracing.equality import elementwise_equality

Weights = Mapping[str, Mapping[str, Any]]

_NEW_LAYERS = " Name layers that start anew in new_layers."


def check_weights(weights: Weights) -> None:
    """Raises a `KindError` if a weight is not float32."""
    for path, weight in tree.flatten_with_path(weights):
        if weight.dtype != tf.float32:
            raise KindError(
                f"Weights must be float32, but {'/'.join(map(str, path))} is {weight.dtype.name}. "
                "Return float32 from the model's init, whatever type its apply computes in; build "
                "Keras layers without a dtype."
            )


class Forward(NamedTuple):
    """A pass of a model over a batch.

    Attributes:
        outputs: The outputs.
        features: float32 `[batch, d]`, the inputs of the linear last layer; `None` for a model
            without `features`.
        weights: `W`, in training with the moving statistics after the step.
    """

    outputs: Any
    features: tf.Tensor | None
    weights: Any


Term = Callable[[Forward, Any], tf.Tensor]
"""`(forward, batch) -> float32[batch]`, values that are added to the losses of a batch's rows."""


@dataclasses.dataclass(frozen=True)
class Model:
    """A model as pure functions of its weights.

    Weights `W` are an `OrderedDict` from layer name to an `OrderedDict` from weight name to tensor,
    in the order of the layers. A layer groups weights that belong together, such as a kernel and a
    bias. All functions are stateless TensorFlow: they can be traced, differentiated, vectorised
    over clients and compiled.

    Attributes:
        init: `(seed: int) -> W`, the initial weights. Equal seeds give equal weights.
        apply: `(W, x, *, training, seed) -> outputs`. `x` is a batch of inputs as they are stored,
            `training` a Python bool, and `seed` an `int32[2]` for stochastic layers.
        task: The loss and the metrics of the outputs.
        name: The model's name in messages and summaries.
        features: `(W, x, *, training, seed) -> float32[batch, d]`, the inputs of the model's last
            layer if this is linear: outputs are `linear(W[last], features)`. Otherwise `None`.
        num_classes: The number of classes, or `None` if it is unknown.
        made_of: The original of a model derived while tracing. Row checks run on it, since the
            derived one captures graph tensors.
        starts_alike: Whether `init` gives the same weights for all seeds; see `starting_from`.
        training_pass: `(W, x, *, weight, seed) -> (outputs, W)`, for a model with batch
            normalisation, otherwise `None`. It computes the outputs in training, where batch
            normalisation uses the statistics of the rows with `weight`, float32 `[batch]`, above 0,
            and the weights with the moving statistics after the step; other weights are unchanged.
            Replace it together with `apply`.
        forward: `(W, x, *, weight, seed) -> Forward`, a pass in training that gives features, too;
            otherwise `None`. Replace it together with `apply` and `features`.
        penalty: `(W) -> float32 scalar`, which is added to the loss of a batch in gradients, such
            as that of Keras' regularizers, or `None`. Measured losses do not contain it.
        postprocess: `(outputs) -> outputs`, which exported models apply at the end, or `None`.
            Losses, metrics and predictions use outputs without it, in the units of labels.
        inputs: The `tf.TensorSpec` of a batch of inputs, or their structure; `None` if unknown.
        base_weights: `(parts) -> W`, the weights of the model that this one is in terms of, such as
            kernels with their adapters merged; `None` for other models.
    """

    init: Callable[[int], Weights]
    apply: Callable[..., Any]
    task: Task
    name: str = "model"
    features: Callable[..., Any] | None = None
    num_classes: int | None = None
    made_of: "Model | None" = None
    starts_alike: bool = False
    training_pass: Callable[..., tuple[Any, Weights]] | None = None
    forward: Callable[..., Forward] | None = None
    penalty: Callable[[Weights], Any] | None = None
    postprocess: Callable[[Any], Any] | None = None
    inputs: Any = None
    base_weights: Callable[[Any], Weights] | None = None

    def __post_init__(self):
        """Checks the kinds of the functions and of the task."""
        check_kind("task of a model", self.task, Task, "Write task=tff_pfl.TASKS['regression']().")
        for name in ("init", "apply"):
            check_function(f"{name} of a model", getattr(self, name))
        if self.postprocess is not None:
            check_function("postprocess of a model", self.postprocess)

    def __deepcopy__(self, memo: Any) -> "Model":
        """Returns the model itself, which nothing can change."""
        return self

    @functools.cached_property
    def weights_type(self) -> tff.types.Type:
        """The TFF type of `W`, whose tensors must be float32 (see `check_weights`)."""
        start = self.init

        @elementwise_equality()
        def init():
            return start.zeros() if isinstance(start, Start) else start(0)

        found = tff.tensorflow.computation(init).type_signature.result
        check_weights(tff.types.type_to_tf_tensor_specs(found))
        return found

    @property
    def layers(self) -> tuple[str, ...]:
        """The names of the layers that have weights, from input to output.

        Layers that do not depend on each other have the order in which they were made.
        """
        return tuple(tff.structure.name_list(self.weights_type))

    @property
    def num_weights(self) -> int:
        """The number of scalar weights."""
        specs = tff.types.type_to_tf_tensor_specs(self.weights_type)
        return sum(spec.shape.num_elements() for spec in tf.nest.flatten(specs))

    @functools.cached_property
    def num_features(self) -> int | None:
        """The number of inputs of the linear last layer; `None` for a model without `features`."""
        if self.features is None:
            return None
        model = self.made_of or self
        specs = tff.types.type_to_tf_tensor_specs(model.weights_type)
        return specs[model.layers[-1]]["kernel"].shape[0]

    def check_classes(self, num_classes: int | None) -> None:
        """Raises a `ValueError` if the model has fewer logits than there are classes, if any.

        TensorFlow does not always raise an error: on some devices, the loss of a label without a
        logit is NaN.
        """
        if self.num_classes is not None and (num_classes or 0) > self.num_classes:
            raise ValueError(
                f"The model {self.name!r} has {self.num_classes} logits, but the data have "
                f"{num_classes} classes. Give its last layer {num_classes} units."
            )

    def check_class_logits(self, method: str) -> None:
        """Raises a `ValueError` unless the task has class labels and a logit for each class.

        Args:
            method: The name of a method that needs them, for the message.
        """
        if self.task.outputs != "class_logits":
            raise ValueError(
                f"{method} needs a class label and class logits for each example, but the task of "
                f"model {self.name!r} is {self.task.name!r}. Choose another method, such as fedrep."
            )

    def check_features(self, method: str) -> None:
        """Raises a `ValueError` that names a method if the model has no `features`."""
        if self.features is None:
            raise ValueError(
                f"{method} needs the inputs of the last layer, but model {self.name!r} has no "
                "`features`. Use a Sequential or functional Keras model that ends in a Dense layer "
                "without activation."
            )

    def matching(self, names: str | Iterable[str]) -> list[str]:
        """Returns the layers whose names match some names or patterns, in order.

        Raises:
            UnknownNameError: No layer has a name. The message suggests a similar one.
        """
        found: set[str] = set()
        for name in [names] if isinstance(names, str) else names:
            matches = fnmatch.filter(self.layers, name)
            check_names(f"layer of model {self.name!r}", [] if matches else [name], self.layers)
            found.update(matches)
        return [name for name in self.layers if name in found]

    def starting_from(
        self,
        weights: "Weights | tf.keras.Model | str | os.PathLike[str]",
        new_layers: str | Sequence[str] = (),
    ) -> "Model":
        """Returns the model with given initial weights, which are the same for every seed.

        Example:
            >>> model = testing.tiny_model()
            >>> weights = model.init(3)
            >>> pretrained = model.starting_from(weights)
            >>> np.array_equal(pretrained.init(0)["head"]["bias"], weights["head"]["bias"])
            True

        Args:
            weights: `W`; a Keras model with the same trainable weights, which are found by the
                names of layer and weight; or a file: a Keras model (`.keras`, `.h5` or a
                SavedModel), or a `.safetensors` file with the names `LAYER/WEIGHT`.
            new_layers: Layers that are drawn with the seed instead, such as a head for other
                classes, by names or patterns. The weights may lack them.

        Raises:
            OSError: There is no such file.
            ValueError: The names or shapes of the weights differ from the model's.
        """
        specs = tff.types.type_to_tf_tensor_specs(self.weights_type)
        new = self.matching(new_layers)
        # Large weights of a file stay in files, since they are often frozen.
        in_files = isinstance(weights, str | os.PathLike)
        given = weights_like(
            weights, specs, self.name, without=new, hint=_NEW_LAYERS, in_files=in_files
        )
        start = Start(given, self.layers, self.init)
        return dataclasses.replace(self, init=start, starts_alike=self.starts_alike or not new)

    def evaluated_as(
        self, name: str, init: Callable[[int], Any], apply: Callable[..., Any]
    ) -> "Model":
        """Returns a model of other weights and the same task, which is only evaluated.

        It has neither the features nor the penalty nor the batch normalisation of this model.

        Args:
            name: The name of the new model.
            init: See `Model`.
            apply: See `Model`.
        """
        nothing: dict[str, Any] = dict.fromkeys(
            ("features", "made_of", "training_pass", "forward", "penalty")
        )
        return dataclasses.replace(self, name=name, init=init, apply=apply, **nothing)

    def check_seeded_start(self, method: str) -> None:
        """Raises a `ValueError` if all seeds give the same initial weights, by `starting_from`.

        Args:
            method: The name of a method that needs several different models, for the message.
        """
        if self.starts_alike:
            raise ValueError(
                f"{method} starts with several models that must differ, but model {self.name!r} "
                "starts from given weights. Use it without starting_from."
            )

    def check_no_batch_normalization(self, method: str) -> None:
        """Raises a `ValueError` that names a method if training assigns moving statistics."""
        if self.training_pass is not None:
            raise ValueError(
                f"{method} cannot train the batch normalisation of model {self.name!r}. Use "
                "tf.keras.layers.GroupNormalization, or freeze the layers with trainable=False."
            )

    def in_terms_of(
        self, init: Callable[[int], Any], weights_of: Callable[..., Weights], frozen: Any = None
    ) -> "Model":
        """Returns the model as a function of parts from which its weights are computed.

        Args:
            init: `(seed) -> parts`, the initial parts.
            weights_of: `(parts) -> W`, or with `frozen`, `(parts, frozen) -> W`.
            frozen: A structure of arrays of any size that nothing trains. Graphs read them from
                files; see `tff_pfl.tracing.frozen`.

        Raises:
            ValueError: The constants of `weights_of`, such as weights that it adds, have more than
                32 MiB.
        """
        if frozen is not None:
            weights_of = with_frozen(weights_of, frozen)
        if tf.executing_eagerly():
            check_parts(init, weights_of)
        made = dataclasses.replace(
            derived(self, init, weights_of), base_weights=lambda parts: summed(weights_of(parts))
        )
        return made if frozen is None else dataclasses.replace(made, made_of=None)

    def sums(self, weights, batch, *, training: bool = False) -> Mapping[str, Any]:
        """Computes the sums over a batch of the loss, a `Mean`, and of all metrics by name."""
        self._check_sums(weights, batch)
        return self._sums(weights, batch, training)

    def _sums(self, weights, batch, training=False):
        outputs, weight, totals = self._measured(weights, batch, training)
        return self.task.sums(batch.y, outputs, weight, totals)

    def finalized(self, sums: Mapping[str, Any]) -> Mapping[str, Mean]:
        """Computes the loss and the metrics of sums, each as a `Mean`, which is divided later.

        The `count` is 0 where a metric is undefined, as all are without examples that have weight.
        """
        has_examples = sums["loss"].count > 0.0
        found = collections.OrderedDict(loss=sums["loss"])
        for name, metric in self.task.metrics.items():
            for quantity, mean in finalized(name, metric, sums[name]).items():
                found[quantity] = Mean(*(tf.where(has_examples, number, 0.0) for number in mean))
        return found

    def totals(self, weights, batch, *, training: bool = False) -> Totals:
        """Computes the sums over a batch of the loss and the metrics that are means.

        A gradient of them lacks the `penalty`, such as that of Keras' regularizers: `gradient` has
        it, and so has a loss to which `self.penalty(weights)` is added unless it is `None`.
        """
        return self._measured(weights, batch, training)[2]

    def gradient(self, weights, batch, *, training: bool = True) -> tuple[Weights, Totals]:
        """Computes the gradient of the batch's loss, and the totals of the same forward pass.

        The loss is the mean, weighted by the weights of the data set and of the task, or the sum,
        as the task's `reduction` says, plus the `penalty` of the weights. Totals are of metrics
        that are means. Rows of weight 0 are ignored. The gradient of a batch without examples is 0.
        """
        if training and self.training_pass is not None:
            record_use("gradient")
        return self._gradient(weights, batch, training)[:2]

    def training_gradient(
        self, weights, batch, *, training: bool = True, term: Term | None = None
    ) -> tuple[Weights, Totals, Weights]:
        """Computes `gradient`, and the weights whose moving statistics are those after the step.

        A method with steps of its own assigns them by `with_statistics`, as `LocalTraining` does.

        Args:
            weights: `W`.
            batch: The batch.
            training: Whether stochastic layers are on.
            term: See `LocalTraining.train`.
        """
        record_use("assigned")
        return self._gradient(weights, batch, training, term)

    def _gradient(self, weights, batch, training, term=None):
        if term is not None:  # may hold these very tensors, such as the model that was received
            weights = tf.nest.map_structure(tf.identity, weights)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            forward = self._checked_forward(weights, batch, training, term is not None)
            values = self._values(forward.outputs, batch)
            losses = [values["loss"]]
            if term is not None:
                losses[0] += self._of_rows("term", term(forward, batch), batch)
            if self.penalty is not None:
                losses.append(tf.convert_to_tensor(self.penalty(weights)))
        share = self.example_weight(batch)
        totals = self.task.totals(values, share)
        if self.task.reduction == "mean":
            share *= tf.math.divide_no_nan(1.0, totals["loss"].count)
        shares = [share, *map(tf.ones_like, losses[1:])]  # the rows and the penalty in the loss
        zero = tf.UnconnectedGradients.ZERO
        gradient = tape.gradient(losses, weights, shares, unconnected_gradients=zero)
        # The gradient of an embedding is `IndexedSlices`, which some operations do not accept.
        gradient = tf.nest.map_structure(tf.convert_to_tensor, gradient)
        return gradient, totals, forward.weights

    def assigned(self, weights, batch) -> Weights:
        """Returns the weights with the moving statistics after a step on a batch."""
        record_use("assigned")
        return self._forward(weights, batch, True).weights if self.training_pass else weights

    def training_forward(self, weights, batch) -> Forward:
        """Computes the pass of a step on a batch, such as that of a model to learn from."""
        return self._forward(weights, batch, True, has_features=True)

    def zero_totals(self) -> Totals:
        """Returns the totals of no examples, of the loss and the metrics that are means."""
        names = ["loss", *self.task.means]
        return collections.OrderedDict(
            (name, Mean(tf.constant(0.0), tf.constant(0.0))) for name in names
        )

    def example_values(self, weights, batch, *, training: bool = False) -> Mapping[str, Any]:
        """Computes the loss and the metrics with values of each example, float32 `[batch]`.

        The loss does not contain the `penalty`; see `totals`.

        Raises:
            ValueError: A value has another shape, or depends on other rows of the batch, which may
                be padding.
        """
        return self._values(self._checked_forward(weights, batch, training).outputs, batch)

    def example_weight(self, batch) -> tf.Tensor:
        """Returns the weight of each row in the loss, float32 `[batch]`, which is 0 for padding."""
        return self.task.weights_of(batch.y, batch.weight)

    def _checked_forward(self, weights, batch, training, has_features=False) -> Forward:
        # In training, batch normalisation makes a row depend on other rows, but not on padding.
        self._check_rows(weights, batch, training and self.training_pass is None)
        return self._forward(weights, batch, training, has_features)

    @functools.cached_property
    def _checked_rows(self) -> set:
        return set()

    def _check_sums(self, weights, batch):
        """Checks that rows of weight 0 do not count in sums, once for each type of inputs."""
        model, key = self.made_of or self, ("sums", *types_of(batch))
        if self.task.metrics.keys() == self.task.means.keys() or key in model._checked_rows:
            return
        initial = (lambda: weights) if model is self else (lambda: model.init(0))
        if name := depends_on_padding(model._sums, initial, batch, self.num_classes):
            raise ValueError(
                f"The sums of the metric {name!r} do not add up over batches, or depend on rows of "
                "weight 0, which are padding. Multiply each row's number by its weight before the "
                "sum, and compare y of shape [batch] with outputs[:, 0], not with [batch, 1]."
            )
        model._checked_rows.add(key)

    def _check_rows(self, weights, batch, training):
        """Checks that a row's values depend only on that row, once for each type of inputs."""
        model = self.made_of or self
        key = training, *types_of(batch)
        if key in model._checked_rows or batch.weight.shape[0] == 1:
            return

        def values(weights, batch):
            return model._values(model._forward(weights, batch, training).outputs, batch)

        def initial():
            return weights if model is self else model.init(0)

        if name := depends_on_other_rows(values, initial, batch, self.num_classes):
            raise ValueError(
                f"The {name} of an example in model {self.name!r} depends on other rows of its "
                "batch, which may be padding. In preprocess, layers, loss and metrics, compute "
                "each row only from its own input, and use constants for statistics of the data; "
                "for a loss of whole batches, such as Cox's, write a method that calls "
                "LocalTraining.train with a gradient, which gets the weights of the rows."
            )
        model._checked_rows.add(key)

    def _forward(self, weights, batch, training, has_features=False) -> Forward:
        """Returns a pass, whose features are `None` unless they are asked for."""
        if training and has_features and self.forward is not None:
            return self.forward(weights, batch.x, weight=batch.weight, seed=batch.seed)
        options, features = {"training": training, "seed": batch.seed}, None
        if has_features and self.features is not None:
            features = self.features(weights, batch.x, **options)
        if training and self.training_pass is not None:
            outputs, weights = self.training_pass(
                weights, batch.x, weight=batch.weight, seed=batch.seed
            )
        else:
            outputs = self.apply(weights, batch.x, **options)
        return Forward(outputs, features, weights)

    def _values(self, outputs, batch) -> Mapping[str, tf.Tensor]:
        """Returns the loss and the metrics of each row."""
        found = collections.OrderedDict(loss=self.task.example_loss(batch.labels, outputs))
        for name, metric in self.task.means.items():
            found[name] = metric(batch.labels, outputs)
        for name, value in found.items():
            found[name] = self._of_rows(name, value, batch)
        return found

    def _of_rows(self, name, value, batch) -> tf.Tensor:
        """Returns a number for each row as float32."""
        shape = tf.convert_to_tensor(value).shape
        if not (shape.rank is None or shape.is_compatible_with(batch.weight.shape)):
            raise ValueError(
                f"The model {self.name!r} has {name!r} of shape {tuple(shape)} for a batch of "
                f"{tuple(batch.weight.shape)}. Return one number for each example, in a Keras "
                "loss with reduction='none'."
            )
        return tf.cast(value, tf.float32)

    def _measured(self, weights, batch, training) -> tuple[Any, tf.Tensor, Totals]:
        """Returns the outputs, the weights of rows and the totals."""
        outputs = self._checked_forward(weights, batch, training).outputs
        weight = self.example_weight(batch)
        return outputs, weight, self.task.totals(self._values(outputs, batch), weight)
