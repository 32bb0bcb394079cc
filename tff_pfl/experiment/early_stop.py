"""Ends training when the models no longer get better on validation data."""

import dataclasses
import math
from collections.abc import Sequence

from tff_pfl.data import FederatedDataset
from tff_pfl.evaluation import EvaluationOptions, MetricName, direction, sampled_clients
from tff_pfl.experiment.summary import Evaluation, model_and_quantity
from tff_pfl.models import Model
from tff_pfl.ranges import at_least, takes, whole
from tff_pfl.templates import Algorithm, PersonalizedProcess

SPLIT = "validation"
"""The examples that decide: test examples would measure a model that they had chosen."""


class MetricError(ValueError):
    """Runs do not measure a metric that decides something; the message says what would be right."""


def check_measured(metric: str, method: Algorithm | PersonalizedProcess, model: Model) -> None:
    """Refuses a metric, as of `model_and_quantity`, that runs of a method do not have.

    Raises:
        MetricError: If the method has no global model, or its model measures something else.
    """
    whose, quantity = model_and_quantity(metric, "the")
    if whose == "global" and method.global_weights is None:
        raise MetricError(
            f"metric={metric!r}, but this algorithm has no global model. Choose "
            f"'personalized/{quantity}'."
        )
    evaluated = method.evaluated_model or model
    if quantity != "loss" and quantity not in evaluated.example_metrics:
        raise MetricError(
            f"metric={metric!r}, but the model {evaluated.name!r} has no {quantity}. Choose "
            f"'{whose}/loss'."
        )


@takes(patience=whole(1), least_gain=at_least(0))
@dataclasses.dataclass(frozen=True)
class EarlyStop:
    """Ends a run after so many evaluations in a row without an improvement on validation data.

    The first evaluation is an improvement, and so is each that is better than the last improvement
    by more than `least_gain`. A number that is not finite is no improvement.

    Attributes:
        patience: Evaluations without an improvement, after which the run ends.
        least_gain: In units of the metric: a share for an accuracy, nats for a loss.
        metric: "MODEL/QUANTITY", as "personalized/accuracy" or "global/loss": its mean over the
            clients that have validation examples. Less is better for a loss.
    """

    patience: int
    least_gain: float = 0.0
    metric: str = "personalized/accuracy"

    def __post_init__(self):
        _ = self.watched  # refuses an unknown metric

    @property
    def watched(self) -> MetricName:
        """Returns the name of the number that decides."""
        model, quantity = model_and_quantity(self.metric, "the early stop's")
        return MetricName(model, f"local_{SPLIT}", quantity, "mean")

    def check(
        self,
        method: Algorithm | PersonalizedProcess,
        model: Model,
        dataset: FederatedDataset,
        options: EvaluationOptions,
    ) -> None:
        """Checks that a run, evaluated with these options, has what is watched.

        Raises:
            ValueError: If no client that is evaluated has validation examples, or nothing has the
                metric.
        """
        sizes = dataset.sizes(SPLIT)
        if options.clients:
            sizes = sizes[sampled_clients(options.seed, dataset.num_clients, options.clients)]
        if not sizes.any():
            raise ValueError(
                f"patience={self.patience} needs validation data, but no client that is evaluated "
                "has validation examples. config.data.fractions, or without merge "
                "config.data.num_validation, gives them some; with patience=0 no run ends early."
            )
        check_measured(self.metric, method, model)

    def check_every(self, evaluate_every: int) -> None:
        """Checks that there are evaluations to decide by.

        Raises:
            ValueError: If only the last round is evaluated.
        """
        if not evaluate_every:
            raise ValueError(
                f"patience={self.patience} needs evaluations, but only the last round is "
                "evaluated (evaluation.every=0). Choose 1 or more rounds."
            )

    def reason(self, evaluations: Sequence[Evaluation], evaluate_every: int = 1) -> str | None:
        """Returns why a run ends after an evaluation, in a sentence; `None` if it goes on.

        Args:
            evaluations: All so far, in order; those that lack what is watched do not count.
            evaluate_every: Rounds between the evaluations that count: a run that is made longer has
                another one where it ended before.
        """
        regular = [
            (round_num, metrics[self.watched])
            for round_num, metrics in evaluations
            if round_num % evaluate_every == 0 and self.watched in metrics
        ]
        sign = direction(self.watched.quantity)
        round_num = best_round = waited = 0
        best = -math.inf
        for round_num, value in regular:
            if math.isfinite(value) and sign * value > best + self.least_gain:
                best_round, best, waited = round_num, sign * value, 0
            else:
                waited += 1
        if waited < self.patience:
            return None
        so_far = f"the last improvement was {sign * best:.4f} after round {best_round}"
        return (
            f"{self.watched} did not get better by more than {self.least_gain:g} in "
            f"{self.patience} evaluation{'s' * (self.patience > 1)} up to round {round_num}; "
            + (so_far if best_round else "it was never finite")
        )
