"""Statistics over clients."""

from collections.abc import Mapping

import numpy as np


def over_clients(values: np.ndarray) -> dict[str, float]:
    """Mean, spread and tails of one number per client.

    Args:
        values: One value a client.

    Returns:
        `mean` and `std`, the unweighted mean and the population standard deviation over clients;
        `worst_5_percent` and `best_5_percent`, the means of the lowest and the highest
        `max(1, round(0.05 N))` values (PLGU's top and lowest 5 %). NaN if there is no value.
    """
    values = np.sort(values)
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

    Clients with no examples are left out. Losses are averaged over the others, and
    `personalized/local_test/num_nonfinite` counts models that have diverged: whose loss is not
    finite, which makes the mean loss so too. Of every other metric, all statistics of
    `over_clients` are given, as in `personalized/local_test/accuracy_mean`.

    Args:
        columns: Of `tff_pfl.evaluation.evaluate_federation`.
    """
    has_examples = columns["num_examples"] > 0
    metrics = {}
    for name, values in columns.items():
        prefix, slash, metric = name.rpartition("/")
        if not slash:
            continue
        values = values[has_examples]
        if metric == "loss":
            metrics[f"{name}_mean"] = over_clients(values)["mean"]
            metrics[f"{prefix}/num_nonfinite"] = int(np.sum(~np.isfinite(values)))
        else:
            metrics |= {f"{name}_{key}": value for key, value in over_clients(values).items()}
    return metrics
