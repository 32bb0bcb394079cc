"""Compares clients with themselves under another label, by a paired test and in figures."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from absl import logging

from tff_pfl import evaluation
from tff_pfl.analysis import figures
from tff_pfl.analysis.frames import means, select
from tff_pfl.analysis.metric_text import gain_cells
from tff_pfl.analysis.runs import Runs
from tff_pfl.analysis.tables import Table, table_of
from tff_pfl.arguments.quantities import Quantity
from tff_pfl.experiment.run_directory import OutputDirectoryError
from tff_pfl.experiment.run_files import RunFiles

_LEAST_WIDTH = 4.2  # inches, of the figure
_CHARACTERS = 44  # fit in this width
_LEVEL = 0.95  # the confidence of the interval
_GAIN = ["gain", "gain_low", "gain_high", "p_value", "hurt", "helped"]
_PAIR = ["label", "seed", "client_id", "own", "local"]
ACCURACY = Quantity.named("accuracy")
_SAME = 1e-5  # relative; float32 losses of one training, computed twice, differ by less


class PairedTest(NamedTuple):
    """The difference between two labels.

    Attributes:
        difference: The mean over seeds of the mean difference over clients.
        low: The lower end of the 95 % interval; NaN if there are fewer than two seeds or the
            difference is not finite.
        high: The upper end of the interval; NaN in the same cases.
        p_value: The two-sided p value; NaN in the same cases.
        num_seeds: The number of seeds.
        share_worse: The share of clients, over all seeds, that are worse than under the other
            label.
        share_better: The share of clients that are better. The rest are equal.
    """

    difference: float
    low: float
    high: float
    p_value: float
    num_seeds: int
    share_worse: float
    share_better: float


def paired_test(differences: Sequence[np.ndarray], better: int = 1) -> PairedTest:
    """Tests whether the mean difference is zero, by Student's t test on the means of the seeds.

    In each seed, every client is compared with itself, and the differences are averaged over the
    clients. The test uses these means, and has one degree of freedom less than there are seeds.

    The test assumes that seeds are independent and that their means are normal. Averages over
    clients are nearly normal. Clients within a seed need not be independent: they share one
    training and its random fluctuation. Clients are not averaged over seeds first, because seeds
    may also draw the partition; then client `i` of two seeds is not the same client.

    In simulations with 2, 3 and 5 seeds of 50 clients and no true difference, the test finds a
    difference in 4 to 6 % of the cases at a level of 5 %, however large the fluctuation of the
    seeds. A bootstrap over seeds and then clients finds one in up to 44 % of the cases, and
    Wilcoxon's test on the clients' means in up to 85 %.

    The test does not show that single clients gain, or that another federation or other settings
    give the same result. With two or three seeds, it finds only differences that are large compared
    with their spread, so a large p value does not show equality. Where several labels are compared
    with one, `holm` corrects their p values.

    Nor does it know that seeds share rows. If each seed cuts the same rows anew, most training rows
    are in every cut, seeds are not independent, and intervals are too narrow.

    Args:
        differences: The differences of the clients of each seed, float64 `[clients]`. Seeds without
            clients do not count.
        better: 1 if larger values are better, or -1.
    """
    from scipy import special

    differences = [own for own in differences if len(own)]
    if not (num_seeds := len(differences)):
        return PairedTest(np.nan, np.nan, np.nan, np.nan, 0, np.nan, np.nan)
    with np.errstate(invalid="ignore"):  # values may be infinite
        seed_means = np.array([_mean(own) for own in differences])
        difference = float(_mean(seed_means))
    signed = better * np.concatenate(differences)
    counts = num_seeds, float(np.mean(signed < 0)), float(np.mean(signed > 0))
    if num_seeds < 2 or not np.isfinite(difference):
        return PairedTest(difference, np.nan, np.nan, np.nan, *counts)
    error = float(seed_means.std(ddof=1) / np.sqrt(num_seeds))
    if not evaluation.without_rounding(error, abs(difference)):  # all seeds have the same mean
        p_value = 1.0 if difference == 0 else 0.0
        return PairedTest(difference, difference, difference, p_value, *counts)
    half = error * float(special.stdtrit(num_seeds - 1, (1 + _LEVEL) / 2))
    p_value = float(2 * special.stdtr(num_seeds - 1, -abs(difference) / error))
    return PairedTest(difference, difference - half, difference + half, p_value, *counts)


def holm(p_values: pd.Series) -> pd.Series:
    """Corrects p values for their number (Holm, Scandinavian Journal of Statistics, 1979).

    The probability that any label without a true difference has a corrected value below 0.05 is at
    most 5 %, however the tests depend on one another.

    Args:
        p_values: The p values by label. NaN stays NaN and does not count.
    """
    ordered = p_values.dropna().sort_values()
    corrected = (ordered * np.arange(len(ordered), 0, -1)).cummax().clip(upper=1.0)
    return corrected.reindex(p_values.index)


def _mean(numbers):
    """Returns the mean, or 0 if only rounding errors made it differ from 0."""
    return evaluation.without_rounding(numbers.mean(), np.abs(numbers).max(initial=0.0))


def client_values(
    runs: Runs, column: str | None = None, rounds: int | str = "final"
) -> pd.DataFrame:
    """Returns one quantity of each client under each label.

    Args:
        runs: Runs, of which the finished ones are used. Runs of one seed must have the same
            partition.
        column: "MODEL/POOL/QUANTITY", such as "personalized/local_test/accuracy", by default the
            `main_metric`.
        rounds: See `Runs.clients`. Several rounds are averaged.

    Returns:
        A row for each client of each seed, indexed by `seed` and `client_id`, and a column for each
        label, NaN where the label has no finished run of the seed or the quantity is undefined. NaN
        of a diverged model is the worst value, infinity or its negative. Values are not in percent.

    Raises:
        OutputDirectoryError: The runs of a seed do not have the same clients.
        UnknownNameError: No run has the quantity.
    """
    runs = runs.finished
    values = select(runs.clients(rounds), column)
    for _, of_seed in values.groupby("seed"):
        first, *others = map(runs.files, of_seed["run"].unique())
        for other in others:
            if differ := _how_clients_differ(first, other):
                raise OutputDirectoryError(differ)
    worst = -runs.quantity_of(values).better * np.inf
    of_clients = means(values, ["seed", "client_id", "label"]).fillna(worst)
    return of_clients.unstack("label").sort_index()[values["label"].unique()]


def _how_clients_differ(run: RunFiles, other: RunFiles) -> str | None:
    """Returns why two runs cannot be compared client by client, or `None` if they can."""
    data = [files.settings.get("data", {}).get("name") for files in (run, other)]
    own, others = (files.partition.flat() for files in (run, other))
    same = own.keys() == others.keys() and all(np.array_equal(own[k], others[k]) for k in own)
    if data[0] != data[1] or not same:
        return (
            f"{run.path} and {other.path} have different partitions, so their clients cannot be "
            "compared one by one."
        )
    if not np.array_equal(*(files.clients().numbers["client_id"] for files in (run, other))):
        return (
            f"{run.path} and {other.path} have evaluated different clients, which cannot be "
            "compared one by one. Their config.evaluation.clients must be the same."
        )
    return None


def against_local(runs: Runs, column: str | None = None) -> pd.DataFrame:
    """Returns a quantity of each client under its label and under the algorithm `local`.

    Runs are paired by seed if they have evaluated the same clients with the same examples. Labels
    without a pair are left out.

    Args:
        runs: Runs, of which the finished ones are used.
        column: "MODEL/POOL/QUANTITY", by default the `main_metric`.

    Returns:
        Columns `label`, `seed`, `client_id`, `own`, `local`, NaN for a diverged model; empty if no
        run uses the algorithm `local`.

    Raises:
        UnknownNameError: No run has the quantity.
    """
    runs = runs.finished
    values, is_local = select(runs.clients("final"), column), runs.summaries["algorithm"] == "local"
    of_local = runs.summaries[is_local].drop_duplicates("seed")
    pairs = runs.summaries[~is_local].merge(of_local, on="seed", suffixes=("", "_local"))
    is_same = [
        _how_clients_differ(runs.files(run), runs.files(local)) is None
        for run, local in pairs[["run", "run_local"]].values
    ]
    own = values.merge(pairs[np.array(is_same, bool)][["run", "run_local"]], on="run")
    local = values[["run", "client_id", "value"]]
    both = own.merge(local, left_on=["run_local", "client_id"], right_on=["run", "client_id"])
    return both.rename(columns={"value_x": "own", "value_y": "local"}).reindex(columns=_PAIR)


def against(values: pd.DataFrame, baseline: str) -> pd.DataFrame:
    """Returns the values of clients under each label and under a baseline, as `against_local`.

    Args:
        values: The result of `client_values`.
        baseline: The label to compare the others with.
    """
    others = values.drop(columns=baseline).melt(ignore_index=False, value_name="own")
    pairs = others.join(values[baseline].rename("local")).reset_index()
    return pairs.reindex(columns=_PAIR).dropna()


def gains(pairs: pd.DataFrame, better: int) -> pd.DataFrame:
    """Tests whether the clients of each label gain over the baseline.

    Args:
        pairs: The result of `against` or `against_local`.
        better: 1 if more of the quantity is better, or -1.

    Returns:
        A row for each label: `gain`, positive if clients are better, `gain_low`, `gain_high` and
        `p_value`, by `paired_test`; `p_holm` if there are several p values, by `holm`; `hurt` and
        `helped`, the shares of clients over all seeds. Seeds that agree to rounding are one run and
        count once, with a warning.
    """
    rows = {}
    for label, group in pairs.groupby("label", sort=False):
        of_seeds = [own[["own", "local"]].to_numpy().T for _, own in group.groupby("seed")]
        test = paired_test(_differences(of_seeds, label, better), better)
        low, high = sorted([better * test.low, better * test.high])
        shares = test.share_worse, test.share_better
        rows[label] = better * test.difference, low, high, test.p_value, *shares
    found = pd.DataFrame.from_dict(rows, "index", float, _GAIN)
    if found["p_value"].count() > 1:
        found.insert(_GAIN.index("p_value") + 1, "p_holm", holm(found["p_value"]))
    return found


def _differences(pairs, label, better) -> list[np.ndarray]:
    """Returns the differences of `[2, clients]` arrays, of which equal ones count once."""
    distinct: list[np.ndarray] = []
    for own in pairs:
        if not any(own.size and _are_same(own, other) for other in distinct):
            distinct.append(own)
    if repeated := len(pairs) - len(distinct):
        logging.warning(
            "%d of the %d seeds of %s repeat another seed: all clients' values agree to rounding, "
            "as with given initial weights, all clients and full batches. They count once, because "
            "repetitions are no evidence.",
            repeated,
            len(pairs),
            label,
        )
    return [evaluation.differences(own, local, better) for own, local in distinct]


def _are_same(own, other):
    return own.shape == other.shape and np.allclose(own, other, rtol=_SAME, atol=0, equal_nan=True)


def gains_over(baseline: str, runs: Runs, column: str, evaluation: str = "final") -> pd.DataFrame:
    """Returns the `gains` of each label that has a seed of the baseline, over these seeds.

    Args:
        baseline: The label of the baseline.
        runs: Finished runs.
        column: "MODEL/POOL/QUANTITY".
        evaluation: The name of an evaluation in `summary.json`.
    """
    rows = select(runs.evaluations.query("evaluation == @evaluation"), column)
    is_common = rows["seed"].isin(rows["seed"][rows["label"] == baseline])
    compared = rows["label"][is_common].unique()
    if len(compared) < 2:
        return pd.DataFrame(columns=_GAIN, dtype=float)
    values = client_values(runs.only(compared), column, evaluation)
    return gains(against(values, baseline), runs.quantity_of(rows).better)


def hurt_table(pairs: pd.DataFrame, quantity: Quantity = ACCURACY) -> Table:
    """Returns who loses and who gains compared with Local, and by how much on average.

    Args:
        pairs: The result of `against_local`.
        quantity: The quantity of the pairs.
    """
    found = gains(pairs, quantity.better)
    shares = (100 * found[["hurt", "helped"]]).map("{:.1f} %".format)
    cells = shares.join(gain_cells(quantity, found)).rename_axis("method").reset_index()
    order = " or a ".join(("lower", "higher")[:: quantity.better])
    notes = [
        f"Hurt and helped: the shares of clients, over all seeds, with a {order} {quantity.words} "
        "than under Local. A method as good as Local hurts about as many clients as it helps.",
        f"Gain{', in percentage points' * quantity.is_share}: the mean improvement of the same "
        "clients, with the interval and p value of a t test on the means of the seeds. Holm's p, "
        "where there are several methods, is corrected for their number.",
    ]
    return table_of(cells, notes)


@figures.styled
def plot_against_local(
    pairs: pd.DataFrame,
    quantity: Quantity = ACCURACY,
    baseline: str = "Local",
    when: str = "",
):
    """Draws a panel for each label, with a point for each client.

    If less is better, and positive values differ by more than a factor of 10, the axes are
    logarithmic.

    Args:
        pairs: The result of `against_local`, or of `against`.
        quantity: The quantity of the pairs.
        baseline: The name of what clients are compared with.
        when: The evaluation in words, if it is not the last one.

    Returns:
        The Matplotlib figure.
    """
    better, ends = quantity.better, [0, 1]
    if not quantity.is_share:
        values = pairs[["own", "local"]].to_numpy()
        values = values[np.isfinite(values)]
        ends = [values.min(), values.max()] if len(values) else ends
    is_log = better < 0 < 10 * ends[0] < ends[1]
    groups = list(pairs.groupby("label", sort=False))
    size = {"width": 2.6, "height": 2.9, "extra": 0.4, "least": _LEAST_WIDTH}
    figure, every_axes = figures.panels(len(groups), figures.PANELS_A_ROW, **size)
    for axes, (label, group) in zip(every_axes, groups, strict=True):
        axes.plot(ends, ends, color="black", linewidth=1.0, zorder=1)
        own, local = group[["own", "local"]].to_numpy().T
        signed = better * evaluation.differences(own, local, better)
        is_hurt = signed < 0
        handles = [
            axes.scatter(
                group["local"][shown],
                group["own"][shown],
                linewidths=0.4,
                edgecolors="white",
                color=figures.COLORS[color],
                marker=marker,
                s=25,
                alpha=0.7,
            )
            for color, marker, shown in ((0, "o", ~is_hurt), (1, "v", is_hurt))
        ]
        title = figures.wrapped(label, figures.PANEL_CHARACTERS)
        shares = [f"{100 * share.mean():.0f} %" for share in (is_hurt, signed > 0)]
        axes.set_title(f"{title}\n{shares[0]} hurt, {shares[1]} helped", fontsize="small")
        axes.set_aspect("equal")
        # More numbers would touch, those of neighbouring panels, too.
        if quantity.is_share:
            axes.set_xticks([0, 0.5, 1])
        elif is_log:
            for axis in "xy":
                figures.set_log_scale(axes, axis, figures.few_in_decades(*ends))
        else:
            axes.locator_params(axis="x", nbins=3)
    below = f"{quantity.words} of the client's model under {baseline}"
    figure.supxlabel(figures.wrapped(below, _CHARACTERS), fontsize="medium")
    own = ", ".join(filter(None, [f"{quantity.words} of its own model", when]))
    figure.supylabel(figures.wrapped(own, _CHARACTERS), fontsize="medium")
    outcomes = [f"better than under {baseline}, or equal", f"worse than under {baseline}: hurt"]
    if groups:
        labels = [figures.wrapped(outcome, _CHARACTERS) for outcome in outcomes]
        figures.legend_above(figure, handles, labels)
    return figure
