"""Counts which classes a method's models take for which, from their predictions."""

import math
from collections.abc import Iterable

import numpy as np
import pandas as pd

from tff_pfl.analysis import figures
from tff_pfl.arguments.names import check_names

_MOST_WRITTEN = 15  # classes whose numbers fit into a figure


def confusion_matrix(
    predictions: pd.DataFrame,
    model: str = "personalized",
    *,
    classes: Iterable[str] | None = None,
    padding_id: int | None = 0,
) -> pd.DataFrame:
    """Counts the examples, or tokens, of each label and predicted class, of all clients in a frame.

    Example:
        >>> logits = [[0.2, 0.1], [0.3, 0.9], [0.4, 0.5]]
        >>> predictions = {"label": [0, 0, 1], "personalized": logits, "personalized_loss": 0.0}
        >>> analysis.confusion_matrix(pd.DataFrame(predictions), classes=["cat", "dog"])
        predicted  cat  dog
        label
        cat          1    1
        dog          0    1

    Args:
        predictions: The result of `Run.predictions`, or the table that `evaluate.py
            --predictions` writes; for one client, its rows.
        model: The model, a column such as "personalized" or "global". Its outputs are a logit for
            each class, also of each token, or one logit for labels 0 and 1.
        classes: The names of all classes, in order. Default: those of the labels, if these are a
            Categorical, or their numbers.
        padding_id: The label of tokens that do not count, unless labels have a mask; see the task
            `sequence`.

    Returns:
        A row for each label and a column for each predicted class. Outputs that are not finite
        have another column, `nothing`, if there are any.

    Raises:
        ValueError: The frame has no such model, or its labels are not classes of its outputs, or
            not among `classes`.
    """
    models = [name for name in predictions if f"{name}_loss" in predictions]
    check_names("model", [model], models)
    outputs = _stacked(predictions[model])
    labels, names = _numbered(predictions, None if classes is None else list(classes))
    if outputs.ndim == 3 and labels.shape == outputs.shape[:2]:
        is_token = labels != padding_id
        if "label/mask" in predictions:
            is_token = _stacked(predictions["label/mask"]) > 0
        outputs, labels = outputs[is_token], labels[is_token]
    outputs = outputs.reshape(len(labels), math.prod(outputs.shape[1:]))
    labels = labels.reshape(len(labels), math.prod(labels.shape[1:]))
    number = max(outputs.shape[1], 2)
    if labels.shape[1] > 1 or not np.isin(labels, np.arange(number)).all():
        raise ValueError(
            f"A confusion matrix needs a class of 0 to {number - 1} for each example, because "
            f"there are {outputs.shape[1]} outputs. The labels of these predictions are others."
        )
    predicted = outputs.argmax(1) if outputs.shape[1] > 1 else outputs[:, 0] > 0
    predicted = np.where(np.isfinite(outputs).all(1), predicted, number)
    counts = np.zeros([number, number + 1], int)
    np.add.at(counts, (labels[:, 0].astype(int), predicted), 1)
    names = list(range(number)) if names is None else names
    if len(names) != number:
        raise ValueError(f"classes has {len(names)} names, but there are {number} classes.")
    found = pd.DataFrame(counts, pd.Index(names, name="label"), [*names, "nothing"])
    found = found.rename_axis(columns="predicted")
    return found if counts[:, -1].any() else found.iloc[:, :-1]


def _stacked(cells) -> np.ndarray:
    """Returns the array of a column of numbers or of arrays, which files nest as lists."""
    array = np.stack(list(cells))
    return np.stack(list(map(_stacked, array))) if array.dtype == object else array


def _numbered(predictions, classes) -> tuple[np.ndarray, list | None]:
    """Returns labels as numbers, and the names of the classes, or `None` without names."""
    column = predictions["label/ids" if "label/ids" in predictions else "label"]
    if isinstance(column.dtype, pd.CategoricalDtype):
        names = column.cat.categories.tolist()
        if classes not in (None, names):
            raise ValueError(
                f"classes are {classes}, but the labels have the categories {names}, which are in "
                "the order of the outputs. Leave classes out."
            )
        return column.cat.codes.to_numpy(), names
    if not isinstance(column.iloc[0], str):
        return _stacked(column), classes
    if classes is None:
        raise ValueError(
            "The labels are names. Pass classes=dataset.class_names, which are in the order of the "
            "outputs."
        )
    return pd.Categorical(column, classes).codes, classes


@figures.styled
def plot_confusion_matrix(matrix: pd.DataFrame):
    """Draws the result of `confusion_matrix`, with the share of each label's examples as shades.

    Returns:
        The Matplotlib figure.
    """
    counts = matrix.to_numpy()
    totals = counts.sum(axis=1, keepdims=True)
    shares = np.divide(counts, totals, out=np.zeros(counts.shape), where=totals > 0)
    figure = figures.new_figure(figures.WIDTH, 0.85 * figures.WIDTH)
    axes = figure.subplots()
    image = axes.imshow(shares, cmap="Greys", vmin=0, vmax=1)
    axes.set(xlabel="predicted class", ylabel="label")
    axes.grid(visible=False)
    if len(matrix) <= _MOST_WRITTEN:
        axes.set_xticks(range(counts.shape[1]), matrix.columns, rotation=45)
        axes.set_yticks(range(len(matrix)), matrix.index)
        for (row, column), count in np.ndenumerate(counts):
            color = "white" if shares[row, column] > 0.5 else "black"
            axes.text(column, row, f"{count}", ha="center", va="center", color=color)
    figure.colorbar(image, label="share of the label's examples")
    return figure
