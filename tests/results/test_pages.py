"""Tests that the tables of docs/results equal the output of `make results`."""

import re

import pandas as pd
import pytest

from docs.results import data, make


def text_of(page):
    return (data.FOLDER / f"{page}.md").read_text()


@pytest.mark.thorough
@pytest.mark.parametrize("page", make.PAGES)
def test_tables_equal_the_output_of_the_command(page):
    text = text_of(page)
    assert make.rendered(page, text) == text


def test_each_table_is_on_a_page():
    marked = {(p, name) for p in make.PAGES for name in re.findall(r"table: (\w+)", text_of(p))}
    assert marked == set(make.TABLES)


def test_changed_numbers_are_corrected():
    text = text_of("pgfed")
    assert make.rendered("pgfed", text.replace("| 77.82 |", "| 77.83 |")) == text
    assert "| 77.82 |" in text


def test_numbers_are_formatted():
    assert [data.share(0.0316), data.share(-0.01249, "+")] == [".032", "-.012"]
    assert [data.p_value(0.0004), data.p_value(0.0416)] == ["below 0.001", "0.042"]
    assert (
        data.markdown(pd.DataFrame({"a": ["b"], "c": [None]}))
        == "| a | c |\n| --- | ---: |\n| b | - |\n"
    )
