"""Makes the results table of finished runs."""

import math
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from tff_pfl.analysis import frames
from tff_pfl.analysis.metric_text import (
    ABSENT,
    EVALUATIONS,
    best_of,
    in_short,
    in_words,
    is_share,
    mean_and_deviation,
    scaled,
)
from tff_pfl.analysis.paired import client_values, paired_differences, paired_test
from tff_pfl.analysis.runs import find_runs
from tff_pfl.analysis.tables import Table, table_of
from tff_pfl.arguments.names import check_names
from tff_pfl.evaluation import MARGIN, MetricName, direction, main_metric
from tff_pfl.experiment.run_directory import OutputDirectoryError


class Column(NamedTuple):
    """A metric of one evaluation of a run.

    Attributes:
        name: The metric.
        evaluation: The name of the evaluation in `summary.json`; "final" is the last one.
        directions: The directions that metrics state; see `Runs.directions`.
    """

    name: MetricName
    evaluation: str = "final"
    directions: Mapping[str, int] = types.MappingProxyType({})

    @property
    def head(self) -> str:
        """The short head of the column, which leaves out the usual parts of its name."""
        words = [in_short(self.name, self.directions), EVALUATIONS[self.evaluation][0]]
        return ", ".join(filter(None, words))

    @property
    def note(self) -> str:
        """A sentence about the metric and its evaluation."""
        words = [in_words(self.name, self.directions), EVALUATIONS[self.evaluation][1]]
        text = f"{self.head}: {', '.join(filter(None, words))}."
        return text[0].upper() + text[1:]


def default_columns(
    evaluations: pd.DataFrame, directions: Mapping[str, int] | None = None
) -> list[Column]:
    """Returns columns for the means of personalized and global models after the last round.

    The quantity is that of the `main_metric`. Each model is evaluated on the first pool that has
    it.

    Args:
        evaluations: The result of `evaluations`.
        directions: See `Column`.
    """
    final = evaluations.query("evaluation == 'final' and statistic == 'mean'")
    names = [MetricName(*name) for name in final[list(MetricName._fields)].values]
    main = main_metric(names)
    of_main = [name for name in names if main and name.quantity == main.quantity]
    first = {name.model: name for name in reversed(of_main)}
    models = filter(first.__contains__, ("personalized", "global"))
    return [Column(first[model], directions=directions or {}) for model in models]


def named_columns(
    evaluations: pd.DataFrame,
    texts: Iterable[str],
    directions: Mapping[str, int] | None = None,
) -> list[Column]:
    """Returns the columns of a command line, each `NAME` or `EVALUATION:NAME`.

    A name may be short, see `frames.column_of`. The default statistic is the mean, and the default
    evaluation is the last one.

    Args:
        evaluations: The result of `evaluations`.
        texts: The columns.
        directions: See `Column`.

    Raises:
        UnknownNameError: No finished run has the column or the evaluation. The message has the
            nearest names.
    """
    columns = []
    for text in texts:
        evaluation, _, name = text.rpartition(":")
        if evaluation:
            check_names("evaluation", [evaluation], dict.fromkeys(evaluations["evaluation"]))
        evaluation = evaluation or "final"
        of_column = frames.select(evaluations[evaluations["evaluation"] == evaluation], name)
        names = of_column[[*MetricName._fields]].values[0]
        columns.append(Column(MetricName(*names), evaluation, directions or {}))
    return columns


