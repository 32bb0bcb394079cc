"""What tables write of several numbers, one a seed."""

from collections.abc import Mapping, Sequence

import numpy as np

from tff_pfl.evaluation import MARGIN, MetricName, direction

ABSENT = "-"


def is_share(name: MetricName) -> bool:
    """Whether tables have it in percent."""
    return name.quantity == "accuracy"


def scaled(name: MetricName, values: Sequence[float]) -> np.ndarray:
    """Numbers as tables have them: shares in percent."""
    return (100.0 if is_share(name) else 1.0) * np.array(values)


def mean_and_deviation(name: MetricName, values: np.ndarray | None) -> str:
    """The mean and the standard deviation of `scaled` numbers; of one, this."""
    if values is None or np.isnan(values).all():
        return ABSENT
    if len(values) == 1:
        return _number(name, values[0])
    with np.errstate(invalid="ignore"):  # of losses that are not finite
        deviation = values.std(ddof=1)
    return f"{_number(name, values.mean())} ± {_number(name, deviation)}"


def best(name: MetricName, values: Mapping[str, np.ndarray]) -> set[str]:
    """The labels with the best mean, if there is more than one to choose from."""
    means = {label: float(own.mean()) for label, own in values.items()}
    means = {label: mean for label, mean in means.items() if np.isfinite(mean)}
    if len(means) < 2 or name.statistic in ("std", MARGIN):
        return set()
    sign = direction(name.quantity)
    first = sign * max(sign * mean for mean in means.values())
    return {label for label, mean in means.items() if _number(name, mean) == _number(name, first)}


def _number(name, value):
    return f"{value:.2f}" if is_share(name) else f"{value:.3g}"
