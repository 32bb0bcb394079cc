"""Evaluates a federation's models as chosen by one set of options."""

import copy
import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tff_pfl.clients import CohortDataSource
from tff_pfl.data import FederatedDataset
from tff_pfl.evaluation.each_client import (
    GLOBAL,
    chunks,
    evaluated_rows,
    for_each_client,
    models_of,
    stacked,
)
from tff_pfl.evaluation.metrics import ClientMetrics, MetricName
from tff_pfl.evaluation.options import Evaluation, sampled_clients
from tff_pfl.evaluation.pooled import PooledEvaluation
from tff_pfl.evaluation.predictions import Predictions, predicted
from tff_pfl.local import Examples, evaluate, metric_sums
from tff_pfl.models import Mean, Model, Weights
from tff_pfl.templates import PersonalizedProcess


def measured(model: Model, weights: Weights, test: Examples, *, batch_size: int) -> Mapping:
    """Computes the loss and the metrics on a client's examples; see `Model.finalized`."""
    return model.finalized(metric_sums(model, weights, test, batch_size=batch_size))


def mean_loss(model: Model, weights: Weights, examples: Examples, *, batch_size: int) -> Mean:
    """Computes the loss on a client's examples."""
    return evaluate(model, weights, examples, batch_size=batch_size)["loss"]


def metrics_of(
    results: Iterable[Mapping[str, Mapping[str, Mean]]],
    pool: str,
    dataset: FederatedDataset,
    split: str,
    client_ids: np.ndarray,
) -> ClientMetrics:
    """Returns the metrics of clients from the results of `measured`, by model.

    A metric is NaN where it is undefined, as without examples or without weight, and may be NaN for
    a diverged model.

    Args:
        results: The results of the clients, by model and metric.
        pool: The name of the examples' pool, for the names of metrics.
        dataset: The data set of the examples.
        split: The split of the examples.
        client_ids: The clients.
    """
    values, undefined = {}, {}
    for model_name, means in stacked(results).items():
        for metric, (total, count) in means.items():
            name = MetricName(model_name, f"{pool}_{split}", metric)
            undefined[name] = count == 0
            values[name] = _quotient(total, count)
    names = None if dataset.names is None else dataset.names[client_ids]
    sizes = dataset.sizes(split)[client_ids]
    return ClientMetrics(client_ids, sizes, values, names=names, undefined=undefined)


def _quotient(total, count) -> np.ndarray:
    total, count = np.asarray(total, np.float64), np.asarray(count, np.float64)
    return np.divide(total, count, out=np.full(total.shape, np.nan), where=count != 0)


