"""Generalization: evaluates every client's model on the examples of other clients.

All examples of a split form one pool, in which each example has an owner. Each model is evaluated
once on each example of the pool. From these scores follow

    generalization_SPLIT   the mean over the pool (FedPG's G-acc)
    synthetic50_SPLIT      the mean over the examples of the client itself and of
                           `r = round(0.5 (N - 1))` other clients, drawn once (S-acc with c = 0.5;
                           c = 0 is the client's own accuracy, c = 1 the generalization)

A client without examples of its own has none of these, as the pools of FedPG's authors, which are
of its size, are empty; it owns no example in the others' pools either.

FedPG's authors draw from each of these pools, also once, as many examples as the client itself has.
With `subsample`, this module does the same, which has the same expectation and more noise.
"""

import collections
import functools
import itertools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tff_pfl.clients import CohortDataSource
from tff_pfl.data import FederatedDataset
from tff_pfl.evaluation.each_client import (
    GLOBAL,
    at_once,
    for_each_client,
    models_of,
    outputs_of_row,
)
from tff_pfl.evaluation.metrics import ClientMetrics, MetricName
from tff_pfl.evaluation.options import Evaluation
from tff_pfl.local import Batch
from tff_pfl.models import Mean, Model, Weights
from tff_pfl.models.task import finalized
from tff_pfl.templates import PersonalizedProcess

_map = tf.nest.map_structure
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


class _Pool(NamedTuple):
    """The examples of all clients.

    Attributes:
        x: The inputs.
        y: The labels.
        batches: int32 `[batches, 3]`: the first row of each batch, the row after its last one, and
            the client that owns them, if there are sums of whole clients.
    """

    x: Any
    y: Any
    batches: np.ndarray


class PooledEvaluation:
    """An evaluation of every client's models, and of the global model, on the pool."""

    def __init__(
        self,
        process: PersonalizedProcess,
        dataset: FederatedDataset,
        options: Evaluation,
        seed: int = 0,
        *,
        batch_size: int = 1000,
    ):
        """Prepares the evaluation.

        Args:
            process: The algorithm.
            dataset: The data set of the pool.
            options: The options of the evaluation.
            seed: The seed of the draws.
            batch_size: The most examples in a forward pass. It does not change the result.

        Raises:
            ValueError: No client has examples in the split, two fractions agree in six digits, or
                examples are drawn for a metric that is not a mean over examples.
        """
        split, task = options.split, process.evaluated_model.task
        self._options, self._seed = options, seed
        self._sizes = dataset.sizes(split)
        if not self._sizes.any():
            raise ValueError(f"The pool is empty: no client has {split} examples.")
        self._ends = np.cumsum(self._sizes)
        self._summed = {n: metric for n, metric in task.metrics.items() if metric.values is None}
        if options.subsample and self._summed:
            raise ValueError(
                f"subsample=True draws single examples, but the metric {min(self._summed)!r} is "
                "not a mean over examples. Set subsample=False."
            )
        self._fractions = {f"generalization_{split}": 1.0}
        for fraction in options.synthetic:
            name = f"synthetic{100 * fraction:g}_{split}"
            if self._fractions.setdefault(name, fraction) != fraction:
                raise ValueError(f"Two fractions are too close to have different names: {name}.")
        own = [dataset.examples(client_id, split) for client_id in range(dataset.num_clients)]
        x, y = _map(
            lambda *leaves: np.concatenate(leaves), *((examples.x, examples.y) for examples in own)
        )
        self._weights = _example_weights(task, y, self._ends[-1])
        # With very many outputs, batches are of fewer rows, and of one client at a time.
        self._rows = at_once(batch_size, outputs_of_row(process))
        fn = functools.partial(_scores, num_clients=len(self._sizes))
        each = functools.partial(
            for_each_client,
            process,
            fn,
            pool=_Pool(x, y, self._batches()),
            at_a_time=options.clients_per_call,
        )
        models = dict(models_of(process))
        shared = models.pop(GLOBAL, None)
        self._of_clients = each(models)
        self._of_server = None if shared is None else each({GLOBAL: shared})

    def _batches(self) -> np.ndarray:
        """Returns the batches of the pool; the sums of some metrics are of whole clients."""
        ends = self._ends if self._summed else self._ends[-1:]
        return np.array(
            [
                (first, min(first + self._rows, end), owner)
                for owner, (start, end) in enumerate(itertools.pairwise([0, *ends.tolist()]))
                for first in range(start, end, self._rows)
            ],
            np.int32,
        )

    def __call__(
        self, server_state: Any, source: CohortDataSource, client_ids: np.ndarray
    ) -> ClientMetrics:
        """Evaluates the models of clients.

        Args:
            server_state: The process's `ServerState`.
            source: The source of the clients' states and training examples.
            client_ids: The clients whose models are evaluated, on the pools of all clients.

        Returns:
            Metrics such as `personalized/generalization_test/accuracy`, of the `personalized`
            models, of `process.further_models` and, if there is one, of the `global` model, which
            is evaluated on each client's pools.
        """
        means: dict[MetricName, np.ndarray] = collections.defaultdict(
            lambda: np.zeros([2, len(client_ids)])
        )
        arguments = server_state, source
        of_server: Mapping[str, Any] = {}
        if self._of_server is not None:
            of_server = next(self._of_server(*arguments, client_ids[:1], batch_size=self._rows))
        results = self._of_clients(*arguments, client_ids, batch_size=self._rows)
        for column, (client_id, own) in enumerate(zip(client_ids, results, strict=True)):
            for name, mean in self._means(client_id, {**own, **of_server}):
                means[name][:, column] = mean
        is_empty = self._sizes[client_ids] == 0
        undefined = {name: is_empty | (count == 0) for name, (_, count) in means.items()}
        values = {
            name: np.where(undefined[name], np.nan, total) for name, (total, _) in means.items()
        }
        return ClientMetrics(client_ids, self._sizes[client_ids], values, undefined=undefined)

    def _means(self, client_id, scores) -> Iterator[tuple[MetricName, Mean]]:
        """Yields the models' metrics on the client's pools."""
        pools = {pool: self._drawn(client_id, c) for pool, c in self._fractions.items()}
        for (model_name, found), (pool, drawn) in itertools.product(scores.items(), pools.items()):
            owners, rows = drawn
            for metric, values in found["values"].items():
                yield MetricName(model_name, pool, metric), self._mean(np.asarray(values), rows)
            for metric, sums in found["sums"].items() if len(rows) else ():
                total = _map(
                    lambda leaf, owners=owners: tf.constant(
                        functools.reduce(np.add, np.asarray(leaf)[owners])
                    ),
                    sums,
                )
                for quantity, mean in finalized(metric, self._summed[metric], total).items():
                    yield MetricName(model_name, pool, quantity), mean

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

    def _drawn(self, client_id, fraction) -> tuple[np.ndarray, np.ndarray]:
        """Returns the owners and the rows of the examples in a client's pool."""
        seed = self._seed
        owners = drawn_clients(seed, client_id, len(self._sizes), fraction)
        ends, sizes = self._ends[owners], self._sizes[owners]
        rows = np.concatenate(list(map(np.arange, ends - sizes, ends)))
        if self._options.subsample:
            rng = np.random.default_rng([seed, client_id, _EXAMPLES_STREAM])
            rows = rng.choice(rows, self._sizes[client_id], replace=False)
        return owners, rows


