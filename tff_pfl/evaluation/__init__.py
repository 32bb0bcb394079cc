"""Federated evaluation: which model, on which data, is in the name of every metric."""

from tff_pfl.evaluation.evaluator import GENERALIZATION, EvaluationOptions, Evaluator
from tff_pfl.evaluation.federated import EvaluatedClient, build_evaluation, evaluate_federation
from tff_pfl.evaluation.fine_tuning import fine_tuned, locally_trained
from tff_pfl.evaluation.gain import Gain, gains, gains_of_clients
from tff_pfl.evaluation.global_model import compose_global_evaluation
from tff_pfl.evaluation.loss_surface import grid_axis, loss_surface, random_direction
from tff_pfl.evaluation.metrics import (
    STATISTICS,
    ClientMetrics,
    MetricName,
    direction,
    from_text,
    to_text,
)
from tff_pfl.evaluation.new_clients import NewClientsEvaluation
from tff_pfl.evaluation.pooled import PooledEvaluation, drawn_clients
from tff_pfl.evaluation.snapshots import take_snapshot
from tff_pfl.evaluation.statistics import (
    Distribution,
    distributions,
    groups_of,
    over_clients,
    summarize,
)

__all__ = [
    "GENERALIZATION",
    "STATISTICS",
    "ClientMetrics",
    "Distribution",
    "EvaluatedClient",
    "EvaluationOptions",
    "Evaluator",
    "Gain",
    "MetricName",
    "NewClientsEvaluation",
    "PooledEvaluation",
    "build_evaluation",
    "compose_global_evaluation",
    "direction",
    "distributions",
    "drawn_clients",
    "evaluate_federation",
    "fine_tuned",
    "from_text",
    "gains",
    "gains_of_clients",
    "grid_axis",
    "groups_of",
    "locally_trained",
    "loss_surface",
    "over_clients",
    "random_direction",
    "summarize",
    "take_snapshot",
    "to_text",
]
