"""Whether one label is better than another: a paired test over clients and seeds."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from tff_pfl import evaluation
from tff_pfl.analysis.frames import clients, means, select
from tff_pfl.analysis.runs import Path, find_runs, seed_of
from tff_pfl.experiment.run_directory import OutputDirectoryError
from tff_pfl.experiment.run_files import RunFiles

_LEVEL = 0.95  # of the interval


class PairedTest(NamedTuple):
    """The difference of two labels.

    Attributes:
        difference: The mean over seeds, of the mean over clients.
        low: Where the 95 % interval begins; NaN where there are fewer than two seeds, or the
            difference is not finite.
        high: Where it ends.
        p_value: Two-sided; NaN as `low`.
        num_seeds: Those that both labels have.
        share_worse: The share of clients, of all seeds, with less than under the other label, or
            with more of what is better the less of it there is.
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

    Two other tests were simulated with 2, 3 and 5 seeds of 50 clients, without a difference, and
    with luck from none to ten times what is left of the clients' spread in a mean (normal, as this
    test assumes). At a level of 5 %, this one finds a difference in 4 to 6 % of the cases in all of
    them. A bootstrap over seeds and then clients finds too few without luck (1 to 3 %), and too
    many with much of it: 44, 27 and 16 %. Wilcoxon's test of the clients' means over seeds, which
    takes clients to be independent, is right without luck alone; with much of it, it finds one in
    84 to 85 %.

    It does not show that single clients gain, nor that another federation or other settings give
    the same. With two or three seeds only differences that are large against their spread are
    found: a large p value is no sign of equality. P values of several labels against one are not
    corrected for their number.

    Args:
        differences: Of each seed, those of its clients, float64 `[clients]`.
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
    """0 where there is nothing but rounding in it: Student's t makes a result of any number."""
    return evaluation.without_rounding(numbers.mean(), np.abs(numbers).max(initial=0.0))


def client_values(runs: Any, column: str, rounds: int | str = "final") -> pd.DataFrame:
    """Returns one quantity of each client under each label.

    Args:
        runs: See `find_runs`; the finished ones count. Runs of one seed have the same partition.
        column: "MODEL/POOL/QUANTITY", such as "personalized/local_test/accuracy".
        rounds: See `clients`; of several rounds, the mean.

    Returns:
        A row a seed and client, indexed by `seed` and `client_id`; a column a label, NaN where it
        has no finished run of the seed. Values are as measured, not in percent.

    Raises:
        OutputDirectoryError: If the clients of a seed are not the same in all runs.
        UnknownNameError: If there is no such quantity.
    """
    runs = find_runs(runs).finished
    values = select(clients(runs, rounds), column)
    for _, of_seed in values.groupby("seed"):
        first, *others = of_seed["run"].unique()
        for other in others:
            if not same_partition(first, other):
                raise OutputDirectoryError(
                    f"{first} and {other} have different partitions: their clients are not the "
                    "same, and cannot stand beside each other, one by one."
                )
            if not same_ids(first, other):
                raise OutputDirectoryError(
                    f"{first} and {other} have evaluated different clients, which cannot be "
                    "compared one by one. Their config.evaluation.clients should be the same."
                )
    labels = [label for label in runs.folders if label in set(values["label"])]
    return means(values, ["seed", "client_id", "label"]).unstack("label").sort_index()[labels]


def paired_differences(
    runs: Any, label: str, other: str, column: str, rounds: int | str = "final"
) -> list[np.ndarray]:
    """Returns what each client has more than under another label, by seeds.

    Args:
        runs: See `client_values`.
        label: Of some runs.
        other: Of others; only seeds that both have are compared.
        column: See `client_values`.
        rounds: See `client_values`.

    Returns:
        float64 `[clients]` of each seed, of the clients with examples.
    """
    found = find_runs(runs).finished
    of = {name: {seed_of(path): path for path in found.folders[name]} for name in (label, other)}
    seeds = [seed for seed in of[label] if seed in of[other]]
    if not seeds:
        return []
    pair = {name: [of[name][seed] for seed in seeds] for name in of}
    values = client_values(pair, column, rounds)
    sign = evaluation.direction(column.rpartition("/")[2])
    by_seed = [values.loc[seed] for seed in seeds]
    return [
        evaluation.differences(of[label].to_numpy(), of[other].to_numpy(), sign) for of in by_seed
    ]


def same_ids(run: Path, other: Path) -> bool:
    """Checks whether clients of the same ids were evaluated last in two runs."""
    ids = [RunFiles(path).clients().columns["client_id"] for path in (run, other)]
    return np.array_equal(*ids)


def same_partition(run: Path, other: Path) -> bool:
    """Checks whether the clients of two runs have the same examples of the same data set."""
    data = [RunFiles(path).settings().get("data", {}).get("name") for path in (run, other)]
    own, others = (RunFiles(path).partition().flat() for path in (run, other))
    return data[0] == data[1] and all(np.array_equal(own[name], others[name]) for name in own)
