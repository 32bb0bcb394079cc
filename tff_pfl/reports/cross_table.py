"""One quantity of variants that differ in two ways, as a table of both."""

from collections.abc import Iterable
from typing import NamedTuple

from tff_pfl.evaluation import MetricName
from tff_pfl.experiment import RunFiles
from tff_pfl.reports import cells
from tff_pfl.reports.comparison import Comparison, RunResult
from tff_pfl.reports.markup import Cell, Table
from tff_pfl.reports.subcommands import CommandLineError
from tff_pfl.reports.words import in_words

SEPARATOR = " | "
"""What stands between the row and the column in the label of a variant."""


class RunValue(NamedTuple):
    """The number of one run.

    Attributes:
        row: What stands before the separator in the label of its variant.
        column: What stands behind it.
        seed: `config.seed`.
        value: The mean over its clients, as it was measured: not in percent.
    """

    row: str
    column: str
    seed: int
    value: float


def cross_values(
    comparison: Comparison,
    column: str,
    *,
    exclude_attackers: bool = False,
    exclude_clients: Iterable[int] = (),
) -> list[RunValue]:
    """The number of each finished run that a `cross_table` is made of; its arguments and errors."""
    left_out = set(exclude_clients)

    def mean_of(run: RunResult) -> float:
        files = RunFiles(run.path)
        attackers = files.attackers() if exclude_attackers else ()
        return float(
            files.clients(run.final.round_num).values(column, left_out.union(attackers)).mean()
        )

    return [
        RunValue(*_parts(label), run.seed, mean_of(run))
        for label, results in comparison.results.items()
        for run in results
    ]


def cross_table(
    comparison: Comparison,
    column: str,
    *,
    exclude_attackers: bool = False,
    exclude_clients: Iterable[int] = (),
) -> Table:
    """The mean over clients of a quantity after the last round, a row and a column a variant.

    Args:
        comparison: Its labels are "ROW | COLUMN", as "FedAvg, noise | median". Where there is no
            such variant, or no finished run of it, is a dash.
        column: Of the tables of clients, as "personalized/local_test/accuracy".
        exclude_attackers: Whether the clients are left out that attacked in a run.
        exclude_clients: Ids of others that are left out.

    Raises:
        CommandLineError: If a label is of another form, or the column.
        OutputDirectoryError: See `ClientTable.values`.
    """
    exclude_clients = set(exclude_clients)
    values = cross_values(
        comparison, column, exclude_attackers=exclude_attackers, exclude_clients=exclude_clients
    )
    try:
        name = MetricName.parse(f"{column}_mean")
    except ValueError as error:  # of what no finished run has refused
        raise CommandLineError(f"A column is MODEL/POOL/QUANTITY, found {column!r}.") from error
    rows, heads = {}, {}
    for row, head in map(_parts, comparison.results):
        found = [value.value for value in values if (value.row, value.column) == (row, head)]
        rows.setdefault(row, {})
        heads[head] = None  # in the order of their first variant
        if found:
            rows[row][head] = cells.scaled(name, found)
    return Table(
        heads=["", *heads],
        rows=[[Cell(row), *_cells(name, means, heads)] for row, means in rows.items()],
        notes=list(_notes(name, exclude_attackers, exclude_clients)),
    )


def _parts(label):
    row, separator, head = label.partition(SEPARATOR)
    if not separator:
        raise CommandLineError(
            f"Variants of a cross table are 'ROW{SEPARATOR}COLUMN', found {label!r}."
        )
    return row, head


def _cells(name, means, heads):
    """The cells of a row."""
    best = cells.best(name, means)
    return [Cell(cells.mean_and_deviation(name, means.get(x)), x in best) for x in heads]


def _notes(name, exclude_attackers, exclude_clients):
    words = in_words(name)
    yield f"{words[0].upper()}{words[1:]}{', in percent' * cells.is_share(name)}."
    if exclude_attackers:
        yield "Of honest clients alone."
    if exclude_clients:
        yield f"Without clients {', '.join(map(str, sorted(exclude_clients)))}."
    yield "After the last round; mean and standard deviation over seeds, the best of a row in bold."
