"""Formats tables of numbers as text and as HTML."""

import html
from collections.abc import Sequence

_NARROWEST = 10


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns one line for each row: the name left-aligned, the other cells right-aligned."""
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
    """Formats a number with four decimals, or in scientific notation from a million on."""
    return f"{value:.3e}" if 1e6 <= abs(value) < float("inf") else f"{value:.4f}"


def to_html(title: str, rows: Sequence[Sequence[str]]) -> str:
    """Returns a table with a title for notebooks; its first row has the heads of the columns."""

    def row(cells, tag):
        return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"

    lines = [row(cells, "td" if index else "th") for index, cells in enumerate(rows)]
    return f"<div><b>{html.escape(title)}</b><table>{''.join(lines)}</table></div>"
