"""The tasks that models learn, by name.

A metric is NaN where it is undefined: the area under the curve of examples of one class, R2 of a
single example or of equal targets, precision without predicted positives, recall without positives,
F1 without either. Means over labels or classes leave out those for which they are undefined.
"""

import functools
from collections.abc import Iterable, Mapping

import tensorflow as tf

from tff_pfl.arguments.kinds import check_kind
from tff_pfl.arguments.names import as_part
from tff_pfl.arguments.ranges import above, each, takes, whole
from tff_pfl.arguments.registry import Registry
from tff_pfl.models.area import area, area_sums
from tff_pfl.models.task import Metric, Task, check_ids
from tff_pfl.models.totals import Mean
from tff_pfl.tracing.errors import LabelsError

TASKS = Registry("task")
"""Functions `(*, <options>) -> Task`."""

# Relative; sums of squares of equal targets, batch by batch in float64, differ by less.
_ROUNDING = 5e-15


def task_of(chosen: Task | str | None) -> Task:
    """Returns a given task, the task of a name, or by default the classification.

    Raises:
        UnknownNameError: The name is unknown.
        KindError: The argument is neither a `Task` nor a name.
    """
    if chosen is None:
        return classification()
    if isinstance(chosen, str):
        return TASKS[chosen]()
    tip = "Write task='regression', or TASKS['regression'](...) with options."
    check_kind("task", chosen, Task, tip, named="a Task or a name of one")
    return chosen


def sparse_cross_entropy(y, logits):
    """Computes the cross-entropy of integer labels `y` and `logits` in nats."""
    check_ids(y, logits.shape.rank and logits.shape.rank - 1)
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)


def correct(y, logits):
    """Returns 1 where the label has the largest logit, else 0; the mean is the accuracy.

    Rows with non-finite logits count as wrong, because `argmax` would map all NaNs to class 0.
    """
    finite = tf.reduce_all(tf.math.is_finite(logits), axis=-1)
    right = tf.equal(tf.argmax(logits, axis=-1, output_type=y.dtype), y)
    return tf.cast(tf.logical_and(finite, right), tf.float32)


@TASKS.register("classification")
@takes(top=each(whole(2)))
def classification(*, top: Iterable[int] = (), classes: int | Iterable[str] = ()) -> Task:
    """Returns the task of one class label for each example, with a logit for each class.

    Example:
        >>> task = tff_pfl.TASKS["classification"](classes=["cat", "dog"])
        >>> [name for name in task.quantities if name.startswith("recall")]
        ['recall_cat', 'recall_dog']

    Args:
        top: Numbers `k` of classes, each for a metric `top_k_accuracy`, such as
            `top_5_accuracy`: the share of examples whose label is among the `k` largest logits.
        classes: The names of all classes in order, or their number, for the metrics
            `precision_NAME`, `recall_NAME` and `f1_NAME` of each class, and `f1_macro`, the mean
            over classes that are among the labels or the predictions. Classes of a data set must
            have the same names and order. Metrics have `_` for characters other than letters,
            digits, `_`, `-` and `.`.
    """
    metrics = {"accuracy": Metric(values=correct)}
    metrics |= {f"top_{k}_accuracy": Metric(values=_among_largest(k)) for k in top}
    metrics |= _of_classes(classes)
    return Task(
        "classification",
        sparse_cross_entropy,
        metrics,
        outputs="class_logits",
        classes=_names(classes),
    )


def _among_largest(k):
    def values(y, logits):
        own = tf.gather(logits, y, axis=-1, batch_dims=y.shape.rank)[..., tf.newaxis]
        above_own = tf.reduce_sum(tf.cast(logits > own, tf.int32), axis=-1)
        finite = tf.reduce_all(tf.math.is_finite(logits), axis=-1)
        return tf.cast(tf.logical_and(finite, above_own < k), tf.float32)

    return values


def _names(classes: int | Iterable[str]) -> tuple[str, ...]:
    """Returns the names of classes, or none if only their number is given."""
    return () if isinstance(classes, int) else tuple(map(str, classes))


