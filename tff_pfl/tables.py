"""Tables of numbers as text."""

from collections.abc import Iterable, Sequence
from typing import Any

_NARROWEST = 10
_FORMULA = tuple("=+-@\t\r")  # how formulas begin in spreadsheets


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns a line for each row: the name left-aligned, the other cells right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for name, *cells in rows:
        right = (
            f"  {cell:>{max(width, _NARROWEST)}}"
            for cell, width in zip(cells, widths[1:], strict=True)
        )
        lines.append(f"  {name:{widths[0]}}{''.join(right)}")
    return lines


def decimal(value: float) -> str:
    """Formats a number with four decimals, or as a power of ten if it is large."""
    return f"{value:.3e}" if 1e6 <= abs(value) < float("inf") else f"{value:.4f}"


def cells_of_csv(row: Iterable[Any]) -> list[Any]:
    """Returns a row with an apostrophe before each text that begins like a formula.

    Spreadsheets execute formulas in CSV files. Numbers stay as they are.
    """
    return [f"'{of}" if isinstance(of, str) and of.startswith(_FORMULA) else of for of in row]
