"""Compares clients with themselves under another label: a paired test, and each against Local."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from tff_pfl import evaluation
from tff_pfl.analysis import figures
from tff_pfl.analysis.frames import clients, means, select, summaries
from tff_pfl.analysis.metric_text import ACCURACY
from tff_pfl.analysis.runs import Path, find_runs
from tff_pfl.analysis.tables import Table, table_of
from tff_pfl.experiment.run_directory import OutputDirectoryError
from tff_pfl.experiment.run_files import RunFiles

_LEVEL = 0.95  # of the interval
_PAIR = ["label", "seed", "client_id", "own", "local"]


class PairedTest(NamedTuple):
    """The difference of two labels.

    Attributes:
        difference: The mean over seeds, of the mean over clients.
        low: The lower end of the 95 % interval; NaN if there are fewer than two seeds, or the
            difference is not finite.
        high: The upper end.
        p_value: Two-sided; NaN as `low`.
        num_seeds: The number of seeds that both labels have.
        share_worse: The share of clients, over all seeds, that are worse than under the other
            label.
    """

    difference: float
    low: float
    high: float
    p_value: float
    num_seeds: int
    share_worse: float


def paired_test(differences: Sequence[np.ndarray], direction: int = 1) -> PairedTest:
    """Tests whether the mean difference is zero: Student's t of the means of the seeds.

    In each seed, clients are compared with themselves, and their differences averaged; the test is
    of these means, with a degree of freedom fewer than there are seeds.

    It assumes that seeds are independent and their means normal, which averages over clients
    nearly are. It assumes nothing of the clients within a seed: they share one training, whose luck
    is common to all of them, and are not independent. Where seeds also draw the partition, a client
    of one seed is no client of another, which is why clients are not averaged over seeds first.

    In simulations with 2, 3 and 5 seeds of 50 clients without a difference, it finds one in 4 to
    6 % of the cases at a level of 5 %, however much luck seeds have. A bootstrap over seeds and
    then clients, and Wilcoxon's test of the clients' means, find one in up to 44 and 85 %.

    It does not show that single clients gain, nor that another federation or other settings give
    the same. With two or three seeds only differences that are large against their spread are
    found: a large p value is no sign of equality. P values of several labels against one are not
    corrected for their number.

    Args:
        differences: For each seed, the differences of its clients, float64 `[clients]`.
        direction: 1 where more is better, or -1.
    """
    from scipy import special

    num_seeds = len(differences)
    with np.errstate(invalid="ignore"):  # of infinities
        of_seeds = np.array([_mean(own) for own in differences])
        difference = float(_mean(of_seeds))
    share_worse = float(np.mean(direction * np.concatenate(differences) < 0))
    if num_seeds < 2 or not np.isfinite(difference):
        return PairedTest(difference, np.nan, np.nan, np.nan, num_seeds, share_worse)
    error = float(of_seeds.std(ddof=1) / np.sqrt(num_seeds))
    if not evaluation.without_rounding(error, abs(difference)):  # the same in each seed
        p_value = 1.0 if difference == 0 else 0.0
        return PairedTest(difference, difference, difference, p_value, num_seeds, share_worse)
    half = error * float(special.stdtrit(num_seeds - 1, (1 + _LEVEL) / 2))
    p_value = float(2 * special.stdtr(num_seeds - 1, -abs(difference) / error))
    return PairedTest(
        difference, difference - half, difference + half, p_value, num_seeds, share_worse
    )


def _mean(numbers):
    """The mean, or 0 if it is nothing but rounding, which Student's t would take for a result."""
    return evaluation.without_rounding(numbers.mean(), np.abs(numbers).max(initial=0.0))


def client_values(runs: Any, column: str, rounds: int | str = "final") -> pd.DataFrame:
    """Returns one quantity of each client under each label.

    Args:
        runs: See `find_runs`; the finished ones count. Runs of one seed have the same partition.
        column: "MODEL/POOL/QUANTITY", such as "personalized/local_test/accuracy".
        rounds: See `clients`; of several rounds, the mean.

    Returns:
        A row for each client of each seed, indexed by `seed` and `client_id`, and a column for each
        label, NaN where it has no finished run of the seed. Values are as measured, not in percent.

    Raises:
        OutputDirectoryError: If the clients of a seed are not the same in all runs.
        UnknownNameError: If there is no such quantity.
    """
    values = select(clients(find_runs(runs).finished, rounds), column)
    for _, of_seed in values.groupby("seed"):
        first, *others = of_seed["run"].unique()
        for other in others:
            if differ := _how_clients_differ(first, other):
                raise OutputDirectoryError(differ)
    wide = means(values, ["seed", "client_id", "label"]).unstack("label").sort_index()
    return wide[values["label"].unique()]


