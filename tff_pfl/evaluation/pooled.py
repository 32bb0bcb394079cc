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
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.clients import CohortDataSource
from tff_pfl.data import FederatedDataset
from tff_pfl.equality import elementwise_equality
from tff_pfl.evaluation.metrics import MetricName
from tff_pfl.local import Batch, Examples, num_rows
from tff_pfl.local.examples import type_of_examples
from tff_pfl.models import Model
from tff_pfl.ranges import between, each, takes, whole
from tff_pfl.structures import type_of_row, type_of_rows
from tff_pfl.templates import PersonalizedProcess

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
            batch_size: The number of examples in a forward pass. It does not change the result.

        Raises:
            ValueError: No client has examples in the split, or two fractions agree in six digits.
        """
        self._process = process
        self._models = {"personalized": process.personalize, **process.further_models}
        self._score = _scores(process.evaluated_model or model, process.client_type.data)
        self._subsample = subsample
        self._seed = seed
        self._sizes = dataset.sizes(split)
        if not self._sizes.any():
            raise ValueError(f"The pool is empty: no client has {split} examples.")
        pools = [dataset.examples(client_id, split) for client_id in range(dataset.num_clients)]
        rows = tf.nest.map_structure(
            lambda *leaves: np.concatenate(leaves), *((pool.x, pool.y) for pool in pools)
        )
        number = self._sizes.sum()
        self._chunks = [
            Examples(*_slice(rows, start, batch_size), np.int32(min(batch_size, number - start)))
            for start in range(0, number, batch_size)
        ]
        self._ends = np.cumsum(self._sizes)
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
    ) -> dict[MetricName, np.ndarray]:
        """Evaluates the models of all clients or of a sample, a few clients at a time.

        Args:
            server_state: The process's `ServerState`.
            source: The source of the clients' states and training examples.
            clients_per_call: The number of clients evaluated at a time, which bounds memory.
            client_ids: The clients whose models are evaluated, on the same pools. `None` means all
                clients.

        Returns:
            float64 `[clients]` for metrics such as `personalized/generalization_test/accuracy`, of
            the `personalized` models, of `process.further_models` and, if there is one, of the
            `global` model, which is evaluated on each client's pools.
        """
        client_ids = range(len(self._sizes)) if client_ids is None else client_ids
        means = collections.defaultdict(lambda: np.full(len(client_ids), np.nan))
        global_scores = {}
        if self._process.global_weights is not None:
            (scores,) = self._all_scores([self._process.global_weights(server_state)])
            global_scores = {"global": scores}
        for start in range(0, len(client_ids), clients_per_call):
            ids = client_ids[start : start + clients_per_call]
            clients = source.select_clients(ids)
            scores = {
                name: self._all_scores(models(server_state, clients))
                for name, models in self._models.items()
            }
            for index, client_id in enumerate(ids):
                own_scores = {name: by_client[index] for name, by_client in scores.items()}
                self._reduce(means, start + index, client_id, own_scores | global_scores)
        return dict(means)

    def _all_scores(self, models) -> list[dict[str, np.ndarray]]:
        """Computes the metrics of each model on every example of the pool."""
        chunks = [self._score(models, chunk) for chunk in self._chunks]
        return [
            {name: np.concatenate([chunk[index][name] for chunk in chunks]) for name in first}
            for index, first in enumerate(chunks[0])
        ]

    def _reduce(
        self, means, row, client_id, scores: Mapping[str, Mapping[str, np.ndarray]]
    ) -> None:
        """Averages the models' scores over the client's pools, and writes them to its row."""
        pools = {pool: self._rows(client_id, share) for pool, share in self._fractions.items()}
        for (model_name, metrics), (pool, rows) in itertools.product(scores.items(), pools.items()):
            for metric, values in metrics.items():
                if len(rows):
                    mean = values[rows].mean(dtype=np.float64)
                    means[MetricName(model_name, pool, metric)][row] = mean

    def _rows(self, client_id, fraction) -> np.ndarray:
        """Returns the indices of the examples in a client's pool."""
        owners = drawn_clients(self._seed, client_id, len(self._sizes), fraction)
        ends, sizes = self._ends[owners], self._sizes[owners]
        rows = np.concatenate(list(map(np.arange, ends - sizes, ends)))
        if self._subsample:
            rng = np.random.default_rng([self._seed, client_id, _EXAMPLES_STREAM])
            rows = rng.choice(rows, self._sizes[client_id], replace=False)
        return rows


def _slice(rows, start, number):
    return tf.nest.map_structure(lambda leaf: leaf[start : start + number], rows)


def _scores(model: Model, data_type: tff.types.StructType) -> tff.Computation:
    """Builds `(<{W}@CLIENTS, D@SERVER> -> {scores}@CLIENTS)`.

    Scores are the metrics of each client's weights on each of the server's examples.
    """
    # The number of rows is open here, even if clients have a fixed one.
    x_type, y_type = (type_of_rows(type_of_row(rows)) for rows in (data_type.x, data_type.y))
    examples_type = type_of_examples(x_type, y_type)

    @tff.tensorflow.computation(model.weights_type, examples_type)
    @elementwise_equality()
    def score(weights, examples):
        ones = tf.ones([num_rows(examples)])
        batch = Batch(examples.x, examples.y, ones, seed=tf.zeros([2], tf.int32))
        return model.example_values(weights, batch)

    @tff.federated_computation(
        tff.types.FederatedType(model.weights_type, tff.CLIENTS),
        tff.types.FederatedType(examples_type, tff.SERVER),
    )
    def score_clients(weights, examples):
        return tff.federated_map(score, (weights, tff.federated_broadcast(examples)))

    return score_clients
