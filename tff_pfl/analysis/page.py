"""A page about a study or some runs: one file of HTML that needs no other, and no JavaScript."""

import base64
import os
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import jinja2
import markupsafe

import tff_pfl
from tff_pfl.analysis import details, figures, frames, paired
from tff_pfl.analysis.curves import plot_curves
from tff_pfl.analysis.distributions import plot_histograms
from tff_pfl.analysis.results import default_columns, results_table
from tff_pfl.analysis.runs import find_runs
from tff_pfl.analysis.words import in_words
from tff_pfl.experiment.run_directory import OutputDirectoryError
from tff_pfl.files import whole_file


class _Picture(NamedTuple):
    """A figure within the page, as an image of its own: its ids clash with nobody's."""

    data: str
    words: str
    panels: int


def write_page(
    runs: Any,
    path: str | os.PathLike,
    *,
    columns: Sequence[str] | None = None,
    target: float | None = None,
    against: str | None = None,
) -> None:
    """Writes the page, of what is finished.

    Args:
        runs: See `find_runs`.
        path: The file; its folder is made.
        columns: Of the table of results, see `results_table`; figures are of personalized models.
        target: The accuracy to which rounds, bytes and seconds are counted; by default 95 % of the
            best final mean.
        against: See `results_table`.

    Raises:
        OutputDirectoryError: If no run is finished; or as `results_table`.
        UnknownNameError: See `results_table`.
    """
    runs = find_runs(runs)
    evaluations = frames.evaluations(runs)
    shown = default_columns(evaluations)
    if not shown:
        raise OutputDirectoryError(f"{runs.title} has no finished run.")
    name = shown[0].name._replace(statistic="")
    column, words, finished = str(name), in_words(name), runs.finished
    pairs = paired.against_local(runs, str(name._replace(quantity="accuracy")))
    curves = plot_curves(frames.metrics(finished), column)
    histograms = plot_histograms(frames.clients(finished, "final"), column)
    content = {
        "title": runs.title,
        "results": results_table(runs, columns, against),
        "curves": _picture(curves, f"{words}, mean over clients, over the rounds"),
        "histograms": _picture(histograms, f"histograms over clients: {words}"),
        "seeds": sorted(set(evaluations["seed"])),
        "versions": details.versions_tables(runs),
        "version": tff_pfl.__version__,
    }
    content["different"], content["settings"] = details.settings_tables(runs)
    if len(pairs):
        against_local = "accuracy of each client's own model against that under Local"
        content["local"] = _picture(paired.plot_against_local(pairs), against_local)
        content["hurt"] = paired.hurt_table(pairs)
    if name.quantity == "accuracy":
        reached = details.default_target(runs, column) if target is None else target
        content["target"] = details.target_table(runs, reached, column)
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tff_pfl.analysis", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["breakable"] = _breakable
    text = environment.get_template("page.html").render(content)
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with whole_file(os.fspath(path)) as file:
        file.write(text.lstrip())


def _picture(figure, words) -> _Picture:
    return _Picture(base64.b64encode(figures.as_svg(figure)).decode(), words, len(figure.axes))


def _breakable(text):
    """A name, such as a key of a config, that a narrow window may break between words."""
    escaped = str(markupsafe.escape(text))
    return markupsafe.Markup(re.sub(r"(?<=[a-z])([._])(?=[a-z])", r"\1<wbr>", escaped))