def _how_clients_differ(run: Path, other: Path) -> str | None:
    """Returns why two runs cannot be compared client by client, or `None` if they can."""
    both = [RunFiles(path) for path in (run, other)]
    data = [files.settings().get("data", {}).get("name") for files in both]
    own, others = (files.partition().flat() for files in both)
    if data[0] != data[1] or not all(np.array_equal(own[name], others[name]) for name in own):
        return (
            f"{run} and {other} have different partitions: their clients are not the same, and "
            "cannot stand beside each other, one by one."
        )
    if not np.array_equal(*(files.clients().columns["client_id"] for files in both)):
        return (
            f"{run} and {other} have evaluated different clients, which cannot be compared one by "
            "one. Their config.evaluation.clients should be the same."
        )
    return None


def paired_differences(
    values: pd.DataFrame, label: str, other: str, seeds: Iterable[int], quantity: str
) -> list[np.ndarray]:
    """Returns the differences of each client between two labels.

    Args:
        values: Those of `client_values`.
        label: The first label.
        other: The label that is subtracted.
        seeds: Seeds of which both labels have a run.
        quantity: What is compared, such as "accuracy".

    Returns:
        For each seed, float64 `[clients]`, of the clients with examples.
    """
    sign = evaluation.direction(quantity)
    of_seeds = map(values.loc.__getitem__, seeds)
    return [
        evaluation.differences(of[label].to_numpy(), of[other].to_numpy(), sign) for of in of_seeds
    ]


def against_local(runs: Any, column: str = ACCURACY) -> pd.DataFrame:
    """Returns the clients of all other labels beside the same clients under `local`.

    Runs are paired by seed, if the same clients were evaluated in both, with the same examples; a
    label without such a pair is left out.

    Returns:
        Columns `label`, `seed`, `client_id`, `own`, `local`; empty if no run is of the algorithm
        `local`.

    Raises:
        UnknownNameError: If there is no such quantity.
    """
    runs = find_runs(runs).finished
    table = summaries(runs)
    is_local = table["algorithm"] == "local"
    values = select(clients(runs, "final"), column)
    pairs = table[~is_local].merge(table[is_local].drop_duplicates("seed"), on="seed")
    found = [values.iloc[:0]]
    for run, alone in pairs[["run_x", "run_y"]].values:
        if _how_clients_differ(run, alone) is None:
            own, of_local = (values[values["run"] == each] for each in (run, alone))
            of_local = of_local[["client_id", "value"]].rename(columns={"value": "local"})
            found.append(own.merge(of_local, on="client_id"))
    pairs = pd.concat(found).rename(columns={"value": "own"}).reindex(columns=_PAIR)
    return pairs.dropna().reset_index(drop=True)


def hurt_table(pairs: pd.DataFrame) -> Table:
    """Returns the shares of clients that lose and gain against Local, of `against_local`."""
    rows = [
        {
            "method": label,
            "hurt": f"{100 * (of['own'] < of['local']).mean():.1f} %",
            "gaining": f"{100 * (of['own'] > of['local']).mean():.1f} %",
        }
        for label, of in pairs.groupby("label", sort=False)
    ]
    note = "Shares of clients, of all seeds, with a lower and a higher accuracy than under Local."
    return table_of(rows, [note])


@figures.styled
def plot_against_local(pairs: pd.DataFrame):
    """Draws a panel for each label, a point for each client of `against_local`.

    Returns:
        The Matplotlib figure.
    """
    groups = list(pairs.groupby("label", sort=False))
    figure, every_axes = figures.panels(len(groups), figures.PANELS_A_ROW, 2.6, 2.9, extra=0.4)
    for axes, (label, of) in zip(every_axes, groups, strict=True):
        axes.plot([0, 1], [0, 1], color="black", linewidth=1.0, zorder=1)
        is_hurt = of["own"] < of["local"]
        for color, marker, shown in ((0, "o", ~is_hurt), (1, "v", is_hurt)):
            style = {"color": figures.COLORS[color], "marker": marker, "s": 25, "alpha": 0.7}
            axes.scatter(
                of["local"][shown],
                of["own"][shown],
                linewidths=0.4,
                edgecolors="white",
                **style,
            )
        title = figures.wrapped(label, figures.PANEL_CHARACTERS)
        axes.set_title(f"{title}\n{100 * is_hurt.mean():.0f} % hurt", fontsize="small")
        axes.set_aspect("equal")
    figure.supxlabel("accuracy of the client's model under Local", fontsize="medium")
    figure.supylabel("accuracy of its own model", fontsize="medium")
    return figure