def _of_classes(classes: int | Iterable[str]) -> dict[str, Metric]:
    """Returns precision, recall and F1 of each class, and the mean F1; none without classes."""
    names = map(str, range(classes)) if isinstance(classes, int) else map(as_part, _names(classes))
    classes = tuple(names)

    def sums(y, logits, weight):
        if logits.shape[-1] != len(classes):
            raise ValueError(
                f"The task names {len(classes)} classes, but the model has {logits.shape[-1]} "
                "logits. Name all classes in order."
            )
        finite = tf.reduce_all(tf.math.is_finite(logits), axis=-1)[..., tf.newaxis]
        largest = tf.one_hot(tf.argmax(logits, axis=-1), len(classes))
        predicted = tf.where(finite, largest, 1.0)  # so that others are wrong for each class
        positive = tf.one_hot(y, len(classes))
        right = tf.where(finite, largest * positive, 0.0)
        axes = list(range(weight.shape.rank))
        return tuple(
            tf.reduce_sum(weight[..., tf.newaxis] * counted, axes)
            for counted in (right, predicted, positive)
        )

    found = {
        name: Metric(sums, functools.partial(_shares, name), of_tokens=True, parts=classes)
        for name in ("precision", "recall", "f1")
    }
    macro = Metric(sums, lambda counts: _mean_defined(_shares("f1", counts)), of_tokens=True)
    return found | {"f1_macro": macro} if classes else {}


def _shares(name, counts):
    """Returns precision, recall or F1 of each column; NaN where it is undefined."""
    both, predicted, positive = counts
    of = {"precision": predicted, "recall": positive, "f1": (predicted + positive) / 2}[name]
    return both / of


def _mean_defined(shares):
    return _mean_where(~tf.math.is_nan(shares), shares)


@TASKS.register("binary")
@takes(bins=whole(3))
def binary(*, classes: Iterable[str] = (), bins: int = 8000) -> Task:
    """Returns the task of a label 0 or 1 for each example, with one logit.

    Metrics are `accuracy`, `auc` (of the receiver operating characteristic), `precision`, `recall`
    and `f1`, of the predictions with a probability above one half. The last three are those of
    class 1, as is the logit.

    Args:
        classes: The names of the classes 0 and 1, which those of a data set must equal.
        bins: The number of bins of logits for `auc`; see `models/area.py`. With 8000, a bin is as
            wide as 0.5 % of a logit. `auc` is exact if no bin has both labels and several examples
            of one. If the logits of 20 examples spread by 20, 2 and 0.2 % of their size, it is off
            by 0.0002, 0.002 and 0.016 on average, in both directions; of 1,000 examples by 0.001 or
            less. For logits beyond 8,192, bins are wider and the error is up to 0.02 and 0.002. A
            client's sums have 30 bytes for each bin.
    """

    def loss(y, outputs):
        return tf.reduce_sum(_labels_cross_entropy(*_columns(y, outputs)), axis=-1)

    def accuracy(y, outputs):
        return tf.reduce_mean(_right(*_columns(y, outputs)), axis=-1)

    metrics = {"accuracy": Metric(values=accuracy), "auc": _auc(bins)}
    metrics |= {name: _of_counts(name) for name in ("precision", "recall", "f1")}
    names = _names(classes)
    if names and len(names) != 2:
        raise ValueError(f"A binary task has two classes, got {', '.join(names)}.")
    return Task(
        "binary",
        loss,
        metrics,
        outputs="logits",
        check_labels=_check_zeros_and_ones,
        classes=names,
    )


@TASKS.register("multi_label")
@takes(bins=whole(3))
def multi_label(*, bins: int = 2000) -> Task:
    """Returns the task of several labels 0 or 1 for each example, with a logit for each label.

    The loss is the mean cross-entropy over labels. Metrics are `accuracy`, the share of right
    labels; `auc`, the mean over labels; `precision`, `recall` and `f1_micro`, of all labels
    together; and `f1_macro`, the mean over labels.

    Args:
        bins: The number of bins for `auc` of each label; see `binary`.
    """

    def loss(y, outputs):
        return tf.reduce_mean(_labels_cross_entropy(*_columns(y, outputs)), axis=-1)

    def accuracy(y, outputs):
        return tf.reduce_mean(_right(*_columns(y, outputs)), axis=-1)

    metrics = {"accuracy": Metric(values=accuracy), "auc": _auc(bins)}
    metrics |= {name: _of_counts(name) for name in ("precision", "recall")}
    metrics |= {"f1_micro": _of_counts("f1"), "f1_macro": _of_counts("f1", macro=True)}
    return Task("multi_label", loss, metrics, outputs="logits", check_labels=_check_zeros_and_ones)


