"""States what a model learns: a loss, and metrics as sums over examples."""

import collections
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tff_pfl.arguments.kinds import KindError, check_kind
from tff_pfl.arguments.names import IN_PARTS, check_names, is_part
from tff_pfl.arguments.quantities import Quantities, Quantity, known_direction
from tff_pfl.arguments.ranges import at_least, each
from tff_pfl.models import class_names, example_weights
from tff_pfl.models.totals import Mean, Totals
from tff_pfl.tracing.errors import LabelsError

REDUCTIONS = ("mean", "sum")
_COUNTS = ("num_nonfinite", "num_undefined_")
_ENDINGS = ("_mean", "_std", "_worst_5_percent", "_best_5_percent", "_mean_margin")
OUTPUTS = ("class_logits", "logits", "any")


@dataclasses.dataclass(frozen=True)
class Metric:
    """A quantity by which models are evaluated: a mean over examples, or a function of sums.

    A mean over examples has `values`. Every other metric has `sums` and `finalize`:

        sums(y, outputs, weight) -> S        of the rows of a batch
        finalize(S) -> float32 scalar        of S summed over batches, or over clients

    With `parts`, `finalize` returns a vector, such as the recall of each class. Each of its numbers
    is a quantity of its own, `METRIC_PART`.

    Attributes:
        sums: Returns a structure of float32 sums. The weight, float32 `[batch]`, is 0 for padding,
            whose rows may hold NaN.
        finalize: Computes the metric; NaN of finite sums where it is undefined.
        direction: 1 if more is better, -1 if less is better. Default: by the metric's name in its
            task, if it is a known one, such as "mae"; see `arguments.quantities.known_direction`.
        values: `(y, outputs) -> float32[batch]`, of which the metric is the weighted mean.
        of_tokens: Whether `sums` gets the ids and the weights `[batch, length]` of `tokens`, in a
            task that has them.
        parts: The names of the numbers of a vector, in order; empty for a scalar.
    """

    sums: Callable[[Any, Any, Any], Any] | None = None
    finalize: Callable[[Any], Any] | None = None
    direction: int | None = None
    values: Callable[[Any, Any], Any] | None = None
    of_tokens: bool = False
    parts: tuple[str, ...] = ()

    def __post_init__(self):
        """Checks that the metric is defined once."""
        if self.direction not in (None, 1, -1):
            raise ValueError(
                f"direction={self.direction!r} of a metric must be 1 if more is better, or -1."
            )
        given = [self.sums is not None, self.finalize is not None, self.values is not None]
        if given not in ([True, True, False], [False, False, True]):
            raise ValueError(
                "A metric has either values, if it is a mean over examples, or sums and finalize."
            )
        for name in ("sums", "finalize", "values"):
            check_function(f"{name} of a metric", getattr(self, name) or tf.identity)
        object.__setattr__(self, "parts", tuple(self.parts))
        if self.parts and self.values is not None:
            raise ValueError("A metric with parts has sums and finalize, which returns a vector.")

    def quantities(self, name: str) -> list[str]:
        """Returns the names of the metric's numbers, in a task where it has this name.

        Example:
            >>> recall = tff_pfl.Metric(lambda *batch: batch, lambda sums: sums, parts=("a", "b"))
            >>> recall.quantities("recall")
            ['recall_a', 'recall_b']
        """
        return [f"{name}_{part}" for part in self.parts] or [name]


