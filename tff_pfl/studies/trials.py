"""Settings to try: all of a grid, or random draws; and the values that are drawn, or searched."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tff_pfl.ranges import FINITE, above, takes, whole

_DIGITS = 3  # of numbers that are drawn


@takes(least=FINITE, most=FINITE)
@dataclasses.dataclass(frozen=True)
class Interval:
    """Numbers between two, of three digits.

    Attributes:
        least: The lowest of them.
        most: The highest.
        by_logarithm: Whether their logarithms are all as likely, in the place of themselves.
    """

    least: float
    most: float
    by_logarithm: bool = False

    def __post_init__(self):
        if not self.least < self.most:
            raise ValueError(f"An interval is from less to more, got {self.least} to {self.most}.")

    def __call__(self, rng: np.random.Generator) -> float:
        """Draws one."""
        if self.by_logarithm:
            return self.rounded(math.exp(rng.uniform(math.log(self.least), math.log(self.most))))
        return self.rounded(rng.uniform(self.least, self.most))

    def rounded(self, number: float) -> float:
        """The number, of three digits; a bound, if rounding would go beyond it."""
        return min(max(float(f"{number:.{_DIGITS}g}"), self.least), self.most)


@dataclasses.dataclass(frozen=True)
class OneOf:
    """Some values.

    Attributes:
        values: One or more.
    """

    values: tuple

    def __post_init__(self):
        if not self.values:
            raise ValueError("One of no values cannot be drawn: one_of() has none.")

    def __call__(self, rng: np.random.Generator) -> Any:
        """Draws one of them."""
        return self.values[rng.integers(len(self.values))]


def uniform(least: float, most: float) -> Interval:
    """Numbers between two, all as likely."""
    return Interval(least, most)


@takes(least=above(0), most=above(0))
def log_uniform(least: float, most: float) -> Interval:
    """Numbers between two, whose logarithms are all as likely."""
    return Interval(least, most, by_logarithm=True)


def one_of(*values: Any) -> OneOf:
    """One of some values, all as likely."""
    return OneOf(values)


def grid(values: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """All combinations.

    Args:
        values: Of each key of the config, such as `{"local.learning_rate": (0.1, 0.01)}`.

    Raises:
        ValueError: If the values of a key are not several, as a number or a text is.
    """
    for key, of in values.items():
        if isinstance(of, str) or not isinstance(of, Iterable):
            raise ValueError(
                f"The values of {key!r} must be a tuple, such as ({of!r},), got {of!r}."
            )
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

    Raises:
        ValueError: If something draws nothing.
    """
    for key, draw in values.items():
        if not callable(draw):
            raise ValueError(
                f"The values of {key!r} are drawn by a function, such as uniform(0, 1) or "
                f"one_of(1, 2), got {draw!r}."
            )
    rng = np.random.default_rng(seed)
    return [{key: draw(rng) for key, draw in values.items()} for _ in range(number)]
