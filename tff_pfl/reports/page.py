"""A page about a comparison: one file of HTML that needs no other, and no JavaScript."""

import base64
import html
import os
from collections.abc import Iterator, Sequence

import tff_pfl
from tff_pfl.experiment import OutputDirectoryError
from tff_pfl.experiment.run_directory import flatten
from tff_pfl.files import whole_file
from tff_pfl.reports import figures
from tff_pfl.reports.against_local import against_local, figure_against_local
from tff_pfl.reports.cells import ABSENT
from tff_pfl.reports.columns import Column, default_columns
from tff_pfl.reports.comparison import Comparison
from tff_pfl.reports.curves import figure_of_curves
from tff_pfl.reports.histograms import figure_of_distributions, pooled_distribution
from tff_pfl.reports.markup import Cell, Table, to_html
from tff_pfl.reports.table import results_table
from tff_pfl.reports.target import default_target, target_table
from tff_pfl.reports.versions import versions_tables
from tff_pfl.reports.words import in_words

_STYLE = """
:root { color-scheme: light dark; --text: #1a1a1a; --back: #fff; --line: #bbb; --quiet: #555; }
@media screen and (prefers-color-scheme: dark) {
  :root { --text: #e8e8e8; --back: #16181b; --line: #555; --quiet: #aaa; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 70rem; padding: 1rem; font: 1rem/1.5 sans-serif;
  color: var(--text); background: var(--back); overflow-wrap: anywhere; }
h1, h2 { line-height: 1.2; }
p { max-width: 46rem; color: var(--quiet); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; overflow-wrap: normal; }
th, td { padding: 0.25rem 0.6rem; text-align: right; border-bottom: 1px solid var(--line); }
td { white-space: nowrap; }
th:first-child { text-align: left; position: sticky; left: 0; background: var(--back); }
tbody th { font-weight: normal; }
figure { margin: 1rem 0; overflow-x: auto; }
img { display: block; max-width: 100%; height: auto; background: #fff; border-radius: 4px; }
@media screen and (max-width: 40rem) {
  .panels img { min-width: 34rem; }
  tbody th { min-width: 8rem; overflow-wrap: anywhere; }
}
@media print {
  body { max-width: none; font-size: 9pt; }
  .scroll, figure { overflow: visible; }
  th, td { padding: 0.1rem 0.25rem; }
  figure, tr { break-inside: avoid; }
  h2 { break-after: avoid; }
}
"""


def write_page(
    comparison: Comparison,
    path: str | os.PathLike,
    *,
    columns: Sequence[Column] | None = None,
    target: float | None = None,
    against: str | None = None,
) -> None:
    """Writes the page, of what is finished.

    Args:
        comparison: What is compared.
        path: The file; its folder is made.
        columns: Of the table of results, see `results_table`; pictures are of personalized models.
        target: The accuracy to which rounds, bytes and seconds are counted; see `default_target`.
        against: See `results_table`.

    Raises:
        OutputDirectoryError: If no run is finished; or as `results_table`.
        UnknownNameError: See `results_table`.
    """
    shown = default_columns(comparison)
    if not shown:
        raise OutputDirectoryError("No run of the comparison is finished.")
    title = html.escape(comparison.title)
    body = "\n".join(_sections(comparison, shown[0].name, columns, target, against))
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with whole_file(os.fspath(path)) as file:
        file.write(
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n"
            f"<body>\n<h1>{title}</h1>\n{body}\n</body>\n</html>\n"
        )


def _sections(comparison, name, columns, target, against) -> Iterator[str]:
    column = str(name._replace(statistic=""))
    words = in_words(name._replace(statistic=""))
    runs = {
        label: [run.path for run in results if name in run.final.metrics]
        for label, results in comparison.finished.items()
    }
    runs = {label: run_dirs for label, run_dirs in runs.items() if run_dirs}
    yield "<h2>Results</h2>"
    yield to_html(results_table(comparison, columns, against))
    yield "<h2>Over the rounds</h2>"
    curves = figure_of_curves(runs, column)
    yield _picture(curves, f"{words}, mean over clients, over the rounds")
    yield "<h2>Each client against Local</h2>"
    yield _against_local(comparison, name)
    yield "<h2>How clients differ</h2>"
    distributions = {label: pooled_distribution(of, column) for label, of in runs.items()}
    histograms = figure_of_distributions(distributions, column)
    yield _picture(histograms, f"histograms over clients: {words}")
    if name.quantity == "accuracy":
        yield "<h2>To a target</h2>"
        if target is None:
            target = default_target(comparison, name)
        yield to_html(target_table(comparison, name, target))
    yield "<h2>Settings</h2>"
    yield _settings(comparison)
    yield "<h2>Versions</h2>"
    yield _versions(comparison)


def _against_local(comparison, name):
    found = against_local(comparison, name._replace(quantity="accuracy"))
    if not found:
        return "<p>No variant of the algorithm local is known to have the same clients.</p>"
    rows = [
        [Cell(label), *(Cell(f"{100 * x:.1f} %") for x in (of.share_hurt, of.share_gaining))]
        for label, of in found.items()
    ]
    note = "Shares of clients, of all seeds, with a lower and a higher accuracy than under Local."
    picture = _picture(
        figure_against_local(found), "accuracy of each client's own model against that under Local"
    )
    return picture + to_html(Table(["method", "hurt", "gaining"], rows, [note]))


@figures.styled
def _picture(figure, alternative):
    """A picture within the page, as an image of its own: its ids are no one else's.

    One of several panels scrolls in a narrow window, where it would be too small.
    """
    kind = ' class="panels" tabindex="0"' if len(figure.axes) > 1 else ""
    data = base64.b64encode(figures.as_svg(figure)).decode()
    text = html.escape(alternative)
    image = f'<img src="data:image/svg+xml;base64,{data}" alt="{text}">'
    return f"<figure{kind}>{image}</figure>\n"


def _settings(comparison):
    """What differs between variants as a table, and then all; of each the first seed's."""
    of_variant = {
        label: {
            key: str(value)
            for key, value in flatten(results[0].settings, ".").items()
            if key != "seed"
        }
        for label, results in comparison.finished.items()
    }
    keys = dict.fromkeys(key for settings in of_variant.values() for key in settings)
    different = [key for key in keys if len({of.get(key) for of in of_variant.values()}) > 1]
    tables = [
        Table(
            ["key", *of_variant],
            [
                list(map(Cell, [key, *(of.get(key, ABSENT) for of in of_variant.values())]))
                for key in shown
            ],
        )
        for shown in (different, keys)
    ]
    seeds = sorted({run.seed for results in comparison.finished.values() for run in results})
    return (
        f"<p>Seeds {', '.join(map(str, seeds))}. What differs between variants:</p>\n"
        f"{to_html(tables[0])}<details>\n<summary>All settings</summary>\n"
        f"{to_html(tables[1])}</details>"
    )


def _versions(comparison):
    tables = "".join(map(to_html, versions_tables(comparison)))
    return f"{tables}<p>This page was made by tff_pfl {tff_pfl.__version__}.</p>"