@dataclasses.dataclass(frozen=True)
class Task:
    """A loss and metrics, which a model learns.

    Example:
        >>> absolute = tff_pfl.Metric(values=lambda y, z: tf.abs(y - z[:, 0]), direction=-1)
        >>> squared = lambda y, z: tf.square(y - z[:, 0])
        >>> ratings = tff_pfl.Task("ratings", squared, {"deviation": absolute})
        >>> ratings.quantities["deviation"].better
        -1

    Attributes:
        name: The task's name in messages.
        example_loss: `(y, outputs) -> float32[batch]`, the loss of each example.
        metrics: The metrics by name.
        example_weight: `(y) -> float32[batch]`, 0 or more, the weight of each example in losses and
            metrics, such as its number of tokens. The loss of a batch is
            `sum(weight * loss) / sum(weight)`. `None` means 1. Weights of a data set multiply it;
            no function of the task gets them.
        reduction: Whether a training step follows the gradient of the "mean" or of the "sum" of the
            losses of a batch. All other losses are means.
        outputs: The model's outputs: "class_logits", a logit for each class; other "logits"; or
            "any". Keras models that end in probabilities are refused for logits.
        check_labels: `(y) -> None`, which raises a `ValueError` for labels, NumPy arrays of all
            examples of a data set, that do not fit. `None` means that all labels fit.
        tokens: `(y) -> (ids, weights)`, both `[batch, length]`, the labels of the tokens of each
            example and their weights, for a task of tokens.
        classes: The names of the classes by number; a data set whose classes have other names, or
            another order, is refused. Empty if the task does not name them.
    """

    name: str
    example_loss: Callable[[Any, Any], Any]
    metrics: Mapping[str, Metric] = dataclasses.field(default_factory=dict)
    example_weight: Callable[[Any], Any] | None = None
    reduction: str = "mean"
    outputs: str = "any"
    check_labels: Callable[[Any], None] | None = None
    tokens: Callable[[Any], tuple[Any, Any]] | None = None
    classes: tuple[str, ...] = ()

    def __post_init__(self):
        """Checks the functions and the names of metrics."""
        check_names("outputs", [self.outputs], OUTPUTS)
        check_names("reduction", [self.reduction], REDUCTIONS)
        check_function("example_loss of a task", self.example_loss)
        for name in ("example_weight", "check_labels", "tokens"):
            check_function(f"{name} of a task", getattr(self, name) or tf.identity)
        named = "a mapping from names to Metrics"
        check_kind("metrics of a task", self.metrics, Mapping, named=named)
        for name, metric in self.metrics.items():
            check_kind(f"The metric {name!r}", metric, Metric, "Write Metric(values=...).")
        _check_quantities([it for n, metric in self.metrics.items() for it in metric.quantities(n)])
        metrics = {
            name: dataclasses.replace(metric, direction=_direction(name, metric))
            for name, metric in self.metrics.items()
        }
        object.__setattr__(self, "metrics", metrics)
        object.__setattr__(self, "classes", tuple(self.classes))

    @property
    def means(self) -> dict[str, Callable[[Any, Any], Any]]:
        """The functions `(y, outputs) -> float32[batch]` of the metrics that are means."""
        return {name: m.values for name, m in self.metrics.items() if m.values is not None}

    @property
    def quantities(self) -> Quantities:
        """The loss and all metrics or their parts."""
        found = [Quantity.named("loss")]
        for name, metric in self.metrics.items():
            better, is_partial = _direction(name, metric), metric.values is None
            found += [
                Quantity.named(it)._replace(better=better, is_partial=is_partial)
                for it in metric.quantities(name)
            ]
        return Quantities((it.name, it) for it in found)

    def check_data(
        self, y: Any, num_classes: int | None, data: str, names: Sequence[str] | None = None
    ) -> None:
        """Raises a `ValueError` if the labels of a data set do not fit the task.

        Args:
            y: All labels.
            num_classes: The number of classes, or `None` if labels are not classes.
            data: The name of the data set, for messages.
            names: The names of the classes, or `None` if they have none.
        """
        if self.outputs == "class_logits" and num_classes is None:
            needs = f"Task {self.name!r} needs class labels, but"
            if classes := class_names.written_as_classes(y):
                raise ValueError(f"{needs} those of {data!r} {classes}.")
            raise ValueError(
                f"{needs} {data!r} has num_classes=None. Set the number of classes, or choose "
                "another task, such as 'regression'."
            )
        if self.check_labels is not None:
            try:
                self.check_labels(y)
            except ValueError as error:
                raise ValueError(
                    f"The labels of {data!r} do not fit task {self.name!r}: {error}"
                ) from error
        if names is not None and self.classes:
            class_names.check_same_classes(self.classes, f"task {self.name!r}", names, data)
        elif names is not None and self.name == "binary":
            class_names.warn_of_class_one(str(names[1]), data)

    def with_loss(self, example_loss: Callable[[Any, Any], Any]) -> "Task":
        """Returns the task with another loss."""
        return dataclasses.replace(self, example_loss=example_loss)

    def with_class_weights(self, weights: Sequence[float] | Mapping[str, float]) -> "Task":
        """Returns the task whose loss of an example is multiplied by the weight of its class.

        The loss of a batch is still divided by the number of examples, like that of Keras with
        `class_weight`. Metrics stay as they are.

        Example:
            >>> rare = tff_pfl.TASKS["binary"]().with_class_weights({"control": 1, "case": 5})
            >>> float(rare.example_loss(tf.constant([1]), tf.zeros([1, 1]))) / np.log(2)
            5.0...

        Args:
            weights: The weight of each class, 0 or more, in order; or by name, which names the
                classes of a task that does not, in the order of the mapping.

        Raises:
            ValueError: The task is not of one class for each example, or names other classes.
        """
        if self.outputs != "class_logits" and self.name != "binary":
            raise ValueError(
                f"Task {self.name!r} has no class for each example that could have a weight. "
                "Choose 'classification' or 'binary', or write the loss: task.with_loss(...)."
            )
        classes: tuple[str, ...] = self.classes
        if isinstance(weights, Mapping):
            classes = classes or tuple(weights)
            weights = class_names.in_order(weights, classes)
        each(at_least(0), fewest=2).check("weights", weights)
        loss, factors = self.example_loss, np.asarray(weights, np.float32)

        def example_loss(y, outputs):
            number = outputs.shape[-1] if self.outputs == "class_logits" else 2
            if len(factors) != number:
                raise LabelsError(
                    f"with_class_weights has {len(factors)} weights for {number} classes. Give "
                    "each class a weight."
                )
            if self.outputs == "class_logits":
                return tf.gather(factors, y) * loss(y, outputs)
            is_one = tf.reshape(y, [-1]) > tf.zeros([], y.dtype)
            return tf.where(is_one, *factors[::-1]) * loss(y, outputs)

        return dataclasses.replace(self, example_loss=example_loss, classes=classes)

    def with_metrics(self, metrics: Mapping[str, Metric]) -> "Task":
        """Returns the task with further metrics, which replace those of the same names."""
        return dataclasses.replace(self, metrics={**self.metrics, **metrics})

    def with_main_metric(self, name: str) -> "Task":
        """Returns the task with a metric as the first one, which chooses the best evaluation.

        Example:
            >>> task = tff_pfl.TASKS["binary"]().with_main_metric("auc")
            >>> list(task.metrics)
            ['auc', 'accuracy', 'precision', 'recall', 'f1']

        Raises:
            UnknownNameError: The task does not have the metric.
        """
        check_names("metric", [name], self.metrics)
        return dataclasses.replace(self, metrics={name: self.metrics[name], **self.metrics})

    def of(self, outputs: Callable[[Any], Any]) -> "Task":
        """Returns the task of a model whose outputs become this task's outputs by a function."""

        def composed(function):
            return function and (lambda y, z, *weight: function(y, outputs(z), *weight))

        metrics = {
            name: dataclasses.replace(m, sums=composed(m.sums), values=composed(m.values))
            for name, m in self.metrics.items()
        }
        loss = composed(self.example_loss)
        return dataclasses.replace(self, example_loss=loss, metrics=metrics, outputs="any")

    def weights_of(self, y: Any, weight: tf.Tensor) -> tf.Tensor:
        """Returns the weight of each row, 0 for padding.

        It is `weight` without padding, times `example_weight`, times the weights of the data set.
        """
        factors = [example_weights.weights_of(y)]
        if self.example_weight is not None:
            factors.append(self.example_weight(example_weights.labels_of(y)))
        for factor in factors:
            if factor is not None:
                weight = tf.where(weight > 0.0, weight * tf.cast(factor, tf.float32), 0.0)
        return weight

    def has_weights(self, y: Any) -> bool:
        """Returns whether some examples may have another weight than 1."""
        return self.example_weight is not None or example_weights.have_weights(y)

    def sums(self, y: Any, outputs: Any, weight: tf.Tensor, totals: Totals) -> Mapping[str, Any]:
        """Computes the sums of the loss and all metrics, of which `totals` has the means.

        The weight is that of `weights_of`.
        """
        own, y = example_weights.weights_of(y), example_weights.labels_of(y)
        found: dict[str, Any] = collections.OrderedDict(loss=totals["loss"])
        for name, metric in self.metrics.items():
            if metric.sums is None:
                found[name] = totals[name]
            elif metric.of_tokens and self.tokens is not None:
                ids, of_tokens = self.tokens(y)
                if own is not None:
                    of_tokens *= own[:, tf.newaxis]
                counted = tf.where(weight[:, tf.newaxis] > 0.0, of_tokens, 0.0)
                found[name] = metric.sums(ids, outputs, counted)
            else:
                found[name] = metric.sums(y, outputs, weight)
        return found

    def totals(self, values: Mapping[str, tf.Tensor], weight: tf.Tensor) -> Totals:
        """Computes the weighted sums of the values of a batch; padding rows may hold NaN."""
        count = tf.reduce_sum(weight)

        def total(value):
            return tf.reduce_sum(tf.math.multiply_no_nan(value, weight))

        return collections.OrderedDict(
            (name, Mean(total(value), count)) for name, value in values.items()
        )


