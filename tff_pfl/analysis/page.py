"""Writes a self-contained HTML page, without JavaScript, about a study or some runs.

The module also makes the page's tables of costs to reach an accuracy, settings and versions.
"""

import base64
import os
import re
from collections.abc import Sequence
from typing import Any

import jinja2
import markupsafe
import pandas as pd

import tff_pfl
from tff_pfl.analysis import figures, paired
from tff_pfl.analysis.curves import plot_curves
from tff_pfl.analysis.distributions import plot_histograms
from tff_pfl.analysis.frames import column_of, select
from tff_pfl.analysis.metric_text import ABSENT, in_words
from tff_pfl.analysis.results import default_columns, results_table
from tff_pfl.analysis.runs import Runs
from tff_pfl.analysis.tables import Table, table_of
from tff_pfl.evaluation import MetricName, without_rounding
from tff_pfl.experiment.run_directory import OutputDirectoryError
from tff_pfl.output.files import whole_file

_TARGET_SHARE = 0.95  # the default target, as a share of the best final mean
_COSTS = {
    "rounds": ("rounds", "{:.1f}"),
    "megabytes": ("MB per client", "{:.3g}"),
    "seconds": ("seconds", "{:.1f}"),
}
_DIGITS = 12  # enough of a commit's hash to find it


def write_page(
    runs: Runs,
    path: str | os.PathLike,
    *,
    columns: Sequence[str] | None = None,
    target: float | None = None,
    against: str | None = None,
) -> None:
    """Writes the page about all finished runs.

    Where each run has a single evaluation, a sentence stands in place of the curves and the costs
    to reach a target.

    Args:
        runs: The runs.
        path: The file to write. Its folder is made if it does not exist.
        columns: The columns of the table of results; see `results_table`. The figures do not
            depend on them, and show personalized models if there are any.
        target: The accuracy to reach, for the table of rounds, bytes and seconds; by default 95 %
            of the best final mean.
        against: See `results_table`.

    Raises:
        OutputDirectoryError: No run is finished; see also `results_table`.
        UnknownNameError: See `results_table`.
    """
    shown = default_columns(runs)
    if not shown:
        raise OutputDirectoryError(f"{runs.title} has no finished run.")
    name, quantity = shown[0].name._replace(statistic=""), shown[0].quantity
    column, words = str(name), in_words(name)
    metrics = runs.finished.metrics
    is_evaluated_once = select(metrics, column).groupby("run")["round"].nunique().max() == 1
    histograms = plot_histograms(runs.finished, column, "final")
    content = {
        "title": runs.title,
        "results": results_table(runs, columns, against),
        "histograms": _picture(histograms, f"histograms over clients: {words}"),
        "seeds": sorted(set(runs.evaluations["seed"])),
        "settings": settings_tables(runs),
        "versions": versions_tables(runs),
        "version": tff_pfl.__version__,
    }
    if not is_evaluated_once:
        curves = f"{words}, mean over clients, over the rounds"
        content["curves"] = _picture(plot_curves(metrics, column), curves)
    pairs = paired.against_local(runs, column)
    if len(pairs):
        pair = f"{quantity.name} of each client's own model, and its {quantity.name} under Local"
        content["local"] = _picture(paired.plot_against_local(pairs, quantity), pair)
        content["hurt"] = paired.hurt_table(pairs, quantity)
    if quantity.is_share and not is_evaluated_once:
        reached = default_target(runs, column) if target is None else target
        content["target"] = target_table(runs, reached, column)
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tff_pfl.analysis", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["breakable"] = _breakable
    text = environment.get_template("page.html").render(content)
    path = os.path.expanduser(path)
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with whole_file(path) as file:
        file.write(text.lstrip())


def _picture(figure, words) -> dict[str, Any]:
    """Encodes a figure as a separate image, so that the ids of two figures cannot clash."""
    data = base64.b64encode(figures.as_svg(figure)).decode()
    return {"data": data, "words": words, "panels": len(figure.axes)}


def _breakable(text):
    """Lets narrow windows break a name, such as a config key, between its words."""
    escaped = str(markupsafe.escape(text))
    return markupsafe.Markup(re.sub(r"(?<=[a-z])([._])(?=[a-z])", r"\1<wbr>", escaped))


