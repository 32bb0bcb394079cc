"""Warns about rounds: once for each kind of fault, and with a count of rounds at the end."""

import collections
from collections.abc import Callable, Mapping
from typing import Any

NOBODY = "nobody reported"
NO_WEIGHT = "no evaluated example has a weight, or a token that counts, so all metrics are nan"
_REASONS = (
    "because of a result that is not finite, a negative weight or a number of examples that "
    "exceeds their rows"
)
_TIP = ". Lower the learning rate or scale x and y"


class RoundWarnings:
    """The warnings about the rounds of a run, each of which is shown when it is first due."""

    def __init__(self, title: str, show: Callable[[str], None]):
        """Makes warnings about the run with a title, which `show` prints."""
        self._title = title
        self._show = show
        self._rounds: collections.Counter[str] = collections.Counter()

    def warn(self, round_num: int, warnings: Mapping[str, str]) -> None:
        """Shows those warnings about a round whose kinds are new; counts the others."""
        for kind, warning in warnings.items():
            if kind not in self._rounds:
                self.show(round_num, warning)
        self._rounds.update(warnings.keys())

    def show(self, round_num: int, text: str) -> None:
        """Shows a line about a round, with the title of the run."""
        self._show(f"{self._title}, round {round_num}: {text}")

    def close(self) -> None:
        """Shows in how many rounds each warning was due, if in more than the one that it named."""
        for kind, count in self._rounds.items():
            if count > 1:
                self._show(f"{self._title}, in {count} rounds: {kind}")


def warnings_of(metrics: Mapping[str, Any]) -> dict[str, str]:
    """Returns warnings about a round by their kinds, based on the metrics of its process."""
    warnings = {}
    for exchange, measured in exchanges(metrics).items():
        kept = measured.get("server_kept") and "the server keeps its state"
        if number := int(measured.get("num_nonfinite", 0)):
            total = number + int(measured["num_clients"])
            share, tip = ("some", "") if 2 * number <= total else ("most", _TIP)
            then = f"; {kept}" if kept else ""
            warnings[f"{exchange}: {share} clients left out{then}"] = (
                f"{exchange}: {number} of {total} clients left out, {_REASONS}{then}{tip}"
            )
        elif kept:
            warnings[f"{exchange}: {kept}"] = f"{exchange}: {kept}, no valid update arrived"
    return warnings


def exchanges(metrics: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Returns the metrics of each exchange of a process by its name."""
    return {name: value for name, value in metrics.items() if isinstance(value, Mapping)}
