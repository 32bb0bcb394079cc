"""Generalization: evaluates every client's model on the examples of other clients.

All examples of a split form one pool, in which each example has an owner. Each model is evaluated
once on each example of the pool. From these scores follow

    generalization_SPLIT   the mean over the pool (FedPG's G-acc)
    synthetic50_SPLIT      the mean over the examples of the client itself and of
                           `r = round(0.5 (N - 1))` other clients, drawn once (S-acc with c = 0.5;
                           c = 0 is the client's own accuracy, c = 1 the generalization)

FedPG's authors draw from each of these pools, also once, as many examples as the client itself has.
With `subsample`, this module does the same, which has the same expectation and more noise.
"""

import collections
import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.arguments.ranges import between, each, takes, whole
from tff_pfl.clients import CohortDataSource
from tff_pfl.data import FederatedDataset
from tff_pfl.evaluation.federated import at_once, outputs_of_row
from tff_pfl.evaluation.metrics import ClientMetrics, MetricName
from tff_pfl.local import Batch, Examples, num_rows
from tff_pfl.local.examples import type_of_examples
from tff_pfl.models import Mean, Model
from tff_pfl.models.task import finalized
from tff_pfl.templates import PersonalizedProcess
from tff_pfl.tracing.equality import elementwise_equality
from tff_pfl.tracing.structures import type_of_row, type_of_rows

# Separate the random numbers of these draws from others with the same seed.
_CLIENTS_STREAM, _EXAMPLES_STREAM = 0x5ACC, 0x5ACC5
_ROUNDING = 1e-9  # In float64, 0.29 * 50 is less than 14.5.


def drawn_clients(seed: int, client_id: int, num_clients: int, fraction: float) -> np.ndarray:
    """Draws the clients on whose examples a client's model is evaluated, including the client.

    The function is pure, so draws are the same in all rounds and algorithms. The clients drawn for
    a smaller fraction are among the clients drawn for a larger one.

    Args:
        seed: The seed of the draw.
        client_id: The client.
        num_clients: N.
        fraction: `c`, the fraction of the N - 1 other clients, whose number is rounded half up.
    """
    others = np.delete(np.arange(num_clients), client_id)
    order = np.random.default_rng([seed, client_id, _CLIENTS_STREAM]).permutation(others)
    number = int(np.floor(fraction * (num_clients - 1) + 0.5 + _ROUNDING))
    return np.sort(np.append(order[:number], client_id))


