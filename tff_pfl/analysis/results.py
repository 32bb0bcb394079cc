"""Makes tables of finished runs: of one quantity as numbers, and of several as texts."""

import functools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from tff_pfl.analysis import paired
from tff_pfl.analysis.frames import means, names_of, over_runs, select
from tff_pfl.analysis.metric_text import (
    EVALUATIONS,
    best_of,
    gain_cells,
    in_short,
    in_words,
    mean_and_deviation,
    scaled,
)
from tff_pfl.analysis.runs import Runs
from tff_pfl.analysis.tables import Table, table_of
from tff_pfl.arguments.names import check_names
from tff_pfl.arguments.quantities import Quantity
from tff_pfl.arguments.settings import NOTHING
from tff_pfl.evaluation import MARGIN, MetricName, main_metric
from tff_pfl.experiment.changes import changes_of
from tff_pfl.experiment.run_directory import OutputDirectoryError
from tff_pfl.experiment.run_files import CODE


def method_table(runs: Runs, column: str, baseline: str, evaluation: str = "final") -> pd.DataFrame:
    """Returns the table that `Comparison.table` documents.

    Args:
        runs: Finished runs.
        column: "MODEL/POOL/QUANTITY".
        baseline: The label that gains are over.
        evaluation: The name of an evaluation in `summary.json`.
    """
    own = select(runs.clients(evaluation), column)
    found = select(runs.evaluations.query("evaluation == @evaluation"), column)
    of_seeds, costs = over_runs(found, ["label"]), _costs(runs)
    heads = {"mean": MetricName.parse(column).quantity, "deviation": "std"}
    table = of_seeds[[*heads]].rename(columns=heads)
    own = means(own, ["label", "run", "client_id"])  # over the rounds of `late_mean`
    of_run = own.groupby(["label", "run"])
    medians = of_run.agg(pd.Series.median, skipna=False)
    table["median"] = medians.groupby("label").agg(pd.Series.mean, skipna=False)
    table = table.join(paired.gains_over(baseline, runs, column, evaluation))
    table["clients"] = of_run.size().groupby("label").mean()
    table["seeds"] = of_seeds["runs"]
    if runs.summaries["rounds"].nunique() > 1:
        table["rounds"] = costs["rounds"]
    table["bytes_up"] = costs["bytes_up"].astype(int)
    table["round_seconds"] = costs["round_seconds"]
    if (np.isfinite(costs["epsilon"]) & (costs["epsilon"] > 0)).any():
        table["epsilon"] = costs["epsilon"]
    return table.rename_axis("method").rename_axis(EVALUATIONS[evaluation][1] or None, axis=1)


def _costs(runs) -> pd.DataFrame:
    """Returns the number of finished runs of each label, and what a round of them costs."""
    return runs.summaries.groupby("label", sort=False).agg(
        runs=("seed", "size"),
        rounds=("rounds", "mean"),
        bytes_down=("bytes_down", "first"),
        bytes_up=("bytes_up", "first"),
        round_seconds=("round_seconds", "median"),
        epsilon=("epsilon", "max"),
    )


class Column(NamedTuple):
    """A metric of one evaluation of a run.

    Attributes:
        name: The metric.
        evaluation: The name of the evaluation in `summary.json`; "final" is the last one.
        quantity: The quantity, as the runs state it.
    """

    name: MetricName
    evaluation: str
    quantity: Quantity

    def rows(self, runs: Runs) -> pd.DataFrame:
        """Returns the rows of the metric, a value for each finished run."""
        found = runs.evaluations
        return select(found[found["evaluation"] == self.evaluation], str(self.name))

    @property
    def head(self) -> str:
        """The short head of the column, which leaves out the usual parts of its name."""
        words = [in_short(self.name, self.quantity), EVALUATIONS[self.evaluation][0]]
        return ", ".join(filter(None, words))

    @property
    def note(self) -> str:
        """A sentence about the metric and its evaluation."""
        words = [in_words(self.name, self.quantity), EVALUATIONS[self.evaluation][1]]
        text = f"{self.head}: {', '.join(filter(None, words))}."
        return text[0].upper() + text[1:]


