"""How many cases are drawn, and from which seed: the same ones at every run."""

import zlib
from collections.abc import Callable

import hypothesis


def draws(number: int, name: str) -> Callable[[Callable], Callable]:
    """A decorator, above `hypothesis.given`: `number` cases, which the name decides."""

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
