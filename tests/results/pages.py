"""The tables of a page of results, and its sentences."""

import re
from typing import NamedTuple

from tests.runs import ROOT

FOLDER = ROOT / "docs" / "results"
PAGES = sorted(path.stem for path in FOLDER.glob("*.md"))


class PageTable(NamedTuple):
    """A table of a page.

    Attributes:
        page: The page's name, as "fedpg".
        heading: That it stands below.
        number: Of the table in its page, from 0.
        heads: Of its columns.
        rows: Text of cells, without marks of the best.
    """

    page: str
    heading: str
    number: int
    heads: list[str]
    rows: list[list[str]]


def text_of(page: str) -> str:
    """The page's Markdown, without its blocks of code."""
    text = (FOLDER / f"{page}.md").read_text()
    return re.sub(r"^```\w*\n.*?^```\n", "", text, flags=re.DOTALL | re.MULTILINE)


def tables_of(page: str) -> list[PageTable]:
    """All tables of a page, in order."""
    tables, heading, block = [], "", []
    for line in [*text_of(page).splitlines(), ""]:
        if line.startswith("|"):
            block.append([cell.strip(" *") for cell in line.strip("|").split("|")])
        elif block:
            heads, _, *rows = block
            tables.append(PageTable(page, heading, len(tables), heads, rows))
            block = []
        if line.startswith("#"):
            heading = line.lstrip("# ")
    return tables


def sentences_of(page: str) -> str:
    """The text in one line, so that sentences are found wherever they are broken."""
    return " ".join(text_of(page).split())
