"""Computes statistics over clients."""

from typing import NamedTuple

import numpy as np

from tff_pfl.evaluation.metrics import MARGIN, STATISTICS, ClientMetrics, MetricName


def over_clients(values: np.ndarray, direction: int = 1) -> dict[str, float]:
    """Computes mean, spread and tails of one number per client.

    Args:
        values: One value for each client.
        direction: 1 if more is better, -1 if less is better.

    Returns:
        `mean` and `std`, the unweighted mean and the population standard deviation over clients;
        `worst_5_percent` and `best_5_percent`, the means of the worst and the best
        `max(1, round(0.05 N))` values. If more is better, these are the lowest and the highest
        values (PLGU's lowest and top 5 %). NaN, from a diverged model, is the worst value. Without
        values, all statistics are NaN.
    """
    values = np.sort(values)  # NaNs are last.
    if direction == 1:
        values = np.roll(values, np.isnan(values).sum())
    if not len(values):
        return dict.fromkeys(STATISTICS, float("nan"))
    with np.errstate(invalid="ignore"):  # Losses may be infinite.
        worst, best = _tails(values, 0.05)[::direction]
        return dict(
            zip(STATISTICS, (float(values.mean()), float(values.std()), worst, best), strict=True)
        )


def _tails(sorted_values, share) -> tuple[float, float]:
    """Returns the means of the lowest and the highest share of values, at least one value each."""
    number = max(1, round(share * len(sorted_values)))
    return float(sorted_values[:number].mean()), float(sorted_values[-number:].mean())


def mean_margin(values: np.ndarray, population: int, num_drawn: int | None = None) -> float:
    """Computes half the width of a 95 % confidence interval for the population's mean.

    For `n` of `N` clients, drawn uniformly without replacement, of which `m` have a value, with the
    standard deviation `s` (of `m - 1` degrees of freedom), it is

        t s sqrt((1 - n / N) / m),

    where `t` is the 0.975 quantile of Student's distribution with these degrees of freedom
    (Cochran, Sampling Techniques, 3rd edition, 1977, chapter 2). The factor `1 - n / N`, the finite
    population correction, is 0 if the sample is the population. The interval assumes that the
    sample's mean is normally distributed. This holds approximately for some dozens of clients,
    unless nearly all of them have the same value.

    Args:
        values: float `[m]`.
        population: `N`.
        num_drawn: `n`, if the quantity is undefined for some of the clients; by default `m`.

    Returns:
        The half width, or NaN if there is no value, only one of several, or a non-finite one.
    """
    from scipy import special

    number = len(values)
    num_drawn = number if num_drawn is None else num_drawn
    if num_drawn == population:
        return 0.0 if number and np.isfinite(values).all() else float("nan")
    if number < 2 or not np.isfinite(values).all():
        return float("nan")
    error = values.std(ddof=1) * np.sqrt((1 - num_drawn / population) / number)
    return float(special.stdtrit(number - 1, 0.975) * error)


class Distribution(NamedTuple):
    """The distribution of a quantity over clients, unweighted except for `weighted_mean`.

    Attributes:
        num_clients: The number of clients.
        num_examples: The total number of examples of all clients.
        mean: The mean over clients.
        weighted_mean: The mean over clients, weighted by their numbers of examples.
        std: The population standard deviation over clients.
        lowest_5_percent: The mean of the lowest `max(1, round(0.05 N))` values.
        lowest_10_percent: The mean of the lowest `max(1, round(0.1 N))` values.
        top_10_percent: The mean of the highest `max(1, round(0.1 N))` values.
        top_5_percent: The mean of the highest `max(1, round(0.05 N))` values.
        deciles: The nine deciles, with linear interpolation between values.
    """

    num_clients: int
    num_examples: int
    mean: float
    weighted_mean: float
    std: float
    lowest_5_percent: float
    lowest_10_percent: float
    top_10_percent: float
    top_5_percent: float
    deciles: tuple[float, ...]

    @classmethod
    def of(cls, values: np.ndarray, num_examples: np.ndarray) -> "Distribution":
        """Computes the distribution of one value per client.

        Args:
            values: float `[clients]`, for one client or more.
            num_examples: int `[clients]`, the number of each client's examples, positive.
        """
        ordered = np.sort(values)
        with np.errstate(invalid="ignore"):  # Losses may be infinite.
            (lowest_5, top_5), (lowest_10, top_10) = (_tails(ordered, s) for s in (0.05, 0.1))
            return cls(
                len(values),
                int(num_examples.sum()),
                float(values.mean()),
                float(np.average(values, weights=num_examples)),
                float(values.std()),
                lowest_5,
                lowest_10,
                top_10,
                top_5,
                tuple(_decile(ordered, tenths) for tenths in range(1, 10)),
            )


