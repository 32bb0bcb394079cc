"""One quantity of each client under each variant, for analyses of one's own."""

from typing import NamedTuple

from tff_pfl.experiment import RunFiles
from tff_pfl.reports.comparison import Comparison
from tff_pfl.reports.paired import check_same_clients


class ClientValues(NamedTuple):
    """Lines of a table.

    Attributes:
        heads: `seed`, `client_id`, and the labels of the variants.
        rows: Of each client of each seed; the number as it was measured, not in percent, after the
            last round. Where a variant has no finished run of the seed is a `None`.
    """

    heads: list[str]
    rows: list[list[float | int | None]]


def client_values(comparison: Comparison, column: str) -> ClientValues:
    """What each client has under each variant, beside each other.

    Args:
        comparison: Runs of one seed have the same partition.
        column: Of the tables of clients, as "personalized/local_test/accuracy"; of the clients that
            have examples.

    Raises:
        OutputDirectoryError: If they have not, or were evaluated on other samples of clients, or a
            run has no such column.
    """
    labels = list(comparison.results)
    by_seed = {}
    for label, results in comparison.results.items():
        for run in results:
            by_seed.setdefault(run.seed, {})[label] = run
    rows = []
    for seed, runs in sorted(by_seed.items()):
        first, *others = runs.values()
        for other in others:
            check_same_clients(first, other)
        tables = {
            label: RunFiles(run.path).clients(run.final.round_num) for label, run in runs.items()
        }
        ids = next(iter(tables.values())).values("client_id")
        values = {label: table.values(column).tolist() for label, table in tables.items()}
        of_labels = [values.get(label, [None] * len(ids)) for label in labels]
        rows += [[seed, int(i), *own] for i, *own in zip(ids, *of_labels, strict=True)]
    return ClientValues(["seed", "client_id", *labels], rows)