@takes(synthetic=each(between(0, 1)), seed=whole(0), batch_size=whole(1))
class PooledEvaluation:
    """An evaluation of every client's models, and of the global model, on the pool."""

    def __init__(
        self,
        process: PersonalizedProcess,
        model: Model,
        dataset: FederatedDataset,
        *,
        split: str = "test",
        synthetic: Sequence[float] = (0.5,),
        subsample: bool = False,
        seed: int = 0,
        batch_size: int = 1000,
    ):
        """Prepares the evaluation.

        Args:
            process: The algorithm.
            model: The algorithm's model.
            dataset: The data set of the pool.
            split: "test" or "validation".
            synthetic: The fractions `c` of synthetic pools, in [0, 1].
            subsample: Whether to draw only as many examples from each pool as the client has.
            seed: The seed of the draws.
            batch_size: The most examples in a forward pass. It does not change the result.

        Raises:
            ValueError: No client has examples in the split, two fractions agree in six digits, or
                examples are drawn for a metric that is not a mean over examples.
        """
        self._process = process
        self._models = {"personalized": process.personalize, **process.further_models}
        model = process.algorithm.evaluated_model or model
        self._score = _scores(model, process.client_type.data)
        self._subsample = subsample
        self._seed = seed
        self._sizes = dataset.sizes(split)
        if not self._sizes.any():
            raise ValueError(f"The pool is empty: no client has {split} examples.")
        pools = [dataset.examples(client_id, split) for client_id in range(dataset.num_clients)]
        rows = tf.nest.map_structure(
            lambda *leaves: np.concatenate(leaves), *((pool.x, pool.y) for pool in pools)
        )
        self._ends = np.cumsum(self._sizes)
        self._weights = _example_weights(model.task, rows[1], self._ends[-1])
        self._summed = {n: m for n, m in model.task.metrics.items() if m.values is None}
        if subsample and self._summed:
            raise ValueError(
                f"subsample=True draws single examples, but the metric {min(self._summed)!r} is "
                "not a mean over examples. Set subsample=False."
            )
        # With very many outputs, batches are of fewer rows, and of one client at a time.
        outputs = outputs_of_row(process, model)
        batch_size = at_once(batch_size, outputs)
        self._outputs = outputs * batch_size
        # The sums of such metrics are of whole clients.
        ends = self._ends if self._summed else self._ends[-1:]
        self._chunks, self._owners = [], []
        for owner, (first, end) in enumerate(itertools.pairwise([0, *ends.tolist()])):
            for start in range(first, end, batch_size):
                size = min(batch_size, end - start)
                self._chunks.append(Examples(*_slice(rows, start, size), np.int32(size)))
                self._owners.append(owner)
        self._fractions = {f"generalization_{split}": 1.0}
        for fraction in synthetic:
            name = f"synthetic{100 * fraction:g}_{split}"
            if self._fractions.setdefault(name, fraction) != fraction:
                raise ValueError(f"Two fractions are too close to have different names: {name}.")

    def __call__(
        self,
        server_state: Any,
        source: CohortDataSource,
        *,
        clients_per_call: int = 25,
        client_ids: np.ndarray | None = None,
    ) -> ClientMetrics:
        """Evaluates the models of all clients or of a sample, a few clients at a time.

        Args:
            server_state: The process's `ServerState`.
            source: The source of the clients' states and training examples.
            clients_per_call: The most clients evaluated at a time, which bounds memory.
            client_ids: The clients whose models are evaluated, on the same pools. `None` means all
                clients.

        Returns:
            Metrics such as `personalized/generalization_test/accuracy`, of the `personalized`
            models, of `process.further_models` and, if there is one, of the `global` model, which
            is evaluated on each client's pools.
        """
        client_ids = np.arange(len(self._sizes)) if client_ids is None else client_ids
        means = collections.defaultdict(lambda: np.zeros([2, len(client_ids)]))
        global_scores = {}
        if self._process.global_weights is not None:
            (scores,) = self._all_scores([self._process.global_weights(server_state)])
            global_scores = {"global": scores}
        clients_per_call = at_once(clients_per_call, self._outputs)
        for start in range(0, len(client_ids), clients_per_call):
            ids = client_ids[start : start + clients_per_call]
            clients = source.clients_of_ids(ids)
            scores = {
                name: self._all_scores(models(server_state, clients))
                for name, models in self._models.items()
            }
            for index, client_id in enumerate(ids):
                own_scores = {name: by_client[index] for name, by_client in scores.items()}
                self._reduce(means, start + index, client_id, own_scores | global_scores)
        undefined = {name: count == 0 for name, (_, count) in means.items()}
        values = {
            name: np.where(undefined[name], np.nan, total) for name, (total, _) in means.items()
        }
        return ClientMetrics(client_ids, self._sizes[client_ids], values, undefined=undefined)

    def _all_scores(self, models) -> list["_Scores"]:
        """Computes the metrics of each model on the pool."""
        chunks = [self._score(models, chunk) for chunk in self._chunks]
        return [
            self._scores_of([chunk[index] for chunk in chunks]) for index in range(len(chunks[0]))
        ]

    def _scores_of(self, chunks) -> "_Scores":
        """Joins the results of one model on all chunks."""
        values = {
            name: np.concatenate([chunk["values"][name] for chunk in chunks])
            for name in chunks[0]["values"]
        }
        sums = {}
        for name in self._summed:
            owners = [None] * len(self._sizes)
            for owner, chunk in zip(self._owners, chunks, strict=True):
                owners[owner] = _added(owners[owner], chunk["sums"][name])
            sums[name] = owners
        return _Scores(values, sums)

    def _reduce(self, results, row, client_id, scores: Mapping[str, "_Scores"]) -> None:
        """Computes the models' metrics on the client's pools, as `Mean`s, in its column."""
        pools = {pool: self._rows(client_id, share) for pool, share in self._fractions.items()}
        for (model_name, found), (pool, rows) in itertools.product(scores.items(), pools.items()):
            for metric, values in found.values.items():
                results[MetricName(model_name, pool, metric)][:, row] = self._mean(values, rows)
            owners = drawn_clients(self._seed, client_id, len(self._sizes), self._fractions[pool])
            for metric, by_owner in found.sums.items():
                sums = functools.reduce(_added, (by_owner[owner] for owner in owners))
                if sums is not None:
                    sums = tf.nest.map_structure(tf.constant, sums)
                    means = finalized(metric, self._summed[metric], sums)
                    for quantity, mean in means.items():
                        results[MetricName(model_name, pool, quantity)][:, row] = mean

    def _mean(self, values, rows) -> Mean:
        """Returns the mean over rows, with the task's weights of examples, and 1, or zeros."""
        if self._weights is not None:
            rows = rows[self._weights[rows] > 0]
        if not len(rows):
            return Mean(0.0, 0.0)
        if self._weights is None:
            return Mean(values[rows].mean(dtype=np.float64), 1.0)
        weights = self._weights[rows].astype(np.float64)
        return Mean(np.average(values[rows].astype(np.float64), weights=weights), 1.0)

    def _rows(self, client_id, fraction) -> np.ndarray:
        """Returns the indices of the examples in a client's pool."""
        owners = drawn_clients(self._seed, client_id, len(self._sizes), fraction)
        ends, sizes = self._ends[owners], self._sizes[owners]
        rows = np.concatenate(list(map(np.arange, ends - sizes, ends)))
        if self._subsample:
            rng = np.random.default_rng([self._seed, client_id, _EXAMPLES_STREAM])
            rows = rng.choice(rows, self._sizes[client_id], replace=False)
        return rows


