"""The comparison as a table of a page."""

from collections.abc import Iterable, Mapping
from typing import Any


def markdown_table(records: Iterable[Mapping[str, Any]]) -> str:
    """A row a framework and a column a method: seconds, and how many times the bare loop's.

    Args:
        records: Those of `compare`.
    """
    cells = {(record["framework"], record["method"]): _cell(record) for record in records}
    frameworks = list(dict.fromkeys(framework for framework, _ in cells))
    methods = list(dict.fromkeys(method for _, method in cells))
    rows = [["framework", *methods], ["---"] + ["---:"] * len(methods)]
    rows += [[name, *(cells.get((name, m), "") for m in methods)] for name in frameworks]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cell(record):
    if "failed" in record:
        return "failed"
    seconds = f"{record['seconds_per_round']['median']:.3g} s"
    times = record["times_bare"]
    return seconds if times is None else f"{seconds} ({times:.2f} x)"
