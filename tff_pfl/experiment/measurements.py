"""What is measured at an evaluation."""

import dataclasses
from typing import Any

import numpy as np

from tff_pfl import evaluation
from tff_pfl.clients import CohortDataSource
from tff_pfl.data import FederatedDataset
from tff_pfl.evaluation import MetricName
from tff_pfl.experiment.early_stop import SPLIT, EarlyStop
from tff_pfl.experiment.metrics_log import NEW_CLIENTS, MetricsLog
from tff_pfl.experiment.results import NUM_CLIENTS_NEVER_SELECTED
from tff_pfl.templates import PersonalizedProcess


@dataclasses.dataclass
class Measurements:
    """All that is measured at an evaluation; its tables and snapshots are written."""

    process: PersonalizedProcess
    evaluator: evaluation.Evaluator
    evaluate_new_clients: evaluation.NewClientsEvaluation | None
    early_stop: EarlyStop | None
    source: CohortDataSource
    dataset: FederatedDataset
    options: evaluation.EvaluationOptions
    log: MetricsLog

    def on_own_examples(self, server_state: Any) -> evaluation.ClientMetrics:
        return self.evaluator.on_own_examples(server_state, self.source)

    def on_validation(
        self, server_state: Any, clients: evaluation.ClientMetrics
    ) -> dict[MetricName, float]:
        """All of validation examples where that is asked for, else what an early stop watches."""
        if self.early_stop is None and not self.options.validation:
            return {}
        if self.options.split != SPLIT:
            clients = self.evaluator.on_own_examples(server_state, self.source, SPLIT)
        metrics = evaluation.summarize(clients)
        if self.options.validation:
            return metrics
        return {self.early_stop.watched: metrics[self.early_stop.watched]}

    def __call__(
        self,
        clients: evaluation.ClientMetrics,
        server_state: Any,
        round_num: int,
        reported: np.ndarray,
        *,
        is_last: bool,
    ) -> dict[MetricName, float]:
        """All the rest, with what was measured `on_own_examples`."""
        clients = self.evaluator.with_others(clients, server_state, self.source, is_last=is_last)
        was_selected = reported[clients.client_ids].astype(np.int32)
        columns = clients.columns() | {"was_selected": was_selected}
        self.log.release_table(f"clients/round_{round_num:06d}.csv", columns)
        metrics = evaluation.summarize(clients)
        metrics[NUM_CLIENTS_NEVER_SELECTED] = int(np.sum(~reported))
        if self.evaluate_new_clients is not None and is_last:
            clients = self.evaluate_new_clients(server_state)
            self.log.release_table(NEW_CLIENTS, clients.columns())
            metrics |= evaluation.summarize(clients)
        snapshot = evaluation.take_snapshot(
            self.process,
            server_state,
            self.source.store,
            self.dataset.num_clients,
            clients_per_call=self.options.clients_per_call,
            client_ids=self.evaluator.client_ids,
        )
        if snapshot:
            self.log.release_snapshot(round_num, snapshot)
        return metrics