def _check_quantities(names: list[str]) -> None:
    """Checks the names of metrics and of their parts."""
    for index, name in enumerate(names):
        if not is_part(name):
            raise ValueError(
                f"metrics of a task have {name!r}. A metric's name may contain only {IN_PARTS}, "
                "because it becomes part of names such as personalized/local_test/NAME."
            )
        if name.startswith(_COUNTS) or name.endswith(_ENDINGS):
            raise ValueError(
                f"metrics of a task have {name!r}, but reports use names that begin with "
                f"{' or '.join(_COUNTS)} or end in {', '.join(_ENDINGS)} for counts and "
                "statistics over clients. Choose another name."
            )
        if name in ["loss", *names[:index]]:
            raise ValueError(
                f"metrics of a task have {name!r} twice, with 'loss' for example_loss. Rename a "
                "metric or its part."
            )


def _direction(name: str, metric: Metric) -> int:
    """Returns the direction of a metric, which its name tells if the metric does not."""
    direction = metric.direction or known_direction(name)
    if direction is None:
        raise ValueError(
            f"The metric {name!r} does not say whether more of it is better. Pass direction=1 if "
            "it is, or direction=-1, to Metric; for a Keras metric, pass "
            f"directions={{{name!r}: 1}} or -1 to keras_metrics or from_tff."
        )
    return direction


