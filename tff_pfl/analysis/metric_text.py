"""Writes metrics for tables and figures: their names in words, and their numbers."""

import re
from collections.abc import Mapping, Sequence

import numpy as np

from tff_pfl.data.partition_file import SPLITS
from tff_pfl.evaluation import MARGIN, MetricName, direction

ABSENT = "-"
ACCURACY = "personalized/local_test/accuracy"
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
_MODELS = {
    "global": "the global model",
    "personalized": "{whose} own model",
    "locally_trained": "{whose} locally trained global model",
    "fine_tuned": "{whose} fine-tuned model",
    "fine_tuned_best_epoch": "{whose} fine-tuned model after the epoch that was best on these",
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


def in_words(name: MetricName, directions: Mapping[str, int] | None = None) -> str:
    """Describes a metric in words, for an axis.

    `personalized/local_test/accuracy` is "accuracy of each client's own model on its own test
    examples". A statistic follows after a comma. Unknown parts of a name only lose their
    underscores.

    Args:
        name: The metric.
        directions: The directions that metrics state, which tell which tail of clients is the
            worst; see `Runs.directions`.
    """
    quantity = _plain(name.quantity)
    if not name.model:
        return quantity.removeprefix("num ")
    if name.quantity == "num_nonfinite":
        quantity = "number of clients with a loss that is not finite,"
    whose = "each new client's" if name.pool.startswith("new_clients") else "each client's"
    model = _MODELS.get(name.model, f"{{whose}} {_plain(name.model)} model").format(whose=whose)
    words = f"{quantity} of {model} on {_examples(name)}"
    return ", ".join(filter(None, [words, _statistic(name, 0, directions)]))


def in_short(name: MetricName, directions: Mapping[str, int] | None = None) -> str:
    """Returns a short column head, which leaves out `accuracy`, `local_test` and `mean`.

    Args:
        name: The metric.
        directions: See `in_words`.
    """
    pool, _, split = name.pool.rpartition("_")
    parts = [_plain(name.model) or _plain(name.quantity)]
    if name.model and name.quantity != "accuracy":
        parts.append(_plain(name.quantity))
    if pool != "local" or split != "test":
        parts.append(_plain(name.pool))
    parts.append(_statistic(name, 1, directions))
    return ", ".join(filter(None, parts))


def _statistic(name, form, directions):
    statistic = name.statistic
    if direction(name.quantity, directions) < 0:
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


def is_share(name: MetricName) -> bool:
    """Checks whether tables show a quantity in percent."""
    return name.quantity == "accuracy"


def scaled(name: MetricName, values: Sequence[float]) -> np.ndarray:
    """Returns numbers in the unit of tables: shares in percent."""
    return (100.0 if is_share(name) else 1.0) * np.array(values)


def number(name: MetricName, value: float) -> str:
    """Formats a `scaled` number."""
    return f"{value:.2f}" if is_share(name) else f"{value:.3g}"


def difference_text(name: MetricName, value: float) -> str:
    """Formats a difference with its sign; of shares in percent."""
    return f"{100 * value:+.2f}" if is_share(name) else f"{value:+.3g}"


def mean_and_deviation(name: MetricName, values: np.ndarray) -> str:
    """Formats mean and standard deviation of `scaled` numbers, or a single number alone."""
    if np.isnan(values).all():
        return ABSENT
    if len(values) == 1:
        return number(name, values[0])
    with np.errstate(invalid="ignore"):  # losses may not be finite
        deviation = values.std(ddof=1)
    return f"{number(name, values.mean())} ± {number(name, deviation)}"


def best_of(
    name: MetricName,
    values: Mapping[str, np.ndarray],
    directions: Mapping[str, int] | None = None,
) -> set[str]:
    """Returns the labels with the best mean, if two labels or more have a finite mean.

    Args:
        name: The metric.
        values: The numbers of each label.
        directions: The directions that metrics state; see `Runs.directions`.
    """
    means = {label: float(own.mean()) for label, own in values.items()}
    means = {label: mean for label, mean in means.items() if np.isfinite(mean)}
    if len(means) < 2 or name.statistic in ("std", MARGIN):
        return set()
    sign = direction(name.quantity, directions)
    first = sign * max(sign * mean for mean in means.values())
    return {label for label, mean in means.items() if number(name, mean) == number(name, first)}