class _Scores(NamedTuple):
    """The results of one model on the pool.

    Attributes:
        values: float32 `[examples]` by name, of the loss and the metrics that are means.
        sums: The sums of other metrics by name, a list with one structure, or `None`, per client.
    """

    values: Mapping[str, np.ndarray]
    sums: Mapping[str, list[Any]]


def _added(one, other):
    """Adds two structures of sums, each of which may be `None`."""
    if one is None or other is None:
        return other if one is None else one
    return tf.nest.map_structure(lambda a, b: np.asarray(a) + np.asarray(b), one, other)


def _example_weights(task, y, number) -> np.ndarray | None:
    """Returns the weights of all examples in a task, or `None` if all are 1."""
    if not task.has_weights(y):
        return None
    return task.weights_of(tf.nest.map_structure(tf.constant, y), tf.ones([number])).numpy()


def _slice(rows, start, number):
    return tf.nest.map_structure(lambda leaf: leaf[start : start + number], rows)


def _scores(model: Model, data_type: tff.types.StructType) -> tff.Computation:
    """Builds `(<{W}@CLIENTS, D@SERVER> -> {scores}@CLIENTS)`.

    Scores are the metrics of each client's weights on each of the server's examples, and the sums
    of other metrics.
    """
    summed = [name for name, metric in model.task.metrics.items() if metric.values is None]
    # The number of rows is open here, even if clients have a fixed one.
    x_type, y_type = (type_of_rows(type_of_row(rows)) for rows in (data_type.x, data_type.y))
    examples_type = type_of_examples(x_type, y_type)

    @tff.tensorflow.computation(model.weights_type, examples_type)
    @elementwise_equality()
    def score(weights, examples):
        ones = tf.ones([num_rows(examples)])
        batch = Batch(examples.x, examples.y, ones, seed=tf.zeros([2], tf.int32))
        found = collections.OrderedDict(values=model.example_values(weights, batch))
        if summed:
            sums = model.sums(weights, batch)
            found["sums"] = collections.OrderedDict((name, sums[name]) for name in summed)
        return found

    @tff.federated_computation(
        tff.types.FederatedType(model.weights_type, tff.CLIENTS),
        tff.types.FederatedType(examples_type, tff.SERVER),
    )
    def score_clients(weights, examples):
        return tff.federated_map(score, (weights, tff.federated_broadcast(examples)))

    return score_clients
