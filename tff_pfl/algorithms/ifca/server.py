"""IFCA's server: a model for each cluster of clients."""

import collections
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tff_pfl.local import trees


class ClusterModels(NamedTuple):
    """Server state.

    Attributes:
        models: `W`, each tensor with a leading axis of `k`.
        restarts: int32 scalar, how often the models started anew.
        settled: bool scalar, whether they will not any more.
    """

    models: Any
    restarts: Any
    settled: Any


class OwnChoice(NamedTuple):
    """What a client sends: its `cluster`, int32, and the `change` of that model, `W`."""

    cluster: Any
    change: Any


@dataclasses.dataclass(frozen=True)
class IfcaServer:
    """The server's part of IFCA; see `tff_pfl.algorithms.ifca` for its parameters.

    Attributes:
        init_model: Initial weights `W` by a seed.
        seeds: Those of the models, `num_clusters` for the start and for each restart.
    """

    init_model: Callable[[int], Any]
    seeds: Sequence[int]
    num_clusters: int
    averaging: str
    min_share: float

    @property
    def max_restarts(self) -> int:
        """After so many restarts, models stay."""
        return len(self.seeds) // self.num_clusters - 1

    def init(self) -> ClusterModels:
        """The state before the first round."""
        return ClusterModels(self._start(0), tf.constant(0), tf.constant(self.min_share == 0))

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
            starts = [functools.partial(self._start, 1 + r) for r in range(self.max_restarts)]
            anew = tf.switch_case(server.restarts, starts)  # the last of them where it is settled
            models = trees.select(settled, models, anew)
        restarts = server.restarts + tf.cast(tf.logical_not(settled), tf.int32)
        metrics = collections.OrderedDict(
            (f"share_{j}", shares[j]) for j in range(self.num_clusters)
        )
        metrics["restarts"] = restarts
        return ClusterModels(models, restarts, settled), metrics

    def _start(self, restart: int):
        first = restart * self.num_clusters
        drawn = map(self.init_model, self.seeds[first : first + self.num_clusters])
        return tf.nest.map_structure(lambda *leaves: tf.stack(leaves), *drawn)
