"""Figures of one run: influence between clients, mixtures, and the timeline of rounds."""

import os
from collections.abc import Iterable, Mapping

import numpy as np

from tff_pfl.analysis import figures
from tff_pfl.arguments.names import check_names, unknown_name
from tff_pfl.experiment.run_directory import OutputDirectoryError
from tff_pfl.experiment.run_files import RunFiles

_MOST_MATRICES = 4
_MOST_CLIENTS = 15  # to show by default
_HATCHES = ("", "//", "..", "\\\\", "xx")  # make parts differ in grey, too
# The parts of a round, and work in the background; from the top of the figure to its bottom.
_LANES = {
    "select": "select the cohort",
    "compute": "compute the round",
    "write": "write the previous round",
    "update": "update client states",
    "evaluation": "evaluate",
}


@figures.styled
def plot_influence(run_dir: str | os.PathLike, matrix: str = "alpha"):
    """Draws a matrix over clients at some rounds, and its means against clients' data sizes.

    Row `i` is the client that receives help, and column `j` is the client that gives it. Clients
    are sorted by their numbers of training examples.

    Args:
        run_dir: The run's output directory.
        matrix: The name of the matrix in the run's snapshots.

    Returns:
        The Matplotlib figure.

    Raises:
        OutputDirectoryError: The array is not a matrix over clients; see also
            `RunFiles.snapshots`.
    """
    files = RunFiles(run_dir)
    rounds, matrices = files.snapshots(matrix)
    sizes = np.array([len(rows) for rows in files.partition.train])
    if matrices[0].shape != (len(sizes), len(sizes)):
        raise OutputDirectoryError(
            f"{matrix!r} in {run_dir} has shape {matrices[0].shape}, but a matrix over clients has "
            f"a row and a column for each of the {len(sizes)} clients."
        )
    order = np.argsort(sizes)
    chosen = np.unique(np.linspace(0, len(rounds) - 1, _MOST_MATRICES).round().astype(int))
    least, most = np.min(matrices), np.max(matrices)

    figure = figures.new_figure(max(2.6 * len(chosen), figures.WIDTH), 6.2)
    above, below = figure.subfigures(2, 1)
    panels = above.subplots(1, len(chosen), squeeze=False)[0]
    for axes, index in zip(panels, chosen, strict=True):
        shown = matrices[index][np.ix_(order, order)]
        image = axes.imshow(shown, vmin=least, vmax=most, cmap="viridis", interpolation="nearest")
        axes.set(title=f"round {rounds[index]}", xticks=(), yticks=())
        axes.set_xlabel("helping client:\nfew to many examples")
    panels[0].set_ylabel("helped client:\nmany to few examples")
    above.colorbar(image, ax=panels, label=matrix)

    others = np.where(np.eye(len(sizes), dtype=bool), np.nan, matrices[-1])
    titles = ("help given to others", "help received from others")
    for index, (axes, title) in enumerate(zip(below.subplots(1, 2), titles, strict=True)):
        axes.scatter(sizes, np.nanmean(others, axis=index), color=figures.COLORS[0], alpha=0.7)
        axes.set(
            title=f"{title}, round {rounds[-1]}",
            xlabel="training examples of the client",
            ylabel=f"mean of {matrix}\nover other clients",
        )
    return figure


@figures.styled
def plot_mixtures(
    run_dir: str | os.PathLike, name: str = "alpha", *, clients: Iterable[int] | None = None
):
    """Draws each client's mixture against the round, with a row per layer and a column per client.

    Args:
        run_dir: The run's output directory.
        name: The name of the coefficients. Snapshots have arrays `NAME/LAYER`, `[clients, parts]`.
        clients: Ids of the clients to show, in this order; by default the first 15.

    Returns:
        The Matplotlib figure.

    Raises:
        OutputDirectoryError: The snapshots do not have the mixture; see also `RunFiles.snapshots`.
        UnknownNameError: The snapshots do not have one of the clients.
    """
    rounds, mixtures, ids = _mixtures(RunFiles(run_dir), name)
    shown = list(clients or ()) or ids[:_MOST_CLIENTS]
    check_names("client with mixtures", map(str, shown), map(str, ids))
    figure = figures.new_figure(1.6 + 1.1 * len(shown), 1 + 1.1 * len(mixtures))
    axes = figure.subplots(len(mixtures), len(shown), sharex=True, sharey=True, squeeze=False)
    for row, (layer, mixture) in zip(axes, mixtures.items(), strict=True):
        colors = [figures.series(part)["color"] for part in range(mixture.shape[2])]
        for panel, client in zip(row, shown, strict=True):
            parts = panel.stackplot(rounds, mixture[:, ids.index(client)].T, colors=colors)
            for number, part in enumerate(parts):
                part.set(hatch=_HATCHES[number % len(_HATCHES)], edgecolor="white", linewidth=0)
            panel.set(xlim=(rounds[0], rounds[-1]), ylim=(0, 1))
            panel.set(xticks=[rounds[0], rounds[-1]], yticks=())
        row[0].set_ylabel(layer, rotation=0, ha="right", va="center")
    for panel, client in zip(axes[0], shown, strict=True):
        panel.set_title(f"client {client}", fontsize="small")
    figure.supxlabel("round", fontsize="medium")
    figure.supylabel("parts of each client's mixture, by layer", fontsize="medium")
    figures.legend_above(figure, parts, [f"branch {part}" for part in range(len(parts))])
    return figure


