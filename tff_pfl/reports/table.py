"""The table of a comparison: a row a variant, means and standard deviations over seeds."""

from collections.abc import Sequence

import numpy as np

from tff_pfl.evaluation import direction
from tff_pfl.experiment import OutputDirectoryError
from tff_pfl.reports.cells import ABSENT, best, is_share, mean_and_deviation, scaled
from tff_pfl.reports.columns import Column, default_columns
from tff_pfl.reports.comparison import Comparison
from tff_pfl.reports.markup import Cell, Table
from tff_pfl.reports.paired import paired_differences, paired_test
from tff_pfl.reports.paper import paper_value

_PAIRED_HEADS = ("95 % interval", "p", "clients worse")


def results_table(
    comparison: Comparison,
    columns: Sequence[Column] | None = None,
    against: str | None = None,
) -> Table:
    """The table, with what clients send and how long rounds take.

    Args:
        comparison: What is compared; variants without a finished run have dashes.
        columns: By default those of `default_columns`. Where a variant's config has the paper's
            number, the difference to it is shown.
        against: The label of a variant; the first column of every other variant is compared with
            its own, client by client: see `paired_test`.

    Raises:
        UnknownNameError: If no run has a column, or there is no variant `against`.
        OutputDirectoryError: If there is `against`, and the first column is no mean; and see
            `paired_differences`.
    """
    if columns is None:
        columns = default_columns(comparison)
    if against is not None:
        comparison.check_label(against)
        _check_paired(columns)
    blocks = [_labels(comparison), *([_chosen(comparison)] if comparison.chosen else [])]
    for column in columns:
        blocks += _metric(comparison, column)
    if against is not None:
        blocks += _paired(comparison, columns[0], against)
    blocks += _costs(comparison)
    heads, *rows = zip(*blocks, strict=True)
    return Table([head.text for head in heads], rows, _notes(comparison, columns, against))


def _check_paired(columns):
    if not columns or columns[0].name.statistic != "mean":
        found = f"{columns[0].name}" if columns else "none"
        raise OutputDirectoryError(
            "Clients are compared by the first column, which must be a mean over them, such as "
            f"personalized/local_test/accuracy; found {found}."
        )
    if columns[0].name.pool.startswith("new_clients"):
        raise OutputDirectoryError(
            f"Clients are compared by the first column, {columns[0].name}, but not those that took "
            "no part in training. Name another column first, such as "
            "personalized/local_test/accuracy."
        )


def _labels(comparison):
    return [Cell("method"), *map(Cell, comparison.results)]


def _chosen(comparison):
    return [Cell("chosen"), *(Cell(comparison.chosen.get(x, "")) for x in comparison.results)]


def _metric(comparison, column):
    """The column of a metric, and of its difference to the paper if a config has that."""
    name = column.name
    scale = 100.0 if is_share(name) else 1.0
    values, from_paper = {}, {}
    for label, results in comparison.finished.items():
        own = [value for value in (run.value(*column) for run in results) if value is not None]
        if own:
            values[label] = scaled(name, own)
            expected = paper_value(results[0].settings.get("paper", {}), name)
            if expected is not None:
                from_paper[label] = values[label].mean() - scale * expected
    best_labels = best(name, values)
    cells = [
        Cell(mean_and_deviation(name, values.get(label)), label in best_labels)
        for label in comparison.results
    ]
    yield [Cell(column.head + " (%)" * is_share(name)), *cells]
    if from_paper:
        signed = {label: f"{difference:+.2f}" for label, difference in from_paper.items()}
        yield [
            Cell(f"{column.head}, less the paper's"),
            *(Cell(signed.get(label, ABSENT)) for label in comparison.results),
        ]


def _paired(comparison, column, against):
    others = comparison.results[against]

    def signed(value):
        return f"{100 * value:+.2f}" if is_share(column.name) else f"{value:+.3g}"

    rows = [[Cell(head) for head in (f"{column.head}, less {against}'s", *_PAIRED_HEADS)]]
    for label, results in comparison.results.items():
        cells = [ABSENT] * len(rows[0])
        has_both = all(run.value(*column) is not None for run in (*results, *others))
        differences = paired_differences(results, others, column) if has_both else []
        if differences and label != against:
            found = paired_test(differences, direction(column.name.quantity))
            cells[0] = signed(found.difference)
            cells[3] = f"{100 * found.share_worse:.0f} %"
            if not np.isnan(found.p_value):
                cells[1] = f"{signed(found.low)} to {signed(found.high)}"
                cells[2] = "< 0.001" if found.p_value < 0.001 else f"{found.p_value:.3f}"
        rows.append(list(map(Cell, cells)))
    return zip(*rows, strict=True)


def _costs(comparison):
    unit = _median_seconds(comparison.results[comparison.baseline])
    blocks = [["seeds"], ["kB down"], ["kB up"], ["seconds a round, relative"]]
    for label, results in comparison.results.items():
        planned = comparison.planned[label]
        done = f"{planned}" if len(results) == planned else f"{len(results)} of {planned}"
        cells = [done, ABSENT, ABSENT, ABSENT]
        if results:
            relative = _median_seconds(results) / unit
            cells[1] = f"{results[0].bytes_down / 1000:.1f}"
            cells[2] = f"{results[0].bytes_up / 1000:.1f}"
            cells[3] = ABSENT if np.isnan(relative) else f"{relative:.2f}"
        for block, cell in zip(blocks, cells, strict=True):
            block.append(cell)
    return [list(map(Cell, block)) for block in blocks]


def _median_seconds(results):
    return float(np.median([run.round_seconds for run in results])) if results else np.nan


def _of_common_seeds(comparison, against) -> list[str]:
    """What is said where differences are not those of the means beside them."""
    others = {run.seed for run in comparison.results[against]}
    notes = []
    for label, results in comparison.finished.items():
        seeds = {run.seed for run in results}
        if seeds != others:
            common = ", ".join(map(str, sorted(seeds & others))) or "none"
            notes.append(
                f"Differences between {label} and {against} are of the seeds that both have: "
                f"{common}."
            )
    return notes


def _notes(comparison, columns, against):
    notes = [f"{column.head}: {column.in_words}." for column in columns]
    notes = [note[0].upper() + note[1:] for note in notes]
    notes.append(
        "After the last round, where nothing else is said; mean and standard deviation over seeds, "
        "the best in bold."
    )
    if against is not None:
        notes.append(
            f"Less {against}'s: difference of the same clients, its interval and p value by a "
            "t test of the means of the seeds; clients worse: their share, of all seeds."
        )
        notes += _of_common_seeds(comparison, against)
    sampled = [
        label
        for label, results in comparison.finished.items()
        if any(run.is_of_sample for run in results)
    ]
    if sampled:
        notes.append(f"Of {', '.join(sampled)}, a sample of the clients was evaluated.")
    notes += [
        f"The runs of {label} differ in more than the seed: in {', '.join(keys)}."
        for label, keys in comparison.mixed.items()
    ]
    notes.append(
        "kB a client receives and sends in a round; seconds relative to those of "
        f"{comparison.baseline}."
    )
    return notes
