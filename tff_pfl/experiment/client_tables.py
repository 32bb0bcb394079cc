"""Tables of statistics over groups of clients: one for a file, and short ones for people."""

from collections.abc import Mapping

import numpy as np

from tff_pfl.evaluation import Distribution, Gain, MetricName
from tff_pfl.tables import aligned, decimal

RESULT_SUFFIXES = (".json", "_table.csv", ".csv", "_new_clients.csv")
"""The files of an evaluation after their prefix, see `evaluate_program`."""

_GROUPS = {
    "all": "all",
    "participants": "took part",
    "never_selected": "never took part",
    "new_clients": "new clients",
}
Distributions = Mapping[str, Mapping[MetricName, Distribution]]
Gains = Mapping[str, Mapping[MetricName, Gain]]


def statistics_table(distributions: Distributions, gains: Gains) -> dict[str, np.ndarray]:
    """Returns all statistics, with a row for each quantity of a group of clients.

    Args:
        distributions: By group and name.
        gains: Gains over a baseline, likewise; may be empty.

    Returns:
        Columns: `model`, `pool`, `quantity`, `group`; the fields of `Distribution`, whose deciles
        are `decile_1` to `decile_9`; if there are gains, `gain_mean`, `gain_std` and `share_hurt`,
        NaN where there is no gain.
    """
    table = []
    for group, found in distributions.items():
        for name, distribution in found.items():
            row = {"model": name.model, "pool": name.pool, "quantity": name.quantity}
            row |= {"group": group, **distribution._asdict()}
            deciles = row.pop("deciles")
            row |= {f"decile_{tenths}": value for tenths, value in enumerate(deciles, 1)}
            if gains:
                row |= _gain_cells(gains.get(group, {}).get(name))
            table.append(row)
    return {column: np.array([row[column] for row in table]) for column in table[0]}


def _gain_cells(gain: Gain | None) -> dict[str, float]:
    mean, std, share_hurt = (np.nan,) * 3 if gain is None else gain[1:]
    return {"gain_mean": mean, "gain_std": std, "share_hurt": share_hurt}


def client_tables(distributions: Distributions, gains: Gains) -> list[str]:
    """Returns lines of short tables, one for each accuracy on clients' own examples.

    Args:
        distributions: By group and name; groups are rows.
        gains: Gains over a baseline, likewise; may be empty.
    """
    heads = ["", "clients", "mean", "weighted", "lowest 10 %", "median", "top 10 %"]
    heads += ["mean gain", "share hurt"] if gains else []
    lines = []
    for name in dict.fromkeys(name for found in distributions.values() for name in found):
        if name.quantity == "loss" or not name.is_of_own_examples:
            continue
        table = [heads]
        for group, found in distributions.items():
            if name in found:
                gain = gains.get(group, {}).get(name)
                table.append([_GROUPS[group], *_cells(found[name])])
                table[-1] += map(decimal, (gain.mean, gain.share_hurt)) if gain else []
                table[-1] += ["-"] * (len(heads) - len(table[-1]))
        lines += ["", f"over clients: {name}", *aligned(table)]
    return lines


def _cells(found: Distribution) -> list[str]:
    shown = (found.mean, found.weighted_mean, found.lowest_10_percent)
    shown += (found.deciles[4], found.top_10_percent)
    return [str(found.num_clients), *map(decimal, shown)]