def _mixtures(files, name):
    """Returns the rounds, an array `[rounds, clients, parts]` by layer, and the ids of clients."""
    names = files.snapshot_names()
    layers = [other.removeprefix(f"{name}/") for other in names if other.startswith(f"{name}/")]
    if not layers:
        known = sorted({other.partition("/")[0] for other in names if "/" in other})
        raise OutputDirectoryError(unknown_name(f"mixture of {files.path}", name, known))
    snapshots = {layer: files.snapshots(f"{name}/{layer}") for layer in layers}
    rounds = snapshots[layers[0]][0]
    mixtures = {layer: np.array(of_rounds) for layer, (_, of_rounds) in snapshots.items()}
    if len(rounds) == 1:  # a single round would have no width
        rounds = np.append(rounds, rounds + 1)
        mixtures = {layer: np.repeat(mixture, 2, 0) for layer, mixture in mixtures.items()}
    ids = list(range(mixtures[layers[0]].shape[1]))
    if "client_id" in names:  # a sample of the clients was evaluated
        ids = files.snapshots("client_id")[1][0].tolist()
    return rounds, mixtures, ids


def spans_of_round(seconds: Mapping[str, float]) -> list[tuple[str, float, float]]:
    """Returns `(lane, start, duration)` of each part of a round, in seconds from its start.

    Args:
        seconds: A row of `timings`, with NaN for missing parts.
    """
    lengths = {lane: float(seconds.get(f"{lane}_seconds", np.nan)) for lane in _LANES}
    compute = lengths["select"]
    starts = {
        "select": 0.0,
        "compute": compute,
        "write": compute,
        "update": seconds["round_seconds"] - lengths["update"],
        "evaluation": seconds["round_seconds"],
    }
    return [(lane, starts[lane], n) for lane, n in lengths.items() if np.isfinite(n)]


@figures.styled
def plot_timeline(timings, *, rounds: int = 3):
    """Draws the last rounds of a run, with a lane for each part of a round.

    Args:
        timings: The result of `timings` for one run.
        rounds: The number of rounds to show. A run may have fewer.

    Returns:
        The Matplotlib figure.

    Raises:
        OutputDirectoryError: The frame does not have the parts of rounds.
    """
    if "compute_seconds" not in timings:
        raise OutputDirectoryError(
            "timings.csv has no column compute_seconds, which the timeline needs."
        )
    shown = timings.dropna(subset="compute_seconds").tail(rounds).to_dict("records")
    figure = figures.new_figure(width=8.0, height=3.1)
    axes = figure.subplots()
    end = 0.0
    for row in shown:
        start = end
        for lane, begin, seconds in spans_of_round(row):
            color = figures.COLORS[1 if lane == "write" else 0]
            # The edge keeps very short spans visible.
            style = {"left": 1000 * (start + begin), "color": color, "edgecolor": color}
            axes.barh(list(_LANES).index(lane), 1000 * seconds, **style)
        end += row["round_seconds"] + np.nan_to_num(row.get("evaluation_seconds", 0))
        axes.axvline(1000 * end, color="black", linestyle=":", linewidth=1.2)
    axes.set_yticks(range(len(_LANES)), _LANES.values())
    numbers = [f"{row['round']:.0f}" for row in (shown[0], shown[-1])]
    axes.set_title(f"rounds {' to '.join(numbers)}" if len(shown) > 1 else f"round {numbers[0]}")
    axes.set(xlabel="milliseconds", xlim=(0, 1000 * end), ylim=(len(_LANES) - 0.5, -0.6))
    axes.grid(axis="y", visible=False)
    handles = [axes.barh(0, 0, color=figures.COLORS[index]) for index in (0, 1)]
    figures.legend_above(
        figure, handles, ["one after the other", "in the background, in another thread"]
    )
    return figure
