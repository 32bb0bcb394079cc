"""Metrics of an evaluation, with names that state the model, the examples and the statistic."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

# The statistics of a quantity over clients; see `over_clients`.
STATISTICS = ("mean", "std", "worst_5_percent", "best_5_percent")
MARGIN = "mean_margin"
"""The additional statistic for a sample of clients; see `mean_margin`."""
_LESS_IS_BETTER = ("loss", "error", "error_rate", "entropy", "mse", "rmse", "mae", "nll")
_LESS_IS_BETTER += ("perplexity", "nonfinite")


def direction(quantity: str) -> int:
    """Returns 1 if more of a quantity is better, as for accuracies, and -1 if less is better.

    Less is better if the name is "loss", "error", "error_rate", "entropy", "mse", "rmse", "mae",
    "nll", "perplexity" or "nonfinite", or ends in one of these after a "_".
    """
    return -1 if f"_{quantity}".endswith(tuple(f"_{name}" for name in _LESS_IS_BETTER)) else 1


class MetricName(NamedTuple):
    """The name of a metric, which `str` writes as `MODEL/POOL/QUANTITY_STATISTIC`.

    For example, `str(MetricName("personalized", "local_test", "accuracy", "mean"))` is
    `personalized/local_test/accuracy_mean`.

    Attributes:
        model: "personalized", "global", "locally_trained" (the global model after the client's
            training, as in a round), "fine_tuned" (the client's own model after fine-tuning; for a
            new client, the global model) or "fine_tuned_best_epoch" (for new clients, after the
            epoch that is best on the same examples). Empty for metrics without a model.
        pool: The owner and the split of the examples, such as "local_test", "generalization_test"
            or "new_clients_test". Empty for metrics without a model.
        quantity: The measured quantity, such as "accuracy".
        statistic: One of `STATISTICS`, or `MARGIN`. Empty for one client's value, and for counts.
    """

    model: str
    pool: str
    quantity: str
    statistic: str = ""

    @property
    def is_of_own_examples(self) -> bool:
        """Whether the metric is measured on each client's own examples, of any split."""
        return self.pool.startswith(("local_", "new_clients_"))

    def __str__(self) -> str:
        """Returns `MODEL/POOL/QUANTITY_STATISTIC`, without empty parts."""
        path = "/".join(filter(None, [self.model, self.pool, self.quantity]))
        return f"{path}_{self.statistic}" if self.statistic else path

    @classmethod
    def parse(cls, text: str) -> "MetricName":
        """Parses a name that `str` wrote.

        Raises:
            ValueError: The text is not the name of a metric.
        """
        has_no_model = "/" not in text
        try:
            model, pool, rest = ("", "", text) if has_no_model else text.split("/", 2)
        except ValueError as error:
            raise ValueError(f"{text!r} is not the name of a metric.") from error
        for statistic in (*STATISTICS, MARGIN):
            if rest.endswith(f"_{statistic}"):
                return cls(model, pool, rest.removesuffix(f"_{statistic}"), statistic)
        return cls(model, pool, rest)


class ClientMetrics(NamedTuple):
    """The metrics of several clients.

    Attributes:
        client_ids: int `[clients]`.
        num_examples: int `[clients]`, the number of each client's own examples of the split.
        values: float64 `[clients]` by names without a statistic; NaN for clients without examples.
        population: The number of clients with examples from which this sample was drawn, or `None`
            if these are all clients.
    """

    client_ids: np.ndarray
    num_examples: np.ndarray
    values: Mapping[MetricName, np.ndarray]
    population: int | None = None

    def columns(self) -> dict[str, np.ndarray]:
        """Returns the columns of a table: `client_id`, `num_examples`, and one for each metric."""
        return {
            "client_id": self.client_ids,
            "num_examples": self.num_examples,
            **{str(name): values for name, values in self.values.items()},
        }


def to_text(metrics: Mapping[MetricName, float]) -> dict[str, float]:
    """Returns the metrics with names as text, for a file."""
    return {str(name): value for name, value in metrics.items()}


def from_text(metrics: Mapping[str, float | None]) -> dict[MetricName, float]:
    """Returns the metrics that `to_text` wrote to a file; `None`, JSON's null, becomes NaN.

    Raises:
        ValueError: A key is not the name of a metric.
    """
    return {
        MetricName.parse(name): math.nan if value is None else value
        for name, value in metrics.items()
    }