def finalized(name: str, metric: Metric, sums: Any) -> dict[str, Mean]:
    """Computes a metric of its sums, or its parts: `Mean`s whose count is 0 where undefined.

    A function of sums is undefined where it is NaN although its sums are finite. NaN of other sums
    is the value of a diverged model.
    """
    if metric.finalize is None:
        return {name: sums}
    value = tf.cast(metric.finalize(sums), tf.float32)
    if not value.shape.is_compatible_with([len(metric.parts)] if metric.parts else []):
        due = f"{len(metric.parts)} numbers, one for each part" if metric.parts else "one number"
        raise ValueError(
            f"finalize of the metric {name!r} must return {due}, but has the shape {value.shape}. "
            "Name the numbers of a vector in parts of Metric."
        )
    leaves = [tf.cast(leaf, tf.float64) for leaf in tf.nest.flatten(sums)]
    finite = tf.stack([tf.reduce_all(tf.math.is_finite(leaf)) for leaf in leaves])
    undefined = tf.logical_and(tf.math.is_nan(value), tf.reduce_all(finite))
    mean = Mean(tf.where(undefined, 0.0, value), tf.where(undefined, 0.0, 1.0))
    if not metric.parts:
        return {name: mean}
    numbers = [tf.unstack(sums, len(metric.parts)) for sums in mean]
    return dict(zip(metric.quantities(name), map(Mean, *numbers), strict=True))


def check_function(name: str, function: Any) -> None:
    """Raises a `KindError` unless an argument is a function, and no Keras layer or model."""
    if not callable(function) or isinstance(function, tf.keras.layers.Layer):
        raise KindError(f"{name} must be a function, got {function!r:.80}.")


def check_ids(y: Any, rank: int | None) -> None:
    """Checks that labels are the ids: of classes, or with `rank=2` of tokens.

    Raises:
        LabelsError: Labels are no int32 or int64 tensor of this rank.
    """
    if tf.nest.is_nested(y):
        found = f"of type {type(y).__name__}"
    else:
        y = tf.convert_to_tensor(y)
        if y.dtype in (tf.int32, tf.int64) and (
            None in (rank, y.shape.rank) or y.shape.rank == rank
        ):
            return
        found = f"{y.dtype.name} of shape {'unknown' if y.shape.rank is None else y.shape[1:]}"
    unit = "token of an example" if rank == 2 else "example"
    raise LabelsError(
        f"The task needs one int32 or int64 label for each {unit}, but the labels of an example "
        f"are {found}. Choose another task, such as task=tff_pfl.TASKS['regression']()."
    )
