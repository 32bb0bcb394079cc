"""Statistics over groups of clients as tables for people, narrow enough for a terminal."""

from collections.abc import Iterator, Mapping

from tff_pfl.evaluation import Distribution, Gain, MetricName
from tff_pfl.tables import aligned, decimal

_GROUPS = {"all": "all", "participants": "took part", "never_selected": "never took part"}


def client_tables(
    distributions: Mapping[str, Mapping[MetricName, Distribution]],
    gains: Mapping[str, Mapping[MetricName, Gain]] | None = None,
) -> list[str]:
    """Lines of tables, one for each accuracy of models on clients' own examples.

    Args:
        distributions: By group and name; groups are columns.
        gains: Likewise, of what is compared with a baseline.
    """
    lines = []
    for name in distributions["all"]:
        if name.quantity == "loss" or not name.is_of_own_examples:
            continue
        columns = [["", *_distribution_labels()]]
        columns += [
            [_GROUPS[group], *_distribution_cells(found[name])]
            for group, found in distributions.items()
        ]
        if gains is not None:
            columns[0] += ["mean gain", "std of gain", "share hurt"]
            for column, found in zip(columns[1:], gains.values(), strict=True):
                gain = found[name]
                column += map(decimal, [gain.mean, gain.std, gain.share_hurt])
        lines += ["", f"over clients: {name}", *aligned(list(zip(*columns, strict=True)))]
    return lines


def _distribution_labels() -> Iterator[str]:
    yield from ("clients", "examples", "mean", "mean weighted by examples", "std")
    yield from ("lowest 5 %", "lowest 10 %")
    yield from (f"decile {tenths}" for tenths in range(1, 10))
    yield from ("top 10 %", "top 5 %")


def _distribution_cells(found: Distribution) -> Iterator[str]:
    """In the order of the labels."""
    yield from map(str, (found.num_clients, found.num_examples))
    yield from map(decimal, (found.mean, found.weighted_mean, found.std))
    yield from map(decimal, (found.lowest_5_percent, found.lowest_10_percent))
    yield from map(decimal, found.deciles)
    yield from map(decimal, (found.top_10_percent, found.top_5_percent))
