"""Statistics over clients."""

import numpy as np

from tff_pfl.evaluation.metrics import STATISTICS, ClientMetrics, MetricName


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
        return dict.fromkeys(STATISTICS, float("nan"))
    tail = max(1, round(0.05 * len(values)))
    return {
        "mean": float(values.mean()),
        "std": float(values.std()),
        "worst_5_percent": float(values[:tail].mean()),
        "best_5_percent": float(values[-tail:].mean()),
    }


def summarize(clients: ClientMetrics) -> dict[MetricName, float]:
    """The metrics of an evaluation: statistics over the clients that have examples.

    Losses are averaged, and `num_nonfinite` counts models that have diverged: whose loss is not
    finite, which makes the mean loss so too. Of every other quantity, all statistics of
    `over_clients` are given.

    Args:
        clients: What was measured of each client.
    """
    has_examples = clients.num_examples > 0
    metrics = {}
    for name, values in clients.values.items():
        values = values[has_examples]
        statistics = over_clients(values)
        if name.quantity == "loss":
            metrics[name._replace(statistic="mean")] = statistics["mean"]
            diverged = name._replace(quantity="num_nonfinite")
            metrics[diverged] = int(np.sum(~np.isfinite(values)))
        else:
            for statistic, value in statistics.items():
                metrics[name._replace(statistic=statistic)] = value
    return metrics
