"""IFCA's server: a model for each cluster of clients."""

import collections
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tff_pfl.local import trees
from tff_pfl.models import Weights, distinct_seeds


class ClusterModels(NamedTuple):
    """Server state.

    Attributes:
        models: `W`, each tensor with a leading axis of `k`.
        starts: `W`, each tensor with leading axes of `max_restarts` and `k`: where the models start
            anew, time by time; `()` if they never do.
        restarts: int32 scalar, how often the models started anew.
        settled: bool scalar, whether they will not any more.
    """

    models: Weights
    starts: Weights | tuple
    restarts: tf.Tensor
    settled: tf.Tensor


class OwnChoice(NamedTuple):
    """What a client sends: its `cluster`, int32, and the `change` of that model, `W`."""

    cluster: tf.Tensor
    change: Weights


@dataclasses.dataclass(frozen=True)
class IfcaServer:
    """The server's part of IFCA; see `tff_pfl.algorithms.ifca` for its parameters.

    Attributes:
        init_model: Initial weights `W` by a seed.
        max_restarts: After so many restarts, models stay.
    """

    init_model: Callable[[int], Any]
    num_clusters: int
    averaging: str
    min_share: float
    max_restarts: int

    def init(self, seed: int) -> ClusterModels:
        """The state before the first round."""
        k = self.num_clusters
        seeds = distinct_seeds(seed, k * (1 + self.max_restarts))
        drawn = [
            trees.stack(map(self.init_model, seeds[i : i + k])) for i in range(0, len(seeds), k)
        ]
        starts = trees.stack(drawn[1:]) if self.max_restarts else ()
        return ClusterModels(drawn[0], starts, tf.constant(0), tf.constant(self.min_share == 0))

    def finalize(self, server: ClusterModels, uploads: Any, round_num: tf.Tensor):
        """The state after a round, and metrics.

        Args:
            server: The state.
            uploads: A `Stack` of `OwnChoice`.
            round_num: int32 scalar.
        """
        del round_num
        weight = uploads.weight
        of_clusters = functools.partial(
            tf.math.unsorted_segment_sum,
            segment_ids=uploads.value.cluster,
            num_segments=self.num_clusters,
        )
        members = of_clusters(tf.sign(weight))
        shares = members / tf.maximum(tf.reduce_sum(members), 1.0)
        divisors = of_clusters(weight)
        if self.averaging == "gradients":
            divisors = tf.fill([self.num_clusters], tf.reduce_sum(weight))
        sums = tf.nest.map_structure(of_clusters, trees.scale_rows(uploads.value.change, weight))
        moves = trees.scale_rows(sums, tf.math.divide_no_nan(1.0, divisors))
        models = trees.add(server.models, moves)
        settled = server.settled | (tf.reduce_min(shares) >= self.min_share)
        settled |= server.restarts >= self.max_restarts
        settled |= tf.equal(tf.reduce_sum(members), 0.0)  # nobody came: the server keeps its state
        if self.max_restarts:
            index = tf.minimum(server.restarts, self.max_restarts - 1)
            models = trees.select(settled, models, trees.row(server.starts, index))
        restarts = server.restarts + tf.cast(tf.logical_not(settled), tf.int32)
        metrics = collections.OrderedDict(
            (f"share_{j}", shares[j]) for j in range(self.num_clusters)
        )
        metrics["restarts"] = restarts
        return ClusterModels(models, server.starts, restarts, settled), metrics
