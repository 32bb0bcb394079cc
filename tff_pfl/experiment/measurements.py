"""The measurements of an evaluation of a run."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from tff_pfl import evaluation
from tff_pfl.clients import CohortDataSource
from tff_pfl.data import FederatedDataset
from tff_pfl.evaluation import MetricName
from tff_pfl.experiment.checkpoint import Progress
from tff_pfl.experiment.early_stop import SPLIT, EarlyStop
from tff_pfl.experiment.metrics_log import NEW_CLIENTS, MetricsLog
from tff_pfl.experiment.summary import NUM_CLIENTS_NEVER_SELECTED, Evaluation
from tff_pfl.templates import PersonalizedProcess


@dataclasses.dataclass
class Measurements:
    """Evaluates a run, and writes the tables and snapshots of each evaluation."""

    process: PersonalizedProcess
    evaluator: evaluation.Evaluator
    evaluate_new_clients: evaluation.NewClientsEvaluation | None
    early_stop: EarlyStop | None
    source: CohortDataSource
    dataset: FederatedDataset
    options: evaluation.EvaluationOptions
    log: MetricsLog
    evaluate_every: int

    def stopped(self, evaluations: Sequence[Evaluation]) -> str | None:
        """Returns why the run ends early after these evaluations, if it does."""
        if self.early_stop is None:
            return None
        return self.early_stop.reason(evaluations, self.evaluate_every)

    def __call__(self, progress: Progress, *, is_last: bool) -> dict[MetricName, float]:
        """Returns all metrics.

        Clients' own examples come first: by them an early stop says whether the round is the last.

        Args:
            progress: The progress of the run, which learns whether this is its last round.
            is_last: Whether there is no other round, even without an early stop.
        """
        state, round_num = progress.server_state, progress.round_num
        clients = self.evaluator.on_own_examples(state, self.source)
        validated = self._on_validation(state, clients)
        evaluations = [*progress.evaluations, Evaluation(round_num, validated)]
        is_last = is_last or self.stopped(evaluations) is not None
        progress.ended = round_num if is_last else 0
        clients = self.evaluator.with_others(clients, state, self.source, is_last=is_last)
        was_selected = progress.reported[clients.client_ids].astype(np.int32)
        columns = clients.columns() | {"was_selected": was_selected}
        self.log.release_table(f"clients/round_{round_num:06d}.csv", columns)
        metrics = evaluation.summarize(clients)
        metrics[NUM_CLIENTS_NEVER_SELECTED] = int(np.sum(~progress.reported))
        if self.evaluate_new_clients is not None and is_last:
            new_clients = self.evaluate_new_clients(state)
            self.log.release_table(NEW_CLIENTS, new_clients.columns())
            metrics |= evaluation.summarize(new_clients)
        self._take_snapshot(state, round_num)
        return metrics | validated

    def _on_validation(self, state: Any, clients) -> dict[MetricName, float]:
        """Measures all of validation examples if that is asked for, else what is watched."""
        if self.early_stop is None and not self.options.validation:
            return {}
        if self.options.split != SPLIT:
            clients = self.evaluator.on_own_examples(state, self.source, SPLIT)
        metrics = evaluation.summarize(clients)
        if self.options.validation:
            return metrics
        return {self.early_stop.watched: metrics[self.early_stop.watched]}

    def _take_snapshot(self, state: Any, round_num: int) -> None:
        snapshot = evaluation.take_snapshot(
            self.process,
            state,
            self.source.store,
            self.dataset.num_clients,
            clients_per_call=self.options.clients_per_call,
            client_ids=self.evaluator.client_ids,
        )
        if snapshot:
            self.log.release_snapshot(round_num, snapshot)
