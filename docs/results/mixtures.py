"""Draws clients' mixtures of branches, for pFedMB: `python -m docs.results.mixtures RUN OUTPUT`."""

import numpy as np

from docs.results import command
from tff_pfl.analysis import figures
from tff_pfl.experiment import RunFiles


@figures.styled
def draw(run: str, most_clients: int = 15):
    """Draws the first clients' mixtures against the round, a row per layer, a column per client.

    Args:
        run: The run's folder. Its snapshots have arrays `alpha/LAYER`, `[clients, branches]`.
        most_clients: The number of clients to show.
    """
    files = RunFiles(run)
    names = [name for name in files.snapshot_names() if name.startswith("alpha/")]
    rounds, _ = files.snapshots(names[0])
    alphas = [np.array(files.snapshots(name)[1]) for name in names]  # [rounds, clients, branches]
    clients = range(min(alphas[0].shape[1], most_clients))
    figure = figures.new_figure(1.6 + 1.1 * len(clients), 1 + 1.1 * len(names))
    axes = figure.subplots(len(names), len(clients), sharex=True, sharey=True, squeeze=False)
    for row, name, alpha in zip(axes, names, alphas, strict=True):
        for panel, client in zip(row, clients, strict=True):
            style = {"colors": figures.COLORS, "edgecolor": "white"}
            parts = panel.stackplot(rounds, alpha[:, client].T, **style)
            panel.set(ylim=(0, 1), xticks=[rounds[0], rounds[-1]], yticks=())
            panel.margins(x=0)
        row[0].set_ylabel(name.removeprefix("alpha/"), rotation=0, ha="right", va="center")
    for panel, client in zip(axes[0], clients, strict=True):
        panel.set_title(f"client {client}", fontsize="small")
    figure.supxlabel("round", fontsize="medium")
    figures.legend_above(figure, parts, [f"branch {part}" for part in range(len(parts))])
    return figure


if __name__ == "__main__":
    command.main(draw)
