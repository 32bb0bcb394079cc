"""Counts which classes a method's models take for which, from their predictions."""

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
) -> pd.DataFrame:
    """Counts the examples of each label and predicted class, of all clients in a frame.

    Example:
        >>> logits = [[0.2, 0.1], [0.3, 0.9], [0.4, 0.5]]
        >>> predictions = {"label": [0, 0, 1], "personalized": logits, "personalized_loss": 0.0}
        >>> analysis.confusion_matrix(pd.DataFrame(predictions), classes=["cat", "dog"])
        predicted  cat  dog
        label
        cat          1    1
        dog          0    1

    Args:
        predictions: The result of `Comparison.predictions`, or the table that `evaluate.py
            --predictions` writes; for one client, its rows.
        model: The model, a column such as "personalized" or "global". Its outputs are a logit for
            each class, or one logit for labels 0 and 1.
        classes: The names of all classes, in order. Default: their numbers.

    Returns:
        A row for each label and a column for each predicted class. Outputs that are not finite
        have another column, `nothing`, if there are any.

    Raises:
        ValueError: The frame has no such model, or its labels are not classes of its outputs.
    """
    models = [name for name in predictions if f"{name}_loss" in predictions]
    check_names("model", [model], models)
    outputs, labels = (np.stack(predictions[name].to_numpy()) for name in (model, "label"))
    outputs, labels = outputs.reshape(len(labels), -1), labels.reshape(len(labels), -1)
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
    names = list(range(number) if classes is None else classes)
    if len(names) != number:
        raise ValueError(f"classes has {len(names)} names, but there are {number} classes.")
    found = pd.DataFrame(counts, pd.Index(names, name="label"), [*names, "nothing"])
    found = found.rename_axis(columns="predicted")
    return found if counts[:, -1].any() else found.iloc[:, :-1]


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
