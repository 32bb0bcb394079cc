"""Tables as Markdown, LaTeX and HTML, and rows as CSV."""

import csv
import html
import io
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tff_pfl.tables import cells_of_csv

_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
}


class Cell(NamedTuple):
    """A cell of a table.

    Attributes:
        text: What is in it.
        bold: Whether it is the best of its column.
    """

    text: str
    bold: bool = False


class Table(NamedTuple):
    """A table of names in the first column, and numbers in the others.

    Attributes:
        heads: Of the columns.
        rows: Of as many cells each.
        notes: Sentences that say what is in it.
    """

    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = ()


def to_markdown(table: Table) -> str:
    """The table, and the notes as a paragraph below."""
    heads = map(_markdown, table.heads)
    alignment = "|".join(["---"] + ["---:"] * (len(table.heads) - 1))
    lines = [f"| {' | '.join(heads)} |", f"|{alignment}|"]
    for row in table.rows:
        cells = [_bold(_markdown(cell.text), "**{}**", cell) for cell in row]
        lines.append(f"| {' | '.join(cells)} |")
    if table.notes:
        lines += ["", " ".join(map(_markdown, table.notes))]
    return "\n".join(lines)


def to_csv(rows: Iterable[NamedTuple], heads: Sequence[str]) -> str:
    """Rows as lines of CSV, below a line of their heads; it does not end the last line."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows(map(cells_of_csv, [heads, *rows]))
    return text.getvalue().rstrip("\n")


def to_latex(table: Table) -> str:
    """A `tabular` of the package booktabs; the notes are comments above."""
    lines = [f"% {note}" for note in table.notes]
    lines += [rf"\begin{{tabular}}{{l{'r' * (len(table.heads) - 1)}}}", r"\toprule"]
    lines += [rf"{' & '.join(map(_latex, table.heads))} \\", r"\midrule"]
    for row in table.rows:
        cells = [_bold(_latex(cell.text), r"\textbf{{{}}}", cell) for cell in row]
        if cells[0].startswith(("[", "*")):  # which would be an option of the line above
            cells[0] = "{}" + cells[0]
        lines.append(rf"{' & '.join(cells)} \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])


def to_html(table: Table) -> str:
    """A `table` in a box that scrolls where it is too wide, and the notes as a paragraph."""
    heads = "".join(f'<th scope="col">{html.escape(head)}</th>' for head in table.heads)
    rows = []
    for name, *cells in table.rows:
        row = f'<th scope="row">{_bold(_breakable(name.text), "<strong>{}</strong>", name)}</th>'
        for cell in cells:
            row += f"<td>{_bold(html.escape(cell.text), '<strong>{}</strong>', cell)}</td>"
        rows.append(f"<tr>{row}</tr>")
    body = "\n".join(rows)
    notes = f"<p>{html.escape(' '.join(table.notes))}</p>\n" if table.notes else ""
    return (
        f'<div class="scroll" tabindex="0"><table>\n<thead><tr>{heads}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody>\n</table></div>\n{notes}"
    )


def _breakable(text):
    """HTML of a name, such as a key of a config, that a narrow window may break between words."""
    return re.sub(r"(?<=[a-z])([._])(?=[a-z])", r"\1<wbr>", html.escape(text))


def _bold(text, form, cell):
    return form.format(text) if cell.bold else text


def _markdown(text):
    # An underscore within a word is none of emphasis.
    return re.sub(r"([\\|*`<>$]|(?<!\w)_|_(?!\w))", r"\\\1", text)


def _latex(text):
    escaped = "".join(_LATEX.get(character, character) for character in text)
    return re.sub(r"(?<![\w-])-(?=[\d.])", "$-$", escaped)  # a sign is no hyphen
