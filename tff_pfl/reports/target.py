"""What it takes to reach an accuracy: rounds, bytes and seconds."""

import math
from typing import NamedTuple

import numpy as np

from tff_pfl.evaluation import MetricName, without_rounding
from tff_pfl.experiment import RunFiles
from tff_pfl.reports.cells import ABSENT
from tff_pfl.reports.comparison import Comparison, RunResult
from tff_pfl.reports.curves import read_curve
from tff_pfl.reports.markup import Cell, Table
from tff_pfl.reports.words import in_words

_DEFAULT_SHARE = 0.95  # of the best variant's final mean


class Cost(NamedTuple):
    """Up to the first evaluation at which a run has reached the target.

    Attributes:
        rounds: Done by then.
        megabytes: That a client receives and sends, if it is in all of them.
        seconds: Of these rounds, without evaluations; NaN where the run's files lack some of them.
    """

    rounds: float
    megabytes: float
    seconds: float


def default_target(comparison: Comparison, name: MetricName) -> float:
    """95 % of the best variant's final mean over seeds."""
    means = [
        np.mean([run.final.metrics.get(name, np.nan) for run in results])
        for results in comparison.finished.values()
    ]
    return _DEFAULT_SHARE * float(np.nanmax(means))


def cost_to_target(run: RunResult, name: MetricName, target: float) -> Cost | None:
    """What a run needed until the mean over clients was `target` or more; `None`: never."""
    rounds, means = read_curve(run.path, str(name._replace(statistic="")))
    reached = rounds[without_rounding(means - target, target) >= 0]
    if not len(reached):
        return None
    first = int(reached[0])
    timings = RunFiles(run.path).timings()
    seconds = timings["round_seconds"][timings["round"] <= first]
    megabytes = first * (run.bytes_down + run.bytes_up) / 1e6
    return Cost(first, megabytes, float(seconds.sum()) if len(seconds) == first else math.nan)


def target_table(comparison: Comparison, name: MetricName, target: float) -> Table:
    """A row a variant: means over the seeds that reach the target, and how many do."""
    rows = []
    for label, results in comparison.finished.items():
        costs = [cost_to_target(run, name, target) for run in results if name in run.final.metrics]
        reached = [cost for cost in costs if cost is not None]
        cells = [ABSENT] * 3
        if reached:
            means = Cost(*np.mean(reached, axis=0))
            cells[:2] = f"{means.rounds:.1f}", f"{means.megabytes:.3g}"
            if not math.isnan(means.seconds):
                cells[2] = f"{means.seconds:.1f}"
        rows.append(list(map(Cell, [label, f"{len(reached)} of {len(results)}", *cells])))
    return Table(
        ["method", "seeds that reach it", "rounds", "MB of a client", "seconds"],
        rows,
        [
            f"Up to the first evaluation with {100 * target:.1f} % or more, {in_words(name)}; "
            "means over the seeds that reach it. MB: received and sent by a client that is in each "
            "round."
        ],
    )