def _check_zeros_and_ones(y):
    """Checks that all labels are 0 or 1; the cross-entropy of others has no least value."""
    for array in tf.nest.flatten(y):
        is_wrong = (array != 0) & (array != 1)
        if is_wrong.any():
            raise ValueError(f"Labels must be 0 or 1, found {array[is_wrong][0]}.")


def _columns(y, outputs):
    """Returns labels or targets and outputs as float32 `[batch, columns]`."""
    columns = [leaf.shape[1:].num_elements() for leaf in (y, outputs)]
    axes = [[size for size in leaf.shape[1:] if size != 1] for leaf in (y, outputs)]
    if columns[0] != columns[1] or (axes[0] != axes[1] and min(map(len, axes)) > 1):
        raise LabelsError(
            f"Labels of shape {tuple(y.shape[1:])} for each example need outputs of this shape, "
            f"but the model's outputs have the shape {tuple(outputs.shape[1:])}."
        )
    return tuple(tf.reshape(tf.cast(it, tf.float32), [-1, columns[0]]) for it in (y, outputs))


def _labels_cross_entropy(y, logits):
    return tf.nn.sigmoid_cross_entropy_with_logits(labels=y, logits=logits)


def _right(y, logits):
    right = tf.equal(logits > 0.0, y > 0.5)
    return tf.cast(tf.logical_and(tf.math.is_finite(logits), right), tf.float32)


def _of_counts(name, *, macro=False) -> Metric:
    """Returns precision, recall or F1, of true positives, predicted positives and positives."""

    def sums(y, outputs, weight):
        y, logits = _columns(y, outputs)
        positive, is_finite = y > 0.5, tf.math.is_finite(logits)
        predicted = tf.logical_or(logits > 0.0, ~is_finite)  # so that these count as wrong
        right = tf.logical_and(positive, tf.logical_and(predicted, is_finite))
        return tuple(
            tf.reduce_sum(tf.where(condition, weight[:, tf.newaxis], 0.0), axis=0)
            for condition in (right, predicted, positive)
        )

    def finalize(counts):
        if not macro:
            counts = tf.nest.map_structure(
                lambda count: tf.reduce_sum(count, keepdims=True), counts
            )
        return _mean_defined(_shares(name, counts))

    return Metric(sums, finalize)


def _mean_where(condition, values):
    """Returns the mean of the values where a condition holds; NaN if it never holds."""
    total = tf.reduce_sum(tf.where(condition, values, tf.zeros([], values.dtype)))
    return total / tf.reduce_sum(tf.cast(condition, values.dtype))


def _auc(bins) -> Metric:
    """Returns the mean area over the labels that have both values."""

    def sums(y, outputs, weight):
        y, logits = _columns(y, outputs)
        return area_sums(y > 0.5, logits, weight, bins)

    def finalize(sums):
        areas, are_defined = area(sums, bins)
        return _mean_where(are_defined, areas)

    return Metric(sums, finalize)


@TASKS.register("regression")
def regression() -> Task:
    """Returns the task of one or several numbers for each example, with as many outputs.

    The loss is the squared error, the mean over the numbers of an example. Metrics are `mse`, `mae`
    and `r2`, the mean over the numbers.
    """
    return Task("regression", _squared_error, _errors(_columns) | {"r2": Metric(_r2_sums, _r2)})


def _squared_error(y, outputs):
    return tf.reduce_mean(tf.math.squared_difference(*_columns(y, outputs)), axis=-1)


def _errors(columns):
    """Returns the metrics `mse` and `mae` of functions of labels and outputs."""

    def squared(y, outputs):
        return tf.reduce_mean(tf.math.squared_difference(*columns(y, outputs)), axis=-1)

    def absolute(y, outputs):
        y, outputs = columns(y, outputs)
        return tf.reduce_mean(tf.abs(y - outputs), axis=-1)

    values = {"mse": squared, "mae": absolute}
    return {name: Metric(values=function) for name, function in values.items()}