def results_table(
    runs: Any, columns: Sequence[str] | None = None, against: str | None = None
) -> Table:
    """Returns means and deviations over seeds, bytes of clients and seconds of rounds.

    Args:
        runs: See `find_runs`. Labels without a finished run have dashes.
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
    runs = find_runs(runs)
    found, costs = frames.evaluations(runs), frames.summaries(runs)
    stated = runs.directions
    if columns is None:
        shown = default_columns(found, stated)
    else:
        shown = named_columns(found, columns, stated)
    table = pd.DataFrame({"method": list(runs.folders)}, list(runs.folders), dtype=object)
    if runs.chosen:
        table["chosen"] = pd.Series(runs.chosen).reindex(table.index, fill_value="")
    best = {}
    for column in shown:
        name, head = column.name, column.head + " (%)" * is_share(column.name)
        groups = _of_column(found, column).groupby("label")["value"]
        values = {label: scaled(name, group) for label, group in groups}
        table[head] = pd.Series(
            {label: mean_and_deviation(name, numbers) for label, numbers in values.items()}
        )
        best[head] = best_of(name, values, stated)
    seeds = {label: set(group) for label, group in costs.groupby("label")["seed"]}
    if against is not None:
        check_names("label with finished runs", [against], set(found["label"]))
        _add_paired(table, runs, found, _paired_column(shown), against, seeds)
    groups = costs.groupby("label")
    done = groups.size().reindex(table.index, fill_value=0)
    table["seeds"] = [
        f"{planned}" if done[label] == planned else f"{done[label]} of {planned}"
        for label, planned in runs.planned.items()
    ]
    table["kB down"] = (groups["bytes_down"].first() / 1000).map("{:.1f}".format)
    table["kB up"] = (groups["bytes_up"].first() / 1000).map("{:.1f}".format)
    seconds = groups["round_seconds"].median()
    relative = (seconds / seconds.get(runs.baseline, math.nan)).dropna()
    table["seconds a round, relative"] = relative.map("{:.2f}".format)
    return table_of(table, _notes(runs, found, shown, seeds, against), best)


def _of_column(found, column) -> pd.DataFrame:
    evaluated = found[found["evaluation"] == column.evaluation]
    return frames.select(evaluated, str(column.name))


def _paired_column(columns) -> Column:
    found = columns[0].name if columns else None
    if found is None or found.statistic != "mean" or found.pool.startswith("new_clients"):
        raise OutputDirectoryError(
            "Clients are compared by the first column, which must be a mean over the clients that "
            f"train, such as personalized/local_test/accuracy_mean; found {found}."
        )
    return columns[0]


def _add_paired(table, runs, found, column, against, seeds):
    heads = [f"{column.head}, minus {against}'s", "95 % interval", "p"]
    heads += ["clients worse", "clients better"]
    table[heads] = ABSENT
    folders, quantity = runs.finished.folders, column.name.quantity
    stated = runs.directions
    compared = {label: folders[label] for label in _of_column(found, column)["label"].unique()}
    if against not in compared:
        return
    name = str(column.name._replace(statistic=""))
    values = client_values(compared, name, column.evaluation)
    for label in compared:
        common = sorted(seeds[label] & seeds[against])
        if label == against or not common:
            continue
        differences = paired_differences(values, label, against, common, quantity, stated)
        test = paired_test(differences, direction(quantity, stated))
        shares = [f"{100 * share:.0f} %" for share in (test.share_worse, test.share_better)]
        table.loc[label, heads] = [*test.cells(column.name), *shares]


def _notes(runs, found, columns, seeds, against):
    yield from (column.note for column in columns)
    for split in dict.fromkeys(it.evaluation.removeprefix("best_on_") for it in columns):
        names = map(MetricName._make, found[[*MetricName._fields]].drop_duplicates().values)
        main = main_metric(name for name in names if name.pool == f"local_{split}")
        if main is not None:
            yield f"The best evaluation on {split} examples is chosen by the {in_words(main)}."
    yield (
        "Values are from after the last round unless stated otherwise: mean and standard deviation "
        "over seeds, the best in bold."
    )
    if against is not None:
        yield (
            f"Minus {against}'s: the mean difference of the same clients, with the interval and "
            "p value of a t test on the means of the seeds. Clients worse and better: their "
            "shares, over all seeds."
        )
        for label in filter(seeds.get, runs.folders):
            if seeds[label] != seeds[against]:
                common = ", ".join(map(str, sorted(seeds[label] & seeds[against]))) or "none"
                yield (
                    f"Differences between {label} and {against} use the seeds that both have: "
                    f"{common}."
                )
    sampled = set(found[found["statistic"] == MARGIN]["label"])
    if sampled:
        labels = ", ".join(filter(sampled.__contains__, runs.folders))
        yield f"For {labels}, only a sample of the clients was evaluated."
    for label, keys in frames.differing_settings(runs.finished).items():
        yield f"The runs of {label} differ in more than the seed: in {', '.join(keys)}."
    yield (
        "kB: received (down) and sent (up) by a client in a round. Seconds are relative to "
        f"{runs.baseline}."
    )
