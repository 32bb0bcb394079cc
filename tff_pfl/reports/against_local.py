"""Who gains and who is hurt: each client's accuracy against that of a model of its own data."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from tff_pfl.evaluation import MetricName
from tff_pfl.reports import figures
from tff_pfl.reports.columns import Column
from tff_pfl.reports.comparison import Comparison
from tff_pfl.reports.paired import paired_values, same_ids, same_partition

_MOST_PER_ROW = 3
_PANEL = (2.6, 2.9)  # inches
_TITLE_CHARACTERS = 30  # that fit on a panel


class AgainstLocal(NamedTuple):
    """A quantity of the clients of a variant, and of the same clients under Local.

    Attributes:
        own: float64 `[clients]`, of all seeds that both variants have.
        local: float64 `[clients]`, likewise.
    """

    own: np.ndarray
    local: np.ndarray

    @property
    def share_hurt(self) -> float:
        """The share of clients with less than under Local."""
        return float(np.mean(self.own < self.local))

    @property
    def share_gaining(self) -> float:
        """The share of clients with more than under Local."""
        return float(np.mean(self.own > self.local))


def against_local(comparison: Comparison, name: MetricName) -> dict[str, AgainstLocal]:
    """The clients of all other variants, by labels, where there is a variant of `local`.

    Runs are paired by seed, if it is known that the same clients were evaluated in both, with the
    same examples; a variant without such a pair is left out.

    Args:
        comparison: What is compared.
        name: The quantity, of each client.
    """
    is_local = {
        label: results[0].name_of("algorithm") == "local"
        for label, results in comparison.finished.items()
    }
    found = {}
    for local_label in [label for label in is_local if is_local[label]][:1]:
        of_seed = {run.seed: run for run in comparison.results[local_label]}
        for label, results in comparison.finished.items():
            pairs = [
                paired_values(run, of_seed[run.seed], Column(name))
                for run in results
                if not is_local[label]
                and run.seed in of_seed
                and _is_pair(run, of_seed[run.seed], name)
            ]
            if pairs:
                found[label] = AgainstLocal(*map(np.concatenate, zip(*pairs, strict=True)))
    return found


def _is_pair(run, local, name) -> bool:
    return (
        all(
            name in each.final.metrics and (each.path / "partition.npz").exists()
            for each in (run, local)
        )
        and same_partition(run, local)
        and same_ids(run, local)
    )


@figures.styled
def figure_against_local(found: Mapping[str, AgainstLocal]):
    """A Matplotlib figure with a panel for each variant, a point for each client."""
    rows = math.ceil(len(found) / _MOST_PER_ROW)
    per_row = min(len(found), _MOST_PER_ROW)
    size = (max(_PANEL[0] * per_row, figures.WIDTH), _PANEL[1] * rows + 0.4)
    figure = figures.new_figure(*size)
    panels = figure.subplots(rows, per_row, sharex=True, sharey=True, squeeze=False).flat
    for index, (axes, (label, clients)) in enumerate(zip(panels, found.items(), strict=False)):
        axes.plot([0, 1], [0, 1], color="black", linewidth=1.0, zorder=1)
        for is_shown, style in (
            (clients.own >= clients.local, {"color": figures.COLORS[0], "marker": "o"}),
            (clients.own < clients.local, {"color": figures.COLORS[1], "marker": "v"}),
        ):
            axes.scatter(clients.local[is_shown], clients.own[is_shown], 20, alpha=0.7, **style)
        title = figures.wrapped(label, _TITLE_CHARACTERS)
        axes.set_title(f"{title}\n{100 * clients.share_hurt:.0f} % hurt", fontsize="small")
        axes.set_aspect("equal")
        axes.tick_params(labelbottom=index + per_row >= len(found))
    for axes in panels[len(found) :]:
        axes.remove()
    figure.supxlabel("accuracy of the client's model under Local", fontsize="medium")
    figure.supylabel("accuracy of its own model", fontsize="medium")
    return figure
