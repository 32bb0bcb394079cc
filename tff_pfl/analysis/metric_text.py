"""Writes metrics for tables and figures: their names in words, and their numbers."""

import re
from typing import Any

import numpy as np
import pandas as pd

from tff_pfl.arguments.quantities import Quantity
from tff_pfl.data.partition_file import SPLITS
from tff_pfl.evaluation import MARGIN, MetricName

ABSENT = "-"
# The evaluations by their names in `summary.json`: short words for heads, and long ones for notes.
EVALUATIONS = {
    "final": ("", ""),
    "best_on_validation": (
        "best on validation",
        "at the evaluation that is best on validation examples",
    ),
    "best_on_test": (
        "best on test",
        "at the evaluation that is best on test examples, chosen on the examples that it reports",
    ),
    "late_mean": ("late mean", "mean of the late evaluations of a run"),
}
# Each statistic in words, and its short form.
_STATISTICS = {
    "mean": ("mean over clients", ""),
    "std": ("standard deviation over clients", "standard deviation"),
    "worst_5_percent": ("mean of the lowest 5 % of clients", "lowest 5 %"),
    "best_5_percent": ("mean of the top 5 % of clients", "top 5 %"),
    MARGIN: ("half of the 95 % interval of the mean over clients", "95 %: ±"),
}
# Where less is better, the highest values are the worst.
_OTHER_TAIL = {"worst_5_percent": "best_5_percent", "best_5_percent": "worst_5_percent"}
_P_VALUES = {"p": "p_value", "Holm's p": "p_holm"}
_MODELS = {
    "global": "the global model",
    "personalized": "{whose} own model",
    "locally_trained": "{whose} locally trained global model",
    "fine_tuned": "{whose} fine-tuned model",
}
# The examples of each pool: for clients' own models, and for one global model.
_POOLS = {
    r"local": ("its own {} examples", "each client's own {} examples"),
    r"generalization": ("the {} examples of all clients",) * 2,
    r"synthetic(?P<percent>[\d.]+)": (
        "its own {} examples and those of {percent} % of the other clients",
        "the {} examples of each client and of {percent} % of the others",
    ),
    r"new_clients": ("its own {} examples", "each new client's own {} examples"),
}


def in_words(name: MetricName, quantity: Quantity | None = None) -> str:
    """Describes a metric in words, for an axis.

    `personalized/local_test/accuracy` is "accuracy of each client's own model on its own test
    examples". A statistic follows after a comma. Unknown parts of a name only lose their
    underscores.

    Args:
        name: The metric.
        quantity: The quantity as runs state it, which tells the worst tail of clients.
    """
    measured = _plain(name.quantity)
    if not name.model:
        *exchange, measured = measured.removeprefix("num ").split("/")
        return ", ".join([measured, *exchange])
    if name.quantity == "num_nonfinite":
        measured = "number of clients with a loss that is not finite,"
    whose = "each new client's" if name.pool.startswith("new_clients") else "each client's"
    model = _MODELS.get(name.model, f"{{whose}} {_plain(name.model)} model").format(whose=whose)
    words = f"{measured} of {model} on {_examples(name)}"
    return ", ".join(filter(None, [words, _statistic(name, 0, quantity)]))


def in_short(name: MetricName, quantity: Quantity | None = None) -> str:
    """Returns a short column head, which leaves out `accuracy`, `local_test` and `mean`.

    Args:
        name: The metric.
        quantity: See `in_words`.
    """
    pool, _, split = name.pool.rpartition("_")
    parts = [_plain(name.model) or _plain(name.quantity)]
    if name.model and name.quantity != "accuracy":
        parts.append(_plain(name.quantity))
    if pool != "local" or split != "test":
        parts.append(_plain(name.pool))
    parts.append(_statistic(name, 1, quantity))
    return ", ".join(filter(None, parts))


def _statistic(name, form, quantity):
    statistic = name.statistic
    if (quantity or Quantity.named(name.quantity)).better < 0:
        statistic = _OTHER_TAIL.get(statistic, statistic)
    return _STATISTICS[statistic][form] if statistic in _STATISTICS else _plain(statistic)


def _examples(name):
    pool, _, split = name.pool.rpartition("_")
    for pattern, words in _POOLS.items():
        found = re.fullmatch(pattern, pool)
        if found and split in SPLITS:
            return words[name.model == "global"].format(split, **found.groupdict())
    return _plain(name.pool)


def _plain(part):
    return part.replace("_", " ")


def scaled(quantity: Quantity, values: Any) -> Any:
    """Returns numbers in the unit of tables: shares in percent."""
    return 100.0 * values if quantity.is_share else values


def number(quantity: Quantity, value: float) -> str:
    """Formats a `scaled` number."""
    return f"{value:.2f}" if quantity.is_share else f"{value:.3g}"


def gain_cells(quantity: Quantity, gains: pd.DataFrame, better: int = 1) -> pd.DataFrame:
    """Formats the differences, intervals and p values of `gains`, in percent for shares.

    Args:
        quantity: The quantity.
        gains: See `paired.gains`.
        better: -1 shows differences of a quantity of which less is better, in place of gains.
    """

    def difference(values):
        style = "{:+.2f}" if quantity.is_share else "{:+.3g}"
        return scaled(quantity, better * values).astype(object).map(style.format)

    low, high = ("gain_low", "gain_high")[::better]
    cells = pd.DataFrame({"gain": difference(gains["gain"])})
    cells["95 % interval"] = difference(gains[low]) + " to " + difference(gains[high])
    for head, name in _P_VALUES.items():
        if name in gains:
            cells[head] = gains[name].map("{:.3f}".format).mask(gains[name] < 0.001, "< 0.001")
    cells.loc[gains["p_value"].isna(), cells.columns.drop("gain")] = ABSENT
    return cells


def mean_and_deviation(quantity: Quantity, values: pd.Series) -> str:
    """Formats mean and standard deviation of `scaled` numbers, or a single number alone."""
    if values.isna().all():
        return ABSENT
    if len(values) == 1:
        return number(quantity, values.iloc[0])
    with np.errstate(invalid="ignore"):  # losses may not be finite
        deviation = values.std(skipna=False)
    return f"{number(quantity, values.mean(skipna=False))} ± {number(quantity, deviation)}"


def best_of(quantity: Quantity, means: pd.Series) -> set[str]:
    """Returns the labels with the best `scaled` mean, if two labels or more have a finite one."""
    means = quantity.better * means[np.isfinite(means)]
    if len(means) < 2:
        return set()
    shown = means.map(lambda mean: number(quantity, mean))
    return set(shown.index[shown == shown[means.idxmax()]])
