"""Formats tables of texts and numbers as Markdown, LaTeX and CSV."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from tff_pfl.analysis.metric_text import ABSENT


class Table(NamedTuple):
    """A table with names in the first column and numbers in the others.

    Attributes:
        frame: The cells, as texts.
        notes: Sentences that explain the table.
        bold: The `(row, column)` of each cell that is the best in its column or row.
    """

    frame: pd.DataFrame
    notes: Sequence[str] = ()
    bold: frozenset[tuple[int, int]] = frozenset()


def table_of(
    rows: pd.DataFrame | Iterable[Mapping[str, str]],
    notes: Sequence[str] = (),
    best: Mapping[str, set[str]] | None = None,
) -> Table:
    """Makes a table from its rows.

    Args:
        rows: Texts by column heads. A missing head gives a dash.
        notes: See `Table`.
        best: For column heads, the names in the first column of the rows with the best cells.
    """
    frame = pd.DataFrame(rows, dtype=object).fillna(ABSENT).reset_index(drop=True)
    bold = {
        (row, frame.columns.get_loc(head))
        for head, names in (best or {}).items()
        for row in np.flatnonzero(frame.iloc[:, 0].isin(names))
    }
    return Table(frame, list(notes), frozenset(bold))


def to_markdown(table: Table) -> str:
    """Returns the table as Markdown, with the notes as a paragraph below."""
    cells = table.frame.map(_markdown)
    for row, column in table.bold:
        cells.iloc[row, column] = f"**{cells.iloc[row, column]}**"
    alignment = "|".join(["---", *["---:"] * (cells.shape[1] - 1)])
    rows = [map(_markdown, cells.columns), *cells.itertuples(index=False)]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    notes = ["", " ".join(map(_markdown, table.notes))] if table.notes else []
    return "\n".join([lines[0], f"|{alignment}|", *lines[1:], *notes])


def to_latex(table: Table) -> str:
    """Returns the table as a LaTeX `tabular` with booktabs, with the notes as comments above."""
    styler = table.frame.style.hide(axis="index")
    styler.format(escape="latex").format_index(escape="latex", axis="columns")
    styler.apply(lambda frame: _bold_style(table, frame), axis=None)
    text = styler.to_latex(hrules=True, column_format=f"l{'r' * (table.frame.shape[1] - 1)}")
    return "\n".join([*(f"% {note}" for note in table.notes), text.rstrip("\n")])


def to_csv(table: Table) -> str:
    """Returns the cells as CSV, without a line break at the end and without the notes."""
    return table.frame.to_csv(index=False).rstrip("\n")


FORMATS = {"markdown": to_markdown, "latex": to_latex, "csv": to_csv}


def _bold_style(table, frame):
    styles = pd.DataFrame("", frame.index, frame.columns)
    for row, column in table.bold:
        styles.iloc[row, column] = "textbf:--rwrap;"
    return styles


def _markdown(text):
    # An underscore within a word does not mark emphasis.
    return re.sub(r"([\\|*`<>$]|(?<!\w)_|_(?!\w))", r"\\\1", text)
