"""Pictures of how runs went, drawn from their tables of clients."""

import os
from collections.abc import Iterable, Mapping

import numpy as np

from tff_pfl.experiment import OutputDirectoryError, RunFiles
from tff_pfl.names import unknown_name
from tff_pfl.reports import figures


def read_curve(
    run_dir: str | os.PathLike, column: str, exclude_clients: Iterable[int] = ()
) -> tuple[np.ndarray, np.ndarray]:
    """`(rounds, means)`: the mean over clients of a quantity, at each evaluation of a run.

    Args:
        run_dir: The run's output directory.
        column: Of `clients/round_*.csv`, as `global/local_test/loss`.
        exclude_clients: Ids of clients that are left out, such as attackers.

    Raises:
        OutputDirectoryError: If there are no evaluations, or they have no such column.
    """
    files, exclude_clients = RunFiles(run_dir), tuple(exclude_clients)
    means, columns = {}, {}
    for round_num in files.evaluated_rounds():
        clients = files.clients(round_num)
        columns |= clients.columns
        if column in clients.columns:  # not all evaluations have all
            means[round_num] = clients.values(column, exclude_clients).mean()
    if not means:
        raise OutputDirectoryError(unknown_name(f"column of {run_dir}", column, columns))
    return np.array(list(means)), np.array(list(means.values()))


def plot_curves(
    runs: Mapping[str, str | os.PathLike],
    column: str,
    path: str | os.PathLike,
    *,
    exclude_clients: Iterable[int] = (),
    log_scale: bool = False,
    top: float | None = None,
) -> None:
    """Draws a quantity over the rounds, a line a run; what is not finite leaves a gap.

    Args:
        runs: Output directories by the names to show.
        column: See `read_curve`.
        path: The image file; its ending is the format (.png, .pdf, .svg).
        exclude_clients: See `read_curve`.
        log_scale: Whether the quantity is drawn on a logarithmic scale.
        top: Where the vertical axis ends; by default at the largest value.

    Raises:
        OutputDirectoryError: See `read_curve`.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    exclude_clients = tuple(exclude_clients)
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for index, (name, run_dir) in enumerate(runs.items()):
        rounds, means = read_curve(run_dir, column, exclude_clients)
        # Ten colours; further lines are dashed.
        line_style = ("-", "--", ":", "-.")[index // 10 % 4]
        label = name if np.isfinite(means).any() else f"{name} (never finite)"
        # A point beside no other is a mark, where there is no line.
        axes.plot(rounds, means, line_style, label=label, linewidth=1.5, marker=".")
    who = f"all but {', '.join(map(str, exclude_clients))}" if exclude_clients else "all"
    axes.set(xlabel="round", ylabel=column, title=f"mean over clients: {who}")
    if log_scale:
        axes.set_yscale("log")
    if top is not None:
        axes.set_ylim(top=top)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(color="0.92")
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figures.save(figure, path)