def default_columns(runs: Runs) -> list[Column]:
    """Returns columns for the means of personalized and global models after the last round.

    The quantity is that of the `main_metric`. Each model is evaluated on the first pool that has
    it.
    """
    final = runs.evaluations.query("evaluation == 'final' and statistic == 'mean'")
    names = names_of(final)
    main = main_metric(names)
    if main is None:
        return []
    first = {name.model: name for name in reversed(names) if name.quantity == main.quantity}
    models = filter(first.__contains__, ("personalized", "global"))
    return [Column(first[model], "final", runs.quantities[main.quantity]) for model in models]


def named_columns(runs: Runs, texts: Iterable[str]) -> list[Column]:
    """Returns the columns of a command line, each `NAME` or `EVALUATION:NAME`.

    A name may be short, see `frames.column_of`. The default statistic is the mean, and the default
    evaluation is the last one.

    Raises:
        UnknownNameError: No finished run has the column or the evaluation. The message has the
            nearest names.
    """
    columns = []
    for text in texts:
        evaluation, _, name = text.rpartition(":")
        if evaluation:
            check_names("evaluation", [evaluation], dict.fromkeys(runs.evaluations["evaluation"]))
        evaluation = evaluation or "final"
        (found,) = names_of(select(runs.evaluations.query("evaluation == @evaluation"), name))
        columns.append(Column(found, evaluation, runs.quantities[found.quantity]))
    return columns


def results_table(
    runs: Runs, columns: Sequence[str] | None = None, against: str | None = None
) -> Table:
    """Returns means and deviations over seeds, bytes of clients and seconds of rounds.

    Args:
        runs: The runs. Labels without a finished run have dashes.
        columns: Columns as "MODEL/POOL/QUANTITY_STATISTIC" or "EVALUATION:MODEL/...", or as
            "QUANTITY_STATISTIC" of the main model and examples; by default the means of
            personalized and global models after the last round. The default statistic is the mean.
        against: If given, a label that every other label is compared with, client by client, on the
            first column. See `paired_test`.

    Raises:
        UnknownNameError: No finished run has a column or the label `against`.
        OutputDirectoryError: `against` is given and the first column is not a mean; see also
            `client_values`.
    """
    shown = default_columns(runs) if columns is None else named_columns(runs, columns)
    labels, best = list(runs.folders), {}
    table = pd.DataFrame({"method": labels}, labels, dtype=object)
    if runs.chosen:
        table["chosen"] = table["method"].map(runs.chosen).fillna("")
    for column in shown:
        quantity, found = column.quantity, column.rows(runs)
        values = scaled(quantity, found["value"]).groupby(found["label"], sort=False)
        head = column.head + " (%)" * quantity.is_share
        table[head] = values.agg(functools.partial(mean_and_deviation, quantity))
        if column.name.statistic not in ("std", MARGIN):
            best[head] = best_of(quantity, values.agg(pd.Series.mean, skipna=False))
    if against is not None:
        check_names("label with finished runs", [against], set(runs.evaluations["label"]))
        table = table.join(_paired(runs, _paired_column(shown), against))
    costs, planned = _costs(runs).reindex(labels), pd.Series(runs.planned, labels, dtype=int)
    done = costs["runs"].fillna(0).astype(int)
    of_planned = done.map(str) + " of " + planned.map(str)
    table["seeds"] = of_planned.where(done != planned, planned.map(str))
    relative = costs["round_seconds"] / costs["round_seconds"].get(runs.baseline, math.nan)
    numbers = {
        "kB down": (costs["bytes_down"] / 1000, "{:.1f}"),
        "kB up": (costs["bytes_up"] / 1000, "{:.1f}"),
        "seconds a round, relative": (relative, "{:.2f}"),
    }
    for head, (values, text) in numbers.items():
        table[head] = values.map(text.format, na_action="ignore")
    return table_of(table, _notes(runs, shown, against), best)


