"""Whether one variant is better than another: a paired test over clients and seeds."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tff_pfl import evaluation
from tff_pfl.experiment import OutputDirectoryError, RunFiles
from tff_pfl.reports.columns import Column
from tff_pfl.reports.comparison import RunResult

_LEVEL = 0.95  # of the interval


class PairedTest(NamedTuple):
    """The difference of two variants.

    Attributes:
        difference: The mean over seeds, of the mean over clients.
        low: Where the 95 % interval begins; NaN where there are fewer than two seeds, or the
            difference is not finite.
        high: Where it ends.
        p_value: Two-sided; NaN as `low`.
        num_seeds: Those that both variants have.
        share_worse: The share of clients, of all seeds, with less than under the other variant, or
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
    found: a large p value is no sign of equality. P values of several variants against one are not
    corrected for their number.

    Args:
        differences: Of each seed, those of its clients, float64 `[clients]`.
        direction: 1 where more is better, or -1.
    """
    from scipy import special

    num_seeds = len(differences)
    with np.errstate(invalid="ignore"):  # of infinities
        means = np.array([_mean(own) for own in differences])
        difference = float(_mean(means))
    share_worse = float(np.mean(direction * np.concatenate(differences) < 0))
    if num_seeds < 2 or not np.isfinite(difference):
        return PairedTest(difference, np.nan, np.nan, np.nan, num_seeds, share_worse)
    error = float(means.std(ddof=1) / np.sqrt(num_seeds))
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


def paired_differences(
    results: Sequence[RunResult], others: Sequence[RunResult], column: Column
) -> list[np.ndarray]:
    """What each client has more than under the other variant, by seeds.

    Args:
        results: Runs of a variant.
        others: Runs of the other; only seeds that both have are compared.
        column: The quantity of each client, and at which evaluation.

    Returns:
        float64 `[clients]` of each seed, of the clients with examples.

    Raises:
        OutputDirectoryError: If the runs of a seed have not the same partition, or were evaluated
            on other samples of clients, or a run has no such quantity.
    """
    of_seed = {other.seed: other for other in others}
    sign = evaluation.direction(column.name.quantity)
    return [
        evaluation.differences(*paired_values(result, of_seed[result.seed], column), sign)
        for result in results
        if result.seed in of_seed
    ]


def paired_values(
    result: RunResult, other: RunResult, column: Column
) -> tuple[np.ndarray, np.ndarray]:
    """A quantity of the same clients in two runs; see `paired_differences`."""
    check_same_clients(result, other)
    return _values(result, column), _values(other, column)


def _values(run, column):
    """Of each client; of several rounds the mean."""
    files, name = RunFiles(run.path), str(column.name._replace(statistic=""))
    rounds = run.evaluations[column.evaluation].rounds
    return np.mean([files.clients(number).values(name) for number in rounds], axis=0)


def check_same_clients(result: RunResult, other: RunResult) -> None:
    """Refuses runs that have not evaluated the same clients.

    Raises:
        OutputDirectoryError: If their partitions differ, or their samples of clients.
    """
    if not same_partition(result, other):
        raise OutputDirectoryError(
            f"{result.path} and {other.path} have different partitions: their clients are not the "
            "same, and cannot stand beside each other, one by one."
        )
    if not same_ids(result, other):
        raise OutputDirectoryError(
            f"{result.path} and {other.path} have evaluated different clients ({len(_ids(result))} "
            f"and {len(_ids(other))} of them), which cannot be compared one by one. Their "
            "config.evaluation.clients should be the same."
        )


def same_ids(result: RunResult, other: RunResult) -> bool:
    """Whether clients of the same ids were evaluated last in two runs."""
    return np.array_equal(_ids(result), _ids(other))


def _ids(run):
    return RunFiles(run.path).clients().columns["client_id"]


def same_partition(result: RunResult, other: RunResult) -> bool:
    """Whether the clients of two runs have the same examples of the same data set."""
    if result.name_of("data") != other.name_of("data"):
        return False
    own, others = (RunFiles(run.path).partition().flat() for run in (result, other))
    return all(np.array_equal(own[name], others[name]) for name in own)