def _decile(ordered, tenths) -> float:
    """Computes a quantile like `np.quantile`, which would return NaN beside infinite values."""
    place, rest = divmod(tenths * (len(ordered) - 1), 10)
    below, above = ordered[place], ordered[min(place + 1, len(ordered) - 1)]
    return float(below if not rest or below == above else below + rest / 10 * (above - below))


def groups_of(clients: ClientMetrics, was_selected: np.ndarray) -> dict[str, np.ndarray]:
    """Groups the clients that have examples by whether they took part in training.

    Args:
        clients: The metrics of each client.
        was_selected: bool `[clients]`, whether a client was in the cohort of any round.

    Returns:
        bool `[clients]` by the name of a group: `all`, `participants`, `never_selected`. Empty
        groups are left out.
    """
    has_examples = clients.num_examples > 0
    groups = {
        "all": has_examples,
        "participants": has_examples & was_selected,
        "never_selected": has_examples & ~was_selected,
    }
    return {name: members for name, members in groups.items() if members.any()}


def distributions(
    clients: ClientMetrics, was_selected: np.ndarray
) -> dict[str, dict[MetricName, Distribution]]:
    """Computes the distribution of each quantity over clients, for each group of `groups_of`."""
    return {
        group: {
            name: Distribution.of(values[counted], clients.num_examples[counted])
            for name, values in clients.values.items()
            if (counted := members & clients.is_defined(name)).any()
        }
        for group, members in groups_of(clients, was_selected).items()
    }


def summarize(clients: ClientMetrics) -> dict[MetricName, float]:
    """Computes the metrics of an evaluation: statistics over the clients that have examples.

    Losses are averaged, and `num_nonfinite` counts diverged models, whose loss is not finite and
    makes the mean loss non-finite. Clients for which a quantity is undefined, such as the area
    under the curve of one class, or any quantity without tokens, are left out of its statistics;
    `num_undefined_QUANTITY` is their number, of a quantity that is not a mean over examples. Every
    quantity but the loss has all statistics of `over_clients`. If the clients are a sample, these
    are the statistics of the sample, and each mean has a `mean_margin`, because it estimates the
    mean of the population. The clients with examples in the sample are a uniform sample of all
    clients with examples.

    Args:
        clients: The metrics of each client.
    """
    metrics, has_examples = {}, clients.num_examples > 0
    for name, values in clients.values.items():
        is_defined = clients.is_defined(name)
        values = values[is_defined]
        statistics = over_clients(values, clients.quantities[name.quantity].better)
        if name.quantity == "loss":
            metrics[name._replace(statistic="mean")] = statistics["mean"]
            diverged = name._replace(quantity="num_nonfinite")
            metrics[diverged] = int(np.sum(~np.isfinite(values)))
        else:
            for statistic, value in statistics.items():
                metrics[name._replace(statistic=statistic)] = value
        if clients.population is not None:
            margin = mean_margin(values, clients.population, int(has_examples.sum()))
            metrics[name._replace(statistic=MARGIN)] = margin
        if clients.quantities[name.quantity].is_partial:
            undefined = name._replace(quantity=f"num_undefined_{name.quantity}")
            metrics[undefined] = int(np.sum(~is_defined & has_examples))
    return metrics