class Evaluator:
    """An evaluation of the clients of a federation, all of them or a sample.

    Clients are evaluated whether or not they took part in training.

    Attributes:
        client_ids: int64, the evaluated clients in ascending order.
        is_sample: Whether these were drawn from more clients.
    """

    def __init__(
        self,
        process: PersonalizedProcess,
        dataset: FederatedDataset,
        options: Evaluation,
        seed: int = 0,
    ):
        """Draws the sample of clients, and the other clients of each, with a seed.

        Raises:
            ValueError: The federation has fewer clients than `options.clients`, or no client of the
                sample has examples.
        """
        self.client_ids, self.is_sample = np.arange(dataset.num_clients), bool(options.clients)
        if self.is_sample:
            self.client_ids = sampled_clients(seed, dataset.num_clients, options.clients)
            if not np.any(dataset.sizes(options.split)[self.client_ids]):
                raise ValueError(
                    f"None of the clients={options.clients} that were drawn has {options.split} "
                    "examples. Evaluate more clients."
                )
        self._process = process
        self._task = process.evaluated_model.task
        self._dataset = dataset
        self._options = options
        self._each = functools.partial(for_each_client, process, at_a_time=options.clients_per_call)
        self._measure = self._each(measured)
        if options.generalization != "never":
            self._on_pool = PooledEvaluation(process, dataset, options, seed)

    def of_clients(self, client_ids: np.ndarray) -> "Evaluator":
        """Returns the evaluation of some of the clients, which shares all computations."""
        found = copy.copy(self)
        found.client_ids = np.asarray(client_ids)
        return found

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
        """Evaluates on each client's own examples, such as `personalized/local_test/accuracy`.

        Args:
            server_state: See `__call__`.
            source: See `__call__`.
            split: The split. Default: the split of the options.
        """
        split = split or self._options.split
        rows = evaluated_rows(source, "validation", "test")
        results = self._measure(server_state, source, self.client_ids, split, rows)
        found = metrics_of(results, "local", self._dataset, split, self.client_ids)
        if self.is_sample:
            population = int(np.count_nonzero(self._dataset.sizes(split)))
            found = found._replace(population=population)
        return found.of_task(self._task)

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
        when = self._options.generalization
        if when == "always" or (is_last and when == "last"):
            clients = clients.with_values(self.on_pool(server_state, source))
        return clients

    def on_pool(self, server_state: Any, source: CohortDataSource) -> ClientMetrics:
        """Evaluates on other clients' examples; see `PooledEvaluation`."""
        return self._on_pool(server_state, source, self.client_ids)

    def predictions(self, server_state: Any, source: CohortDataSource) -> Predictions:
        """Predicts each client's own examples of the split.

        Args:
            server_state: See `__call__`.
            source: See `__call__`.

        Returns:
            The predictions in the order of the clients and of each client's examples.
        """
        split = self._options.split
        results = self._each(predicted)(server_state, source, self.client_ids, split)
        return Predictions.of(results, self._dataset, split, self.client_ids)

    def models(
        self, server_state: Any, source: CohortDataSource, client_ids: Sequence[int] | np.ndarray
    ) -> Iterator[Weights]:
        """Yields the own models of these clients.

        Args:
            server_state: See `__call__`.
            source: See `__call__`.
            client_ids: The clients, of the sample or not.
        """
        for ids in chunks(client_ids, self._options.clients_per_call):
            yield from self._process.personalize(server_state, source.clients_of_ids(ids))

    def losses(
        self, server_state: Any, source: CohortDataSource, client_ids: Sequence[int] | np.ndarray
    ) -> np.ndarray:
        """Computes the global model's mean loss on clients' training examples.

        Client states and random numbers have no influence, so the losses are a function of the
        server's state and the data. Selectors of clients may depend on them.

        Returns:
            float64 `[clients]`; NaN for a client without examples.
        """
        found = list(self._lose(server_state, source, client_ids, "train"))
        return _quotient(*stacked(found)[GLOBAL]) if found else np.zeros(0)

    @functools.cached_property
    def _lose(self):
        models = {GLOBAL: models_of(self._process)[GLOBAL]}
        return self._each(mean_loss, models)

    def snapshot(self, server_state: Any, source: CohortDataSource) -> dict[str, np.ndarray]:
        """Returns arrays to look at by name, of the server's state and of the clients' states.

        Arrays of clients have a leading axis of the evaluated clients. If these are a sample, the
        array `client_id` has their ids.

        Args:
            server_state: See `__call__`.
            source: See `__call__`.
        """
        process = self._process
        arrays = {} if process.snapshot is None else dict(process.snapshot(server_state))
        if process.client_snapshot is None:
            return arrays
        if self.is_sample:
            arrays["client_id"] = self.client_ids
        return arrays | self.client_snapshot(server_state, source)

    def client_snapshot(self, server_state: Any, source: CohortDataSource) -> dict[str, np.ndarray]:
        """Returns arrays of the clients' states; see `snapshot`."""
        take: Any = self._process.client_snapshot
        states = map(source.store.get, chunks(self.client_ids, self._options.clients_per_call))
        return stacked(itertools.chain.from_iterable(map(take, states)))
