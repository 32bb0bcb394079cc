"""The result of a run, for its caller."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tff_pfl.evaluation import MetricName, direction
from tff_pfl.names import check_names

# Clients that were in no cohort up to an evaluation; they are evaluated all the same.
NUM_CLIENTS_NEVER_SELECTED = MetricName("", "", "num_clients_never_selected")


def model_and_quantity(metric: str, whose: str) -> tuple[str, str]:
    """Returns the parts of the name of a metric that decides something.

    Args:
        metric: "MODEL/QUANTITY", such as "personalized/accuracy".
        whose: The owner of the metric, for the message, as "tuning's".

    Raises:
        UnknownNameError: If there is no such model or quantity.
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
        """Returns the mean over clients of a quantity of a model, in the first pool that has it."""
        for name, value in self.metrics.items():
            if (name.model, name.quantity, name.statistic) == (model, quantity, "mean"):
                return value
        return None

    @property
    def rounds(self) -> tuple[int, ...]:
        """Returns the one round, as `LateMean` has several."""
        return (self.round_num,)

    def quality(self, split: str) -> float | None:
        """Returns what evaluations are compared by: the higher, the better; -inf for NaN.

        It is the first of these that was measured: the mean accuracy of personalized models on
        their clients' own examples of the split, minus their mean loss, and the same of the global
        model. `None`: none was measured.
        """
        for model in ("personalized", "global"):
            for quantity in ("accuracy", "loss"):
                value = self.metrics.get(MetricName(model, f"local_{split}", quantity, "mean"))
                if value is not None:
                    return -math.inf if math.isnan(value) else direction(quantity) * value
        return None


def best_on(split: str, evaluations: Sequence[Evaluation]) -> Evaluation | None:
    """Returns the evaluation of the best quality on a split, the first of equals, or `None`."""
    compared = [evaluated for evaluated in evaluations if evaluated.quality(split) is not None]
    return max(compared, key=lambda evaluated: evaluated.quality(split), default=None)


class LateMean(NamedTuple):
    """The mean of the late evaluations of a run.

    Attributes:
        rounds: The rounds of the evaluations, in order.
        metrics: The means over them, of the models' metrics that all of them have.
    """

    rounds: tuple[int, ...]
    metrics: Mapping[MetricName, float]

    @classmethod
    def of(cls, evaluations: Sequence[Evaluation], share: float) -> "LateMean":
        """Returns the mean of the last evaluations.

        Args:
            evaluations: All of a run, in order; one at least.
            share: The share of them that counts, rounded up, but one at least.
        """
        number = max(1, math.ceil(share * len(evaluations) - 1e-9))  # of 0.1 * 30, 3
        late = evaluations[-number:]
        metrics = {
            name: float(np.mean([evaluated.metrics[name] for evaluated in late]))
            for name in late[-1].metrics
            if name.model and all(name in evaluated.metrics for evaluated in late)
        }
        return cls(tuple(evaluated.round_num for evaluated in late), metrics)


class Result(NamedTuple):
    """The result of a run; `summary.json` has all of it but the server's state.

    Attributes:
        title: The algorithm and the data set.
        final: The last evaluation.
        best_on_validation: The evaluation that is best on validation examples, see
            `Evaluation.quality`; its numbers on test examples had no part in the choice. `None` if
            nothing was evaluated on validation examples.
        best_on_test: The evaluation that is best on test examples. It is chosen on the data it
            reports, which makes its numbers too good; papers have them all the same. `None` if
            nothing was evaluated on test examples.
        late_mean: The mean of the late evaluations.
        seconds: Seconds of training and evaluation, all sessions of the run together.
        stopped: Why an early stop ended the run after the round of `final`; `None` if none did.
        privacy: What the run reveals of its clients, see `PrivacyLoss.summary`; `None` for a run
            that promises nothing.
        server_state: The final `ServerState`; `None` in a result that was read.
    """

    title: str
    final: Evaluation
    best_on_validation: Evaluation | None
    best_on_test: Evaluation | None
    late_mean: LateMean
    seconds: float
    stopped: str | None = None
    privacy: Mapping[str, Any] | None = None
    server_state: Any = None

    @property
    def evaluations(self) -> dict[str, Evaluation | LateMean]:
        """Returns the evaluations by the names of their attributes, the last one first."""
        names = ("final", "best_on_validation", "best_on_test", "late_mean")
        named = {name: getattr(self, name) for name in names}
        return {name: evaluated for name, evaluated in named.items() if evaluated is not None}
