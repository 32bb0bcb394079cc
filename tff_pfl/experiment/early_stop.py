"""Ends training when models no longer improve on validation data."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tff_pfl.arguments.quantities import BY_NAME, Quantities
from tff_pfl.arguments.ranges import at_least, whole
from tff_pfl.arguments.settings import setting, settings
from tff_pfl.evaluation import MetricName
from tff_pfl.experiment.summary import EvaluatedRound, model_and_quantity
from tff_pfl.templates.algorithm import evaluated_model

if TYPE_CHECKING:
    from tff_pfl.experiment.experiment import Experiment

SPLIT = "validation"
"""The split that decides. Test examples must not choose the model that they measure."""


class MetricError(ValueError):
    """An error about a metric that a run does not measure; the message suggests another one."""


def check_measured(metric: str, experiment: "Experiment") -> None:
    """Checks that the runs of an experiment measure a metric.

    Args:
        metric: "MODEL/QUANTITY"; see `model_and_quantity`.
        experiment: The experiment.

    Raises:
        MetricError: The algorithm has no global model, or its model does not measure the quantity.
    """
    method = experiment.algorithm
    whose, quantity = model_and_quantity(metric, "the")
    if whose == "global" and method.global_weights is None:
        raise MetricError(
            f"metric={metric!r}, but this algorithm has no global model. Choose "
            f"'personalized/{quantity}'."
        )
    evaluated = evaluated_model(method, whose)
    if quantity not in evaluated.task.quantities:
        raise MetricError(
            f"metric={metric!r}, but the model {evaluated.name!r} has no {quantity}. Choose "
            f"'{whose}/loss'."
        )


@settings
class EarlyStop:
    """A rule that ends a run when its models stop improving on validation data.

    The first evaluation is an improvement. A later evaluation is one if it beats the last
    improvement by more than `least_gain`. A value that is not finite is never an improvement.
    """

    patience: int = setting(
        "The evaluations in a row without an improvement after which a run ends.", whole(1)
    )
    least_gain: float = setting(
        "The gain that an improvement exceeds, in units of the metric: a share for an accuracy, "
        "nats for a loss.",
        at_least(0),
        default=0.0,
    )
    metric: str = setting(
        '"MODEL/QUANTITY", such as "personalized/accuracy" or "global/loss", averaged over '
        "the clients that have validation examples. A loss improves when it falls, a metric of the "
        "task in the direction that it states.",
        default="personalized/accuracy",
    )

    def __post_init__(self):
        """Checks the name of the metric."""
        _ = self.watched

    @property
    def watched(self) -> MetricName:
        """The name of the metric that decides."""
        model, quantity = model_and_quantity(self.metric, "the early stop's")
        return MetricName(model, f"local_{SPLIT}", quantity, "mean")

    def check(self, experiment: "Experiment") -> None:
        """Checks that the evaluations of an experiment measure the metric before its last round.

        Raises:
            ValueError: Only the last round is evaluated, no evaluated client has validation
                examples, or no model has the metric.
        """
        if not experiment.evaluation.every:
            raise ValueError(
                f"patience={self.patience} needs evaluations, but only the last round is "
                "evaluated. Evaluate every round, or every few rounds."
            )
        sizes, sample = experiment.members.sizes(SPLIT), experiment.sample
        if not (sizes if sample is None else sizes[sample]).any():
            raise ValueError(
                f"patience={self.patience} needs validation data, but no client that is evaluated "
                "has validation examples. Give them a share by the fractions of the data, or "
                "without merge by num_validation, or leave out the early stop."
            )
        check_measured(self.metric, experiment)

    def reason(
        self,
        evaluations: Sequence[EvaluatedRound],
        quantities: Quantities = BY_NAME,
    ) -> str | None:
        """Returns why a run ends after its last evaluation, or `None` if it continues.

        Args:
            evaluations: The regular evaluations so far, in order. Those without the metric do not
                count.
            quantities: The quantities of the task.
        """
        watched = self.watched
        values = [(n, metrics[watched]) for n, metrics in evaluations if watched in metrics]
        sign = quantities[watched.quantity].better
        round_num = best_round = waited = 0
        best = -math.inf
        for round_num, value in values:
            if math.isfinite(value) and sign * value > best + self.least_gain:
                best_round, best, waited = round_num, sign * value, 0
            else:
                waited += 1
        if waited < self.patience:
            return None
        so_far = f"the last improvement was {sign * best:.4f} after round {best_round}"
        return (
            f"{watched} did not get better by more than {self.least_gain:g} in "
            f"{self.patience} evaluation{'s' * (self.patience > 1)} up to round {round_num}; "
            + (so_far if best_round else "it was never finite")
        )
