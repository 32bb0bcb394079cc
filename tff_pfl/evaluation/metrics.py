"""Measurements of an evaluation, by names that say which model, which examples, which statistic."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

# Statistics of a quantity over clients; see `over_clients`.
STATISTICS = ("mean", "std", "worst_5_percent", "best_5_percent")
MARGIN = "mean_margin"
"""The further statistic of a quantity of a sample of clients; see `mean_margin`."""
_LESS_IS_BETTER = ("loss", "error", "error_rate", "entropy", "mse", "rmse", "mae", "nll")
_LESS_IS_BETTER += ("perplexity", "nonfinite")


def direction(quantity: str) -> int:
    """Returns 1 if more of a quantity is better, as for accuracies, and -1 if less is.

    Its name says so: less is better of what ends in "loss", "error", "error_rate", "entropy",
    "mse", "rmse", "mae", "nll", "perplexity" or "nonfinite", by itself or after a "_".
    """
    return -1 if f"_{quantity}".endswith(tuple(f"_{name}" for name in _LESS_IS_BETTER)) else 1


class MetricName(NamedTuple):
    """The name of a number of an evaluation, as `str` writes it: `MODEL/POOL/QUANTITY_STATISTIC`.

        str(MetricName("personalized", "local_test", "accuracy", "mean"))

    is `personalized/local_test/accuracy_mean`.

    Attributes:
        model: "personalized", "global", "locally_trained" (the global model as the client trains
            it in a round), "fine_tuned" (the client's own model after fine-tuning; of a new
            client, the global one) or "fine_tuned_best_epoch" (of new clients, after the epoch
            that was best on the very examples); empty for what is of no model.
        pool: The owner of the examples and their split, as "local_test", "generalization_test" or
            "new_clients_test"; empty for what is of no model.
        quantity: The quantity that is measured, as "accuracy".
        statistic: One of `STATISTICS`, or `MARGIN`; empty for a client's own number, and for
            counts.
    """

    model: str
    pool: str
    quantity: str
    statistic: str = ""

    @property
    def is_of_own_examples(self) -> bool:
        """Whether it is measured on each client's own examples, of whatever split."""
        return self.pool.startswith(("local_", "new_clients_"))

    def __str__(self) -> str:
        path = "/".join(filter(None, [self.model, self.pool, self.quantity]))
        return f"{path}_{self.statistic}" if self.statistic else path

    @classmethod
    def parse(cls, text: str) -> "MetricName":
        """Parses a name that `str` wrote.

        Raises:
            ValueError: If it is not the name of a metric.
        """
        of_no_model = "/" not in text
        try:
            model, pool, rest = ("", "", text) if of_no_model else text.split("/", 2)
        except ValueError as error:
            raise ValueError(f"{text!r} is not the name of a metric.") from error
        for statistic in (*STATISTICS, MARGIN):
            if rest.endswith(f"_{statistic}"):
                return cls(model, pool, rest.removesuffix(f"_{statistic}"), statistic)
        return cls(model, pool, rest)


class ClientMetrics(NamedTuple):
    """Measurements of clients, a row for each.

    Attributes:
        client_ids: int `[clients]`.
        num_examples: int `[clients]`, the client's own examples of the split.
        values: float64 `[clients]` by names without a statistic; NaN where there is no example.
        population: If these are a sample, the number of clients with examples that it was drawn
            of; `None`: these are all.
    """

    client_ids: np.ndarray
    num_examples: np.ndarray
    values: Mapping[MetricName, np.ndarray]
    population: int | None = None

    def columns(self) -> dict[str, np.ndarray]:
        """Returns the columns of a table: `client_id`, `num_examples`, and each of the values."""
        return {
            "client_id": self.client_ids,
            "num_examples": self.num_examples,
            **{str(name): values for name, values in self.values.items()},
        }


def to_text(metrics: Mapping[MetricName, float]) -> dict[str, float]:
    """Returns the metrics by their names as text, for a file."""
    return {str(name): value for name, value in metrics.items()}


def from_text(metrics: Mapping[str, float | None]) -> dict[MetricName, float]:
    """Returns the metrics of a file that `to_text` made; `None`, JSON's null, becomes NaN.

    Raises:
        ValueError: If a key is not the name of a metric.
    """
    return {
        MetricName.parse(name): math.nan if value is None else value
        for name, value in metrics.items()
    }
