"""What a run leaves in the hands of its caller."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from tff_pfl.evaluation import MetricName, direction
from tff_pfl.names import check_names

# Clients that were in no cohort up to an evaluation; they are evaluated all the same.
NUM_CLIENTS_NEVER_SELECTED = MetricName("", "", "num_clients_never_selected")


def model_and_quantity(metric: str, whose: str) -> tuple[str, str]:
    """The parts of "MODEL/QUANTITY", such as "personalized/accuracy": what decides something.

    Args:
        metric: Its name.
        whose: For the message, as "tuning's".

    Raises:
        UnknownNameError: If a part is none of those that there are.
    """
    model, _, quantity = metric.partition("/")
    check_names(f"model of {whose} metric", [model], ("personalized", "global"))
    check_names(f"quantity of {whose} metric", [quantity], ("accuracy", "loss"))
    return model, quantity


class Evaluation(NamedTuple):
    """The metrics of one evaluation; see `tff_pfl.evaluation.summarize`.

    Attributes:
        round_num: Rounds done, from 1.
        metrics: By name.
    """

    round_num: int
    metrics: Mapping[MetricName, float]

    def mean(self, quantity: str, model: str = "personalized") -> float | None:
        """The mean over clients of a quantity of a model, in the first pool that has it."""
        for name, value in self.metrics.items():
            if (name.model, name.quantity, name.statistic) == (model, quantity, "mean"):
                return value
        return None

    @property
    def quality(self) -> float:
        """The higher, the better: the accuracy of personalized models, or minus their loss."""
        quantity = "loss" if self.mean("accuracy") is None else "accuracy"
        return direction(quantity) * self.mean(quantity)


class Result(NamedTuple):
    """What a run leaves.

    Attributes:
        server_state: The final `ServerState`.
        final: The last evaluation.
        best: The evaluation with the highest mean personalized accuracy (or, for a model without
            accuracy, the lowest loss). It was chosen on the data it reports.
        seconds: Of training and evaluation, all sessions of the run together.
        stopped: Why an early stop has ended the run, after the round of `final`; `None` if none
            has.
    """

    server_state: Any
    final: Evaluation
    best: Evaluation
    seconds: float
    stopped: str | None = None
