"""Draws the same cases in every run."""

import zlib
from collections.abc import Callable

import hypothesis


def draws(number: int, name: str) -> Callable[[Callable], Callable]:
    """Returns a decorator, to put above `hypothesis.given`, that draws `number` cases.

    The seed is a hash of the name.
    """

    def decorate(test):
        settings = hypothesis.settings(
            max_examples=number,
            database=None,
            deadline=None,
            phases=[hypothesis.Phase.generate],
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        return hypothesis.seed(zlib.crc32(name.encode()))(settings(test))

    return decorate
