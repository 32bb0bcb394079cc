"""Writes the tables of the pages in this folder from the numbers beside them: `make results`.

`PAGE/results.csv` has a line a number: what it is of (`study`, `case`, ...), which model was
evaluated on which pool of examples, the quantity, the statistic over clients, and the value. A
line with a `client` is of that client alone, one with the `source` "paper" was stated by the paper.
`PAGE/configs.json` has the configs of the runs: what all of them have, and each one's own keys. A
table stands between `<!-- table: NAME -->` and `<!-- /table -->` in `PAGE.md`; the function of that
name in `tables.py` makes it.
"""

import re

import pandas as pd

from docs.results.data import FOLDER
from docs.results.tables import TABLES

PAGES = sorted(path.stem for path in FOLDER.glob("*.md"))
_MARKED = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- /table -->)", re.DOTALL)


def rendered(page: str, text: str) -> str:
    """Returns the text of a page with its tables as the numbers have them."""
    return _MARKED.sub(lambda m: m[1] + markdown(TABLES[page, m[2]]()) + m[3], text)


def markdown(table: pd.DataFrame) -> str:
    """Returns a table as Markdown; what is missing is a dash."""
    rule = ["---"] + ["---:"] * (table.shape[1] - 1)
    rows = [table.columns, rule, *table.fillna("-").to_numpy()]
    return "".join(f"| {' | '.join(map(str, row))} |\n" for row in rows)


def main():
    for page in PAGES:
        path = FOLDER / f"{page}.md"
        path.write_text(rendered(page, path.read_text()))


if __name__ == "__main__":
    main()