def _r2_sums(y, outputs, weight):
    # In float32, the difference of sums of squares would lose most digits.
    y, outputs, weight = (
        tf.cast(it, tf.float64) for it in (*_columns(y, outputs), weight[:, tf.newaxis])
    )

    def total(values):
        return tf.reduce_sum(tf.where(weight > 0.0, weight * values, tf.zeros([], tf.float64)), 0)

    return tuple(
        map(total, (tf.ones_like(y), y, tf.square(y), tf.math.squared_difference(y, outputs)))
    )


def _r2(sums):
    count, total, squares, residuals = sums
    spread = squares - tf.math.divide_no_nan(tf.square(total), count)
    is_defined = spread > _ROUNDING * (1 + count / 100) * squares
    return _mean_where(is_defined, 1.0 - tf.math.divide_no_nan(residuals, spread))


@TASKS.register("sequence")
@takes(top=each(whole(2)))
def sequence(
    *,
    padding_id: int | None = 0,
    top: Iterable[int] = (),
    classes: int | Iterable[str] = (),
) -> Task:
    """Returns the task of a class for each token of a sequence, such as the next word.

    Labels are ids `[batch, length]`, or a mapping of `ids` and a `mask` of 1 for each token that
    counts. Outputs are logits `[batch, length, ids]`. The weight of an example is its number of
    tokens, so the loss and `accuracy` are means over tokens, and `perplexity` is the exponential of
    the loss. A sequence without tokens has no weight.

    Args:
        padding_id: The label that does not count where labels have no `mask`, which otherwise
            decides alone; `None` if all labels count.
        top: See `classification`; metrics of tokens.
        classes: See `classification`; the names of all ids, such as tags.
    """

    def tokens(y):
        """Returns the ids and the weights of tokens."""
        ids, mask = (y["ids"], y["mask"]) if isinstance(y, Mapping) else (y, None)
        check_ids(ids, 2)
        if mask is None:
            mask = tf.ones_like(ids) if padding_id is None else tf.not_equal(ids, padding_id)
        return ids, tf.cast(mask, tf.float32)

    def number(y):
        return tf.reduce_sum(tokens(y)[1], axis=-1)

    def mean_of(function):
        def values(y, outputs):
            ids, weight = tokens(y)
            if ids.shape.rank < 2 or not ids.shape.is_compatible_with(outputs.shape[:-1]):
                raise ValueError(
                    "Each example of a sequence needs ids of shape [length] and logits of shape "
                    f"[length, ids], got the shapes {tuple(ids.shape[1:])} and "
                    f"{tuple(outputs.shape[1:])}."
                )
            ids = tf.where(weight > 0.0, ids, tf.zeros_like(ids))  # -100, for example, has no logit
            found = tf.where(weight > 0.0, function(ids, outputs), 0.0)
            total = tf.reduce_sum(found * weight, axis=-1)
            return tf.math.divide_no_nan(total, tf.reduce_sum(weight, axis=-1))

        return values

    loss = mean_of(sparse_cross_entropy)

    def loss_sums(y, outputs, weight):
        total = tf.reduce_sum(tf.where(weight > 0.0, loss(y, outputs), 0.0) * weight)
        return Mean(total, tf.reduce_sum(weight))

    def exponential(mean):
        return tf.exp(mean.total / mean.count)

    metrics = {
        "accuracy": Metric(values=mean_of(correct)),
        "perplexity": Metric(loss_sums, exponential),
    }
    metrics |= {f"top_{k}_accuracy": Metric(values=mean_of(_among_largest(k))) for k in top}
    metrics |= _of_classes(classes)
    return Task("sequence", loss, metrics, number, outputs="logits", tokens=tokens)


@TASKS.register("autoencoding")
@takes(scale=above(0))
def autoencoding(*, scale: float = 1.0) -> Task:
    """Returns the task of giving back the inputs, which are also the labels, after a bottleneck.

    The loss is the squared error, the mean over the numbers of an example. Metrics are `mse` and
    `mae`.

    Args:
        scale: The factor of labels before they are compared with outputs, such as `1 / 255` for
            images of bytes.
    """

    def columns(y, outputs):
        y, outputs = _columns(y, outputs)
        return scale * y, outputs

    metrics = _errors(columns)
    return Task("autoencoding", metrics["mse"].values, metrics)