def costs_to_target(runs: Runs, target: float, column: str | None = None) -> pd.DataFrame:
    """Returns what each finished run cost until its mean over clients reached `target`.

    Args:
        runs: The runs.
        target: The value to reach, not in percent.
        column: "MODEL/POOL/QUANTITY".

    Returns:
        Columns `run`, `label`, `seed`; `rounds`, until the first evaluation that reaches the
        target; `megabytes`, which a client receives and sends in these rounds; and `seconds` of
        these rounds, without evaluations. The costs are NaN if the run never reaches the target.
        The seconds are also NaN if the run's files lack some of the rounds.
    """
    runs = runs.finished
    curves, timings = select(runs.metrics, column), runs.timings
    reached = without_rounding(curves["value"].to_numpy() - target, target) >= 0
    rounds = curves[reached].groupby("run")["round"].min()
    costs = runs.summaries.set_index("run").assign(rounds=rounds)
    until_then = timings[timings["round"] <= timings["run"].map(rounds)]
    seconds = until_then.groupby("run")["round_seconds"]
    costs["megabytes"] = costs["rounds"] * (costs["bytes_down"] + costs["bytes_up"]) / 1e6
    costs["seconds"] = seconds.sum().where(seconds.size().eq(rounds))
    return costs.reset_index()[["run", "label", "seed", "rounds", "megabytes", "seconds"]]


def default_target(runs: Runs, column: str | None = None) -> float:
    """Returns 95 % of the best final mean over seeds."""
    final = runs.evaluations.query("evaluation == 'final'")
    return _TARGET_SHARE * select(final, column).groupby("label")["value"].mean().max()


def target_table(runs: Runs, target: float, column: str | None = None) -> Table:
    """Returns the mean costs of each label, over the seeds that reach a target."""
    column = column_of(runs.metrics, column)
    of_runs = costs_to_target(runs, target, column)
    costs = of_runs.groupby("label", sort=False)
    reached = costs["rounds"].count().map(str) + " of " + costs.size().map(str)
    table = reached.rename_axis("method").to_frame("seeds that reach it")
    for name, (head, text) in _COSTS.items():
        # A missing number of a run that reaches the target makes the mean unknown.
        is_known = costs[name].count() == costs["rounds"].count()
        table[head] = costs[name].mean().where(is_known).map(text.format, na_action="ignore")
    words = in_words(MetricName.parse(f"{column}_mean"))
    notes = [
        f"Costs up to the first evaluation with {100 * target:.1f} % or more: {words}. Means over "
        "the seeds that reach it. MB: received and sent by a client that is in every round."
    ]
    first = select(runs.metrics, column).groupby("run")["round"].min()
    if (of_runs["rounds"] == of_runs["run"].map(first)).all():
        notes.append(
            "All runs reach it by their first evaluation: a higher target, or evaluations in more "
            "rounds (evaluation.every), would tell them apart."
        )
    return table_of(table.reset_index(), notes)


def settings_tables(runs: Runs) -> list[Table]:
    """Returns tables of the settings that all labels share, and of those that differ.

    The values are those of all seeds of a label; "by seed" stands for several.
    """
    settings = runs.finished.settings.query("key != 'seed'")
    values = settings["value"].map(_text)
    differs = values.groupby([settings["label"], settings["key"]]).transform("nunique") > 1
    settings = settings.assign(value=values.mask(differs, "by seed"))
    return _common_and_different(settings.drop_duplicates(["label", "key"]), "label")


def versions_tables(runs: Runs) -> list[Table]:
    """Returns tables of the versions that all runs share, and of those that differ.

    A resumed run has a column for each of its sessions.
    """
    versions = runs.finished.versions.copy()
    parts = [
        f"{label}, seed {seed}" + f", after round {before}" * bool(before)
        for label, seed, before in versions[["label", "seed", "rounds_before"]].values
    ]
    is_commit = versions["key"] == "commit"
    versions.loc[is_commit, "value"] = versions.loc[is_commit, "value"].str[:_DIGITS]
    return _common_and_different(versions.assign(part=parts), "part")


def _common_and_different(frame, columns) -> list[Table]:
    """Returns a table of the keys with equal values, and one of the other keys if there are any.

    Keys and columns are in the order of their first appearance.
    """
    texts = frame.assign(value=frame["value"].map(_text))
    wide = texts.pivot(index="key", columns=columns, values="value").rename_axis(columns=None)
    wide = wide.reindex(frame["key"].unique())[frame[columns].unique()].fillna(ABSENT)
    differs = wide.nunique(axis=1) > 1
    common = wide[~differs].iloc[:, :1].set_axis(["all"][: wide.shape[1]], axis=1)
    tables = [Table(common.reset_index())]
    return tables + [Table(wide[differs].reset_index())] * bool(differs.any())


def _text(value) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return ABSENT if value is None else str(value)
