"""Metrics of an evaluation, with names that state the model, the examples and the statistic."""

import math
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tff_pfl.arguments.quantities import BY_NAME, EVALUATED_MODELS, Quantities

if TYPE_CHECKING:  # TensorFlow would delay programs that only read files.
    from tff_pfl.models import Task

# The statistics of a quantity over clients; see `over_clients`.
STATISTICS = ("mean", "std", "worst_5_percent", "best_5_percent")
MARGIN = "mean_margin"
"""The additional statistic for a sample of clients; see `mean_margin`."""


class MetricName(NamedTuple):
    """The name of a metric, which `str` writes as `MODEL/POOL/QUANTITY_STATISTIC`.

    For example, `str(MetricName("personalized", "local_test", "accuracy", "mean"))` is
    `personalized/local_test/accuracy_mean`.

    Attributes:
        model: "personalized", "global", "locally_trained" (the global model after the client's
            training, as in a round) or "fine_tuned" (the client's own model after fine-tuning; for
            a new client, the global model). Empty for metrics without a model.
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

        The name of a round's metric, such as `train/loss`, is a quantity without a model.
        """
        parts = text.split("/", 2)
        if len(parts) == 1:
            parts = ["", "", text]
        elif len(parts) == 2 or parts[0] not in EVALUATED_MODELS:
            return cls("", "", text)
        model, pool, rest = parts
        for statistic in (*STATISTICS, MARGIN):
            if rest.endswith(f"_{statistic}"):
                return cls(model, pool, rest.removesuffix(f"_{statistic}"), statistic)
        return cls(model, pool, rest)


def main_metric(names: Iterable[MetricName]) -> MetricName | None:
    """Returns the main metric of a run, which reports show and by which evaluations are compared.

    It is the first metric of the task, or the loss if the task has no metrics: of clients' own
    models, or else of the global model, on the first pool of examples. A count, such as
    `num_tokens`, is not a main metric.

    Args:
        names: The names of measured values, in the order of an evaluation, which has the loss first
            and then the task's metrics. Only means over clients and values of clients count.

    Returns:
        One of the names, or `None` if no model of a client or of the server was evaluated.
    """
    measured = [name for name in names if name.statistic in ("", "mean")]
    for model in ("personalized", "global"):
        of_model = [name for name in measured if name.model == model]
        of_model = [name for name in of_model if not name.quantity.startswith("num_")]
        if of_model:
            return next((name for name in of_model if name.quantity != "loss"), of_model[0])
    return None


class ClientMetrics(NamedTuple):
    """The metrics of several clients.

    Attributes:
        client_ids: int `[clients]`.
        num_examples: int `[clients]`, the number of each client's own examples of the split.
        values: float64 `[clients]` by names without a statistic; NaN for clients without examples.
        population: The number of clients with examples from which this sample was drawn, or `None`
            if these are all clients.
        quantities: The quantities of the task.
        names: The clients' names, or `None` if they have none.
        undefined: Which values are undefined, in the shape of the values. Their NaN says nothing,
            unlike the NaN of a diverged model. Values of names without an entry are defined for
            all clients with examples.
    """

    client_ids: np.ndarray
    num_examples: np.ndarray
    values: Mapping[MetricName, np.ndarray]
    population: int | None = None
    quantities: Quantities = BY_NAME
    names: np.ndarray | None = None
    undefined: Mapping[MetricName, np.ndarray] = types.MappingProxyType({})

    def of_task(self, task: "Task") -> "ClientMetrics":
        """Returns the metrics with what a task states about them."""
        return self._replace(quantities=task.quantities)

    def is_defined(self, name: MetricName) -> np.ndarray:
        """Returns which values of a metric count in statistics, in the shape of the values.

        These are the defined values of clients with examples. NaN of a diverged model counts.
        """
        is_empty = np.reshape(self.num_examples == 0, [-1, *[1] * (self.values[name].ndim - 1)])
        return ~(is_empty | self.undefined.get(name, np.zeros_like(self.values[name], bool)))

    def with_values(self, others: "ClientMetrics") -> "ClientMetrics":
        """Returns the metrics with further ones of the same clients."""
        values = {**self.values, **others.values}
        undefined = {**self.undefined, **others.undefined}
        return self._replace(values=values, undefined=undefined)

    @classmethod
    def together(cls, parts: Sequence["ClientMetrics"]) -> "ClientMetrics":
        """Returns the metrics of the clients of all parts, in ascending order of their ids."""
        order = np.argsort(np.concatenate([part.client_ids for part in parts]))

        def of(arrays):
            return np.concatenate(list(arrays))[order]

        first = parts[0]
        return first._replace(
            client_ids=of(part.client_ids for part in parts),
            num_examples=of(part.num_examples for part in parts),
            values={name: of(part.values[name] for part in parts) for name in first.values},
            undefined={name: of(it.undefined[name] for it in parts) for name in first.undefined},
            names=None if first.names is None else of(part.names for part in parts),
        )

    def columns(self, undefined: float | None = math.nan) -> dict[str, np.ndarray]:
        """Returns the columns of a table: `client_id`, `num_examples`, and one for each metric.

        `client_id` has the clients' names, if they have any.

        Args:
            undefined: The entry for undefined values. `None` becomes an empty cell of a file.
        """
        columns = {
            "client_id": self.client_ids if self.names is None else self.names,
            "num_examples": self.num_examples,
        }
        for name, values in self.values.items():
            is_undefined = self.undefined.get(name, np.False_)
            if is_undefined.any():
                values = np.where(is_undefined, np.asarray(undefined), values)
            columns[str(name)] = values
        return columns


def to_text(metrics: Mapping[MetricName, float]) -> dict[str, float]:
    """Returns the metrics with names as text, for a file."""
    return {str(name): value for name, value in metrics.items()}


def from_text(metrics: Mapping[str, float | None]) -> dict[MetricName, float]:
    """Returns the metrics that `to_text` wrote to a file; `None`, JSON's null, becomes NaN."""
    return {
        MetricName.parse(name): math.nan if value is None else value
        for name, value in metrics.items()
    }
