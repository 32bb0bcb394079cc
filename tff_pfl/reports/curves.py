"""Pictures of how runs went, drawn from their tables of clients."""

import csv
import os
import pathlib
from collections.abc import Iterable, Mapping

import numpy as np

from tff_pfl.names import unknown_name
from tff_pfl.reports import figures
from tff_pfl.experiment.run_directory import OutputDirectoryError, reading


def files_of_rounds(
    run_dir: str | os.PathLike, folder: str, ending: str
) -> dict[int, pathlib.Path]:
    """The files `FOLDER/round_*ENDING` of a run by their rounds, in ascending order."""
    paths = pathlib.Path(run_dir, folder).glob(f"round_*{ending}")
    files = [(path.stem.removeprefix("round_"), path) for path in paths]
    return dict(sorted((int(number), path) for number, path in files if number.isdecimal()))


def evaluations_of_run(run_dir: str | os.PathLike) -> dict[int, pathlib.Path]:
    """The tables of clients of a run by their rounds, in ascending order.

    Raises:
        OutputDirectoryError: If there are none.
    """
    paths = files_of_rounds(run_dir, "clients", ".csv")
    if not paths:
        raise OutputDirectoryError(f"{run_dir} has no evaluations: clients/round_*.csv.")
    return paths


def read_clients(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """A table of clients: float64 columns by name.

    Raises:
        OutputDirectoryError: If it is damaged.
    """
    with reading(path), open(path, newline="") as file:
        names, *rows = list(csv.reader(file)) or [[]]
        missing = [name for name in ("client_id", "num_examples") if name not in names]
        if missing:
            raise ValueError(f"it has no column {' or '.join(missing)}")
        columns = np.array(rows, np.float64).reshape(-1, len(names)).T
    return dict(zip(names, columns, strict=True))


def values_of_clients(
    path: str | os.PathLike,
    clients: Mapping[str, np.ndarray],
    column: str,
    exclude_clients: Iterable[int] = (),
) -> np.ndarray:
    """A column of the clients that have examples and are not to be left out.

    Args:
        path: Where the clients are from, for the message.
        clients: See `read_clients`.
        column: Of them.
        exclude_clients: Ids of clients that are left out.

    Raises:
        OutputDirectoryError: If there are none, or there is none of those left out.
    """
    exclude_clients = list(exclude_clients)
    if strangers := [i for i in exclude_clients if i not in clients["client_id"]]:
        raise OutputDirectoryError(
            f"{path} has no clients {strangers} to leave out: its ids are "
            f"{clients['client_id'].min():.0f} to {clients['client_id'].max():.0f}."
        )
    is_excluded = np.isin(clients["client_id"], exclude_clients)
    values = clients[column][(clients["num_examples"] > 0) & ~is_excluded]
    if not len(values):
        raise OutputDirectoryError(f"{path} has no clients but those left out.")
    return values


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
    exclude_clients = tuple(exclude_clients)
    means, columns = {}, {}
    for round_num, path in evaluations_of_run(run_dir).items():
        clients = read_clients(path)
        columns |= clients
        if column in clients:  # not all evaluations have all
            means[round_num] = values_of_clients(path, clients, column, exclude_clients).mean()
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
