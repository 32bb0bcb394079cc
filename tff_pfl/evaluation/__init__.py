"""Federated evaluation: which model, on which data, is in the name of every metric."""

from tff_pfl.evaluation.federated import EvaluatedClient, build_evaluation, evaluate_federation
from tff_pfl.evaluation.statistics import over_clients, summarize

__all__ = [
    "EvaluatedClient",
    "build_evaluation",
    "evaluate_federation",
    "over_clients",
    "summarize",
]