def _scores(
    model: Model, weights: Weights, pool: _Pool, *, batch_size: int, num_clients: int
) -> Mapping[str, Any]:
    """Computes the metrics of each example, and each client's sums of other metrics.

    Returns:
        `values`, float32 `[examples]` by the names of metrics that are means; and `sums`, stacks
        with a leading axis of owners, by the names of the others.
    """
    del batch_size  # those of the pool
    num_examples = tf.nest.flatten(pool.y)[0].shape[0]
    summed = [name for name, metric in model.task.metrics.items() if metric.values is None]

    def of_batch(first, end):
        x, y = _map(lambda rows: rows[first:end], (pool.x, pool.y))
        batch = Batch(x, y, tf.ones([end - first]), seed=tf.zeros([2], tf.int32))
        sums = model.sums(weights, batch) if summed else {}
        return model.example_values(weights, batch), {name: sums[name] for name in summed}

    def step(index, values, sums):
        first, end, owner = tf.unstack(pool.batches[index])
        of_rows, added = of_batch(first, end)
        rows = tf.range(first, end)[:, tf.newaxis]
        values = _map(lambda all, own: tf.tensor_scatter_nd_update(all, rows, own), values, of_rows)
        sums = _map(lambda all, own: tf.tensor_scatter_nd_add(all, [[owner]], [own]), sums, added)
        return index + 1, values, sums

    # Only the shapes of these results are used.
    values, sums = of_batch(*tf.unstack(pool.batches[0, :2]))
    values = _map(lambda _: tf.zeros([num_examples]), values)
    sums = _map(lambda leaf: tf.zeros([num_clients, *leaf.shape], leaf.dtype), sums)
    number = pool.batches.shape[0]
    _, values, sums = tf.while_loop(lambda index, *_: index < number, step, (0, values, sums))
    return collections.OrderedDict(values=values, sums=sums)


def _example_weights(task, y, number) -> np.ndarray | None:
    """Returns the weights of all examples in a task, or `None` if all are 1."""
    if not task.has_weights(y):
        return None
    return task.weights_of(_map(tf.constant, y), tf.ones([number])).numpy()
