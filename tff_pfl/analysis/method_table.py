"""Makes the table of a comparison, with a row for each method."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from tff_pfl.analysis import frames, paired
from tff_pfl.analysis.metric_text import EVALUATIONS
from tff_pfl.analysis.runs import Runs
from tff_pfl.evaluation import MetricName, direction

_GAIN = ("gain", "gain_low", "gain_high", "p_value", "hurt", "helped")


def method_table(runs: Runs, column: str, baseline: str, evaluation: str = "final") -> pd.DataFrame:
    """Returns the table that `Comparison.table` documents.

    Args:
        runs: Finished runs.
        column: "MODEL/POOL/QUANTITY".
        baseline: The label that gains are over.
        evaluation: The name of an evaluation in `summary.json`.
    """
    own = frames.select(frames.clients(runs, evaluation), column)
    evaluated = frames.evaluations(runs).query("evaluation == @evaluation")
    found = frames.select(evaluated, column).groupby("label", sort=False)
    summaries = frames.summaries(runs)
    costs = summaries.groupby("label", sort=False)
    table = pd.DataFrame()
    table[MetricName.parse(column).quantity] = found["value"].agg(pd.Series.mean, skipna=False)
    table["std"] = found["value"].agg(pd.Series.std, skipna=False)
    own = frames.means(own, ["label", "run", "client_id"])  # over the rounds of `late_mean`
    of_run = own.groupby(["label", "run"])
    medians = of_run.agg(lambda values: values.median(skipna=False))
    table["median"] = medians.groupby("label").agg(pd.Series.mean, skipna=False)
    seeds = {label: set(of_label["seed"]) for label, of_label in found}
    gains = _gains(runs, column, baseline, evaluation, seeds)
    table = table.join(pd.DataFrame.from_dict(gains, "index", float, _GAIN))
    table["clients"] = of_run.size().groupby("label").mean()
    table["seeds"] = found.size()
    if summaries["rounds"].nunique() > 1:
        table["rounds"] = costs["rounds"].mean()
    table["bytes_up"] = costs["bytes_up"].first().astype(int)
    table["round_seconds"] = costs["round_seconds"].median()
    epsilon = costs["epsilon"].max()
    if (np.isfinite(epsilon) & (epsilon > 0)).any():
        table["epsilon"] = epsilon
    return table.rename_axis("method").rename_axis(EVALUATIONS[evaluation][1] or None, axis=1)


def _gains(runs, column, baseline, evaluation, seeds) -> Mapping[str, tuple[float, ...]]:
    """Returns the numbers of `_GAIN` of each label with a seed of the baseline."""
    common = {label: sorted(own & seeds.get(baseline, set())) for label, own in seeds.items()}
    common = {label: own for label, own in common.items() if own and label != baseline}
    quantity, stated = MetricName.parse(column).quantity, runs.directions
    sign, gains = direction(quantity, stated), {}
    values = paired.client_values(runs, column, evaluation) if common else None
    for label, own in common.items():
        differences = paired.paired_differences(values, label, baseline, own, quantity, stated)
        test = paired.paired_test(differences, sign).as_gain(sign)
        shares = test.share_worse, test.share_better
        gains[label] = (test.difference, test.low, test.high, test.p_value, *shares)
    return gains
