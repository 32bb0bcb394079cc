"""Pictures of how runs went, drawn from their tables of clients."""

import csv
import os
import pathlib
from collections.abc import Iterable, Mapping

import numpy as np

from tff_pfl.names import unknown_name
from tff_pfl.training.run_directory import OutputDirectoryError


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
    paths = sorted(pathlib.Path(run_dir, "clients").glob("round_*.csv"))
    if not paths:
        raise OutputDirectoryError(f"{run_dir} has no evaluations: clients/round_*.csv.")
    rounds, means, columns = [], [], {}
    excluded = set(exclude_clients)
    for path in paths:
        with open(path, newline="") as file:
            clients = list(csv.DictReader(file))
        columns.update(dict.fromkeys(clients[0]))
        if column not in clients[0]:
            continue  # not all evaluations have all
        values = [
            float(client[column])
            for client in clients
            if int(client["client_id"]) not in excluded and int(client["num_examples"])
        ]
        if not values:
            raise OutputDirectoryError(f"{path} has no clients but those left out.")
        rounds.append(int(path.stem.removeprefix("round_")))
        means.append(np.mean(values))
    if not rounds:
        raise OutputDirectoryError(unknown_name(f"column of {run_dir}", column, columns))
    return np.array(rounds), np.array(means)


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
        axes.plot(rounds, means, line_style, label=name, linewidth=1.5)
    who = f"all but {', '.join(map(str, exclude_clients))}" if exclude_clients else "all"
    axes.set(xlabel="round", ylabel=column, title=f"mean over clients: {who}")
    if log_scale:
        axes.set_yscale("log")
    if top is not None:
        axes.set_ylim(top=top)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(color="0.92")
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.savefig(path, dpi=120)
