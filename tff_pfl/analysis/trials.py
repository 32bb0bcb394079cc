"""Settings to try: all of a grid, random draws, or a search; and the values they come from."""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tff_pfl.ranges import FINITE, above, takes, whole

Settings = Mapping[str, Any]
"""Keys of a config, without `config.`, and their values."""

_DIGITS = 3  # of numbers that are drawn


@takes(least=FINITE, most=FINITE)
@dataclasses.dataclass(frozen=True)
class Interval:
    """Numbers between two, rounded to three digits.

    Attributes:
        least: The lowest of them.
        most: The highest.
        by_logarithm: Whether their logarithms are equally likely, instead of themselves.
    """

    least: float
    most: float
    by_logarithm: bool = False

    def __post_init__(self):
        if not self.least < self.most:
            raise ValueError(f"An interval is from less to more, got {self.least} to {self.most}.")

    def draw(self, rng: np.random.Generator) -> float:
        """Draws one."""
        if self.by_logarithm:
            return self.rounded(math.exp(rng.uniform(math.log(self.least), math.log(self.most))))
        return self.rounded(rng.uniform(self.least, self.most))

    @property
    def center(self) -> float:
        """The middle, of the logarithms if these are equally likely."""
        if self.by_logarithm:
            return math.sqrt(self.least * self.most)
        return (self.least + self.most) / 2

    def rounded(self, number: float) -> float:
        """Returns the number with three digits; a bound, if rounding would go beyond it."""
        return min(max(float(f"{number:.{_DIGITS}g}"), self.least), self.most)


@dataclasses.dataclass(frozen=True)
class OneOf:
    """Some values, equally likely.

    Attributes:
        values: One or more.
    """

    values: tuple

    def __post_init__(self):
        if not self.values:
            raise ValueError("one_of needs a value or more, got none.")

    def draw(self, rng: np.random.Generator) -> Any:
        """Draws one."""
        return self.values[rng.integers(len(self.values))]


def uniform(least: float, most: float) -> Interval:
    """Returns the numbers between two, equally likely."""
    return Interval(least, most)


@takes(least=above(0), most=above(0))
def log_uniform(least: float, most: float) -> Interval:
    """Returns the numbers between two, whose logarithms are equally likely."""
    return Interval(least, most, by_logarithm=True)


def one_of(*values: Any) -> OneOf:
    """Returns some values, equally likely."""
    return OneOf(values)


def grid(values: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Returns all combinations.

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
    values: Mapping[str, Interval | OneOf], number: int, *, seed: int = 0
) -> list[dict[str, Any]]:
    """Draws independent random settings.

    Args:
        values: Of each key, such as `{"local.learning_rate": log_uniform(1e-3, 1)}`.
        number: Of settings.
        seed: A greater number with the same seed begins with the same settings.
    """
    _check_values(values)
    rng = np.random.default_rng(seed)
    return [{key: of.draw(rng) for key, of in values.items()} for _ in range(number)]


@takes(number=whole(1), at_a_time=whole(1), seed=whole(0))
@dataclasses.dataclass(frozen=True)
class Search:
    """A search for good settings by Optuna, in place of a list of trials.

    Each trial is proposed by a tree-structured Parzen estimator (`optuna.samplers.TPESampler`,
    multivariate) from the scores before it. The first trial is the centre of all intervals, with
    the first of other values; the next few are random.

    Attributes:
        values: Of each key of the config, made by `uniform`, `log_uniform` or `one_of`.
        number: Of trials of each variant. Where it is raised, the search goes on; runs of the table
            that a better trial replaces are to be deleted, as where trials are added to a list.
        at_a_time: Trials that are proposed before any of them has a score: more of them can run
            side by side, and each knows less.
        seed: Of what is random in the search. Equal studies propose equal trials.
    """

    values: Mapping[str, Interval | OneOf]
    number: int
    at_a_time: int = 1
    seed: int = 0

    def __post_init__(self):
        _check_values(self.values)


def _check_values(values):
    of = values.values() if isinstance(values, Mapping) else ()
    if not of or not all(isinstance(x, Interval | OneOf) for x in of):
        raise ValueError(
            "Values to draw or search are a mapping from keys of the config to uniform, "
            f"log_uniform or one_of, got {values!r}."
        )