def _paired_column(columns) -> Column:
    found = columns[0].name if columns else None
    if found is None or found.statistic != "mean" or found.pool.startswith("new_clients"):
        raise OutputDirectoryError(
            "Clients are compared by the first column, which must be a mean over the clients that "
            f"train, such as personalized/local_test/accuracy_mean; found {found}."
        )
    return columns[0]


def _paired(runs, column, against) -> pd.DataFrame:
    """Returns the differences of each label from another one, as texts."""
    name = str(column.name._replace(statistic=""))
    gains = paired.gains_over(against, runs.finished, name, column.evaluation)
    shares = (100 * gains[["hurt", "helped"]]).map("{:.0f} %".format)
    cells = gain_cells(column.quantity, gains, column.quantity.better).join(shares)
    heads = {"gain": f"{column.head}, minus {against}'s"}
    return cells.rename(columns=heads | {"hurt": "clients worse", "helped": "clients better"})


def _notes(runs, columns, against):
    found = runs.evaluations
    yield from (column.note for column in columns)
    for split in dict.fromkeys(it.evaluation.removeprefix("best_on_") for it in columns):
        main = main_metric(name for name in names_of(found) if name.pool == f"local_{split}")
        if main is not None:
            yield f"The best evaluation on {split} examples is chosen by the {in_words(main)}."
    yield (
        "Values are from after the last round unless stated otherwise: mean and standard deviation "
        "over seeds, the best in bold."
    )
    if against is not None:
        yield (
            f"Minus {against}'s: the mean difference of the same clients, with the interval and "
            "p value of a t test on the means of the seeds. Holm's p, where there are several "
            "methods, is corrected for their number. Clients worse and better: their shares, over "
            "all seeds."
        )
        seeds = runs.summaries.groupby("label", sort=False)["seed"].agg(set)
        for label, own in seeds.items():
            if own != seeds[against]:
                common = ", ".join(map(str, sorted(own & seeds[against]))) or "none"
                yield (
                    f"Differences between {label} and {against} use the seeds that both have: "
                    f"{common}."
                )
    if sampled := set(found["label"][found["statistic"] == MARGIN]):
        labels = ", ".join(filter(sampled.__contains__, runs.folders))
        yield f"For {labels}, only a sample of the clients was evaluated."
    of_all = runs.finished.settings.query("key in ['data.name', 'task.name']")
    for key, values in of_all.groupby("key")["value"].unique().items():
        if len(values) > 1:
            yield (
                f"The runs differ in {key}: {', '.join(map(str, values))}. Their numbers cannot be "
                "compared."
            )
    for label, keys in _differing_settings(runs.finished).items():
        yield f"The runs of {label} differ in more than the seed: in {keys}."
    yield (
        "kB: received (down) and sent (up) by a client in a round. Seconds are relative to "
        f"{runs.baseline}."
    )


def _differing_settings(runs) -> pd.Series:
    """Finds settings that differ between finished runs of one label but should be equal.

    Such runs do not repeat each other: a config file or a module of the user was edited between the
    runs, or a run has the wrong name. Data may be a function of the seed.

    Returns:
        The keys of the settings as a text, for each label whose runs differ.
    """
    versions = runs.versions.merge(runs.summaries[["run", "rounds"]])
    versions = versions.query("rounds_before < rounds")  # of sessions that computed rounds
    last = versions.groupby("run")["rounds_before"].transform("max")
    is_code = (versions["rounds_before"] == last) & versions["key"].str.startswith(CODE)
    settings = pd.concat([runs.settings, versions[is_code]]).drop_duplicates(["run", "key"])
    free = settings["key"].str.match(
        r"(?:(?:data\.)?seed|fingerprints\.(?:data|inputs)|unnamed)(?:\.|$)"
    )
    settings = settings[~free & (settings["key"].map(changes_of) != NOTHING)]
    groups = settings["value"].map(repr).groupby([settings["label"], settings["key"]], sort=False)
    number = pd.Series({label: len(paths) for label, paths in runs.folders.items()}, dtype=int)
    is_in_all = groups.size().eq(number, level="label")  # older runs lack some keys
    differ = groups.nunique()[lambda values: is_in_all & (values > 1)].reset_index()
    return differ.groupby("label", sort=False)["key"].agg(", ".join)
