"""Settings to try: all of a grid, or random draws."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tff_pfl.ranges import above, takes, whole

_DIGITS = 3  # of numbers that are drawn


def grid(values: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """All combinations.

    Args:
        values: Of each key of the config, such as `{"local.learning_rate": (0.1, 0.01)}`.
    """
    return [
        dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())
    ]


@takes(number=whole(1), seed=whole(0))
def draws(
    values: Mapping[str, Callable[[np.random.Generator], Any]], number: int, *, seed: int = 0
) -> list[dict[str, Any]]:
    """Independent random settings.

    Args:
        values: What draws the value of each key: `{"local.learning_rate": log_uniform(1e-3, 1)}`.
        number: Of settings.
        seed: More settings of the same seed begin with the same.
    """
    rng = np.random.default_rng(seed)
    return [{key: draw(rng) for key, draw in values.items()} for _ in range(number)]


def uniform(least: float, most: float) -> Callable[[np.random.Generator], float]:
    """Numbers between two, all as likely; of three digits."""
    return lambda rng: _rounded(rng.uniform(least, most), least, most)


@takes(least=above(0), most=above(0))
def log_uniform(least: float, most: float) -> Callable[[np.random.Generator], float]:
    """Numbers between two, whose logarithms are all as likely; of three digits."""
    return lambda rng: _rounded(math.exp(rng.uniform(math.log(least), math.log(most))), least, most)


def one_of(*values: Any) -> Callable[[np.random.Generator], Any]:
    """One of some values, all as likely."""
    return lambda rng: values[rng.integers(len(values))]


def _rounded(number, least, most) -> float:
    """Which is a bound, if rounding would go beyond it."""
    return min(max(float(f"{number:.{_DIGITS}g}"), least), most)
