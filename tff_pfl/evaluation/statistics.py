"""Statistics over clients."""

from collections.abc import Mapping

import numpy as np


def over_clients(values: np.ndarray) -> dict[str, float]:
    """Mean, spread and tails of one number per client.

    Args:
        values: One value a client; NaN for a client that has none, which is left out.

    Returns:
        `mean` and `std`, the unweighted mean and the population standard deviation over clients;
        `worst_5_percent` and `best_5_percent`, the means of the lowest and the highest
        `max(1, round(0.05 N))` values (PLGU's top and lowest 5 %). NaN if there is no value.
    """
    values = np.sort(values[~np.isnan(values)])
    if not len(values):
        return dict.fromkeys(("mean", "std", "worst_5_percent", "best_5_percent"), float("nan"))
    tail = max(1, round(0.05 * len(values)))
    return {
        "mean": float(values.mean()),
        "std": float(values.std()),
        "worst_5_percent": float(values[:tail].mean()),
        "best_5_percent": float(values[-tail:].mean()),
    }


def summarize(columns: Mapping[str, np.ndarray]) -> dict[str, float]:
    """The metrics of an evaluation, from its table of clients.

    Losses are averaged over clients; of every other metric, all statistics of `over_clients` are
    given, as in `personalized/local_test/accuracy_mean`.

    Args:
        columns: Of `tff_pfl.evaluation.evaluate_federation`.
    """
    metrics = {}
    for name, values in columns.items():
        if "/" not in name:
            continue
        statistics = over_clients(values)
        if name.endswith("/loss"):
            metrics[f"{name}_mean"] = statistics["mean"]
        else:
            metrics |= {f"{name}_{key}": value for key, value in statistics.items()}
    return metrics
