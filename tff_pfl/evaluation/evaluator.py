"""Evaluates a federation's models as chosen by one set of options."""

import functools
from typing import Any

import numpy as np

from tff_pfl.clients import CohortDataSource
from tff_pfl.data import FederatedDataset
from tff_pfl.evaluation.federated import (
    at_once,
    build_evaluation,
    evaluate_federation,
    evaluated_rows,
    outputs_of_row,
)
from tff_pfl.evaluation.metrics import ClientMetrics
from tff_pfl.evaluation.options import SPLITS, Evaluation, sampled_clients
from tff_pfl.evaluation.pooled import PooledEvaluation
from tff_pfl.evaluation.predictions import Predictions, build_predictions, predict_federation
from tff_pfl.models import Model
from tff_pfl.templates import PersonalizedProcess


class Evaluator:
    """An evaluation of the clients of a federation, all of them or a sample.

    Attributes:
        client_ids: int64, the clients of the sample in ascending order, or `None` for all clients.
    """

    def __init__(
        self,
        process: PersonalizedProcess,
        model: Model,
        dataset: FederatedDataset,
        options: Evaluation,
        seed: int = 0,
    ):
        """Draws the sample of clients, and the other clients of each, with a seed.

        Raises:
            ValueError: The federation has fewer clients than `options.clients`, or no client of the
                sample has examples.
        """
        self.client_ids = None
        if options.clients:
            self.client_ids = sampled_clients(seed, dataset.num_clients, options.clients)
            if not np.any(dataset.sizes(options.split)[self.client_ids]):
                raise ValueError(
                    f"None of the clients={options.clients} that were drawn has {options.split} "
                    "examples. Evaluate more clients."
                )
        self._process = process
        self._model = model
        self._dataset = dataset
        self._options = options
        self._evaluation = functools.cache(
            lambda rows: build_evaluation(process, model, batch_size=rows)
        )
        self._pooled = None
        if options.generalization != "never":
            self._pooled = PooledEvaluation(
                process,
                model,
                dataset,
                split=options.split,
                synthetic=options.synthetic,
                subsample=options.subsample,
                seed=seed,
            )

    def __call__(
        self, server_state: Any, source: CohortDataSource, *, is_last: bool
    ) -> ClientMetrics:
        """Evaluates on clients' own examples, and on other clients' if `generalization` says so.

        Args:
            server_state: The process's `ServerState`.
            source: The source of the clients' states and training examples.
            is_last: Whether this is the last evaluation of a run.
        """
        clients = self.on_own_examples(server_state, source)
        return self.with_others(clients, server_state, source, is_last=is_last)

    def on_own_examples(
        self, server_state: Any, source: CohortDataSource, split: str | None = None
    ) -> ClientMetrics:
        """Evaluates on each client's own examples; see `evaluate_federation`.

        Args:
            server_state: See `__call__`.
            source: See `__call__`.
            split: The split. Default: the split of the options.
        """
        rows = evaluated_rows(source, *SPLITS)
        clients = evaluate_federation(
            self._evaluation(rows),
            server_state,
            source,
            self._dataset,
            split=split or self._options.split,
            clients_per_call=self._clients_per_call(rows),
            client_ids=self.client_ids,
        )
        return clients.of_task((self._process.algorithm.evaluated_model or self._model).task)

    def with_others(
        self,
        clients: ClientMetrics,
        server_state: Any,
        source: CohortDataSource,
        *,
        is_last: bool,
    ) -> ClientMetrics:
        """Adds metrics on other clients' examples to `clients`, if `generalization` says so.

        Args:
            clients: The result of `on_own_examples`.
            server_state: See `__call__`.
            source: See `__call__`.
            is_last: See `__call__`.
        """
        options = self._options
        if options.generalization == "always" or (is_last and options.generalization == "last"):
            others = self._pooled(
                server_state,
                source,
                clients_per_call=options.clients_per_call,
                client_ids=self.client_ids,
            )
            clients = clients.with_values(others)
        return clients

    def predictions(self, server_state: Any, source: CohortDataSource) -> Predictions:
        """Predicts each client's own examples of the split; see `predict_federation`.

        Args:
            server_state: See `__call__`.
            source: See `__call__`.
        """
        rows = evaluated_rows(source, self._options.split)
        return predict_federation(
            build_predictions(self._process, self._model, batch_size=rows),
            server_state,
            source,
            self._dataset,
            split=self._options.split,
            clients_per_call=self._clients_per_call(rows),
            client_ids=self.client_ids,
        )

    def _clients_per_call(self, rows: int) -> int:
        outputs = rows * outputs_of_row(self._process, self._model)
        return at_once(self._options.clients_per_call, outputs)
