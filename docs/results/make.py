"""Writes the tables and pictures of the pages in this folder from their numbers: `make results`.

`PAGE/results.csv` has a line for each number: its labels (`study`, `case`, ...), the evaluated
model and pool of examples, the quantity, the statistic over clients, and the value. A line with a
`client` is about one client. A line with the `source` "paper" has a number from the paper.
`PAGE/configs.json` has the configs of the runs: the keys that they share, and the keys of each run.
`PAGE/paper.csv` has the paper's tables, also of settings that were not run here.
A table is between `<!-- table: NAME -->` and `<!-- /table -->` in `PAGE.md`; a function in
`tables.py` or `on_gpus.py` makes the table of that name. `pictures.py` draws first pictures.
"""

import re

from docs.results import on_gpus, tables
from docs.results.data import FOLDER, markdown
from tff_pfl.analysis import figures

TABLES = tables.TABLES | on_gpus.TABLES
PAGES = sorted(path.stem for path in FOLDER.glob("*.md"))
_MARKED = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- /table -->)", re.DOTALL)


def rendered(page: str, text: str) -> str:
    """Returns the text of a page with its tables made from the numbers."""
    return _MARKED.sub(lambda m: m[1] + markdown(TABLES[page, m[2]]()) + m[3], text)


def main():
    """Rewrites all pages, and draws their first pictures."""
    for page in PAGES:
        path = FOLDER / f"{page}.md"
        path.write_text(rendered(page, path.read_text()))
    from docs.results.pictures import PICTURES  # seaborn takes a second that tests need not spend

    for page, draw in PICTURES.items():
        figures.save(draw(), FOLDER / page / "summary.png")


if __name__ == "__main__":
    main()
