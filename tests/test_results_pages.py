"""What the pages of results state is what the committed files beside them have.

`tests/results/tables.py` says which row of a table comes from which file, and
`tests/results/sentences.py` has parts of sentences with their numbers.
"""

import collections

import pytest

from tests.results import pages
from tests.results.sentences import SENTENCES
from tests.results.tables import TABLES

_TIMES = "seconds are of a machine, and differ from run to run; the command is there"
_NOT_KEPT = "the runs were not kept; the commands are there"
# Numbers of tables that are in no committed file, by page and heading: how many, and why. A number
# that gets a file leaves the list, and none is to join it.
WITHOUT_A_FILE = {
    ("attacks", "Cost"): (54, _TIMES),
    ("fedpg", "Attacks"): (61, _NOT_KEPT),
    ("fedpg", "CIFAR-10"): (16, "of the rounds before the last one, nothing was kept"),
    ("fedpg", "Cost"): (36, _TIMES),
    ("fedpg", "FedAMP, tuned"): (2, "the defaults of FedAMP, which its label does not repeat"),
    ("fedpg", "What each part is for, on handwritten digits"): (15, "a slow test prints them"),
    ("pfedmb", "Learning rates with 15 clients"): (156, _NOT_KEPT),
    ("pfedmb", "Ten clients in pairs"): (17, f"other rates, and validation data: {_NOT_KEPT}"),
    ("pgfed", "Cost"): (8, _TIMES),
    ("pgfed", "Learning rates"): (8, _NOT_KEPT),
    ("pgfed", "New clients"): (5, "the paper's, of another table than its configs have"),
    ("plgu", "Learning rates"): (27, _NOT_KEPT),
}

each_page = pytest.mark.parametrize("page", pages.PAGES)


def cells_of(table):
    """`(row's label, column's head, cell of the page, cell of the files)` of all but labels."""
    rows = [[None] * len(table.heads)] * len(table.rows)
    if (table.page, table.number) in TABLES:
        rows = TABLES[table.page, table.number]()
    assert len(rows) == len(table.rows), f"{table.heading}: {len(rows)} rows are in the files"
    for of_page, of_file in zip(table.rows, rows, strict=True):
        label = of_page[0]
        assert of_file[0] in (None, label), f"{table.heading}: {label} is {of_file[0]}"
        for head, *cells in list(zip(table.heads, of_page, of_file, strict=True))[1:]:
            yield label, head, *cells


def wrong_cells(page):
    """Where a table of a page differs from the files, in words."""
    return [
        f"docs/results/{page}.md, {table.heading!r}, row {label!r}, column {head!r}: the page has "
        f"{of_page!r}, the files have {of_file!r}"
        for table in pages.tables_of(page)
        for label, head, of_page, of_file in cells_of(table)
        if of_file is not None and of_file != of_page
    ]


@each_page
def test_tables(page):
    assert wrong_cells(page) == []


@each_page
def test_numbers_of_tables_without_a_file(page):
    found = collections.Counter(
        (page, table.heading)
        for table in pages.tables_of(page)
        for _, _, of_page, of_file in cells_of(table)
        if of_file is None and any(map(str.isdigit, of_page))
    )
    assert found == {key: number for key, (number, _) in WITHOUT_A_FILE.items() if key[0] == page}


@each_page
def test_sentences(page):
    text = pages.sentences_of(page)
    assert [part for part in SENTENCES[page]() if part not in text] == []


def test_a_wrong_number_is_found(monkeypatch):
    text = pages.text_of("pgfed").replace("| 77.82 |", "| 77.83 |")
    monkeypatch.setattr(pages, "text_of", lambda page: text)
    assert wrong_cells("pgfed") == [
        "docs/results/pgfed.md, 'Table 1 on CIFAR-10, 25 clients', row 'FedPer, the other rate', "
        "column 'mean': the page has '77.83', the files have '77.82'"
    ]
