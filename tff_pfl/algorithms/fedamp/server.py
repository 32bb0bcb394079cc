"""FedAMP's server: every client's last model, and what clients take of each other's."""

import collections
import dataclasses
from typing import Any, NamedTuple

import tensorflow as tf

from tff_pfl.algorithms.fedamp import attention
from tff_pfl.local import trees
from tff_pfl.models import Weights


class FedAMPState(NamedTuple):
    """Server state.

    Attributes:
        models: `W`, each tensor with a leading axis of `num_clients`.
        xi: float32 `[num_clients, num_clients]`; row `i` is of the last round of client `i`.
    """

    models: Weights
    xi: tf.Tensor


class OwnUpload(NamedTuple):
    """What a client sends: its `client_id`, int32, and in the second exchange `model`, `W`."""

    client_id: tf.Tensor
    model: Weights | tuple = ()


@dataclasses.dataclass(frozen=True)
class FedAMPServer:
    """The server's part of FedAMP; see `tff_pfl.algorithms.fedamp` for its parameters."""

    num_clients: int
    similarity: str
    alpha: float
    sigma: float
    self_weight: float | None
    distance_scale: str
    neighbours: str
    alpha_decay: float
    alpha_decay_rounds: int

    def init(self, weights: Any) -> FedAMPState:
        """The state before the first round."""
        return FedAMPState(trees.copies(weights, self.num_clients), tf.eye(self.num_clients))

    def alpha_of(self, round_num: tf.Tensor) -> tf.Tensor:
        """`alpha` of a round, float32 scalar."""
        decays = tf.cast(round_num // self.alpha_decay_rounds, tf.float32)
        return self.alpha * self.alpha_decay**decays

    def own(self, server: FedAMPState, client_id: tf.Tensor) -> Any:
        """The mixture `u_i` that a client receives."""
        return trees.combine(tf.gather(server.xi, client_id), server.models)

    def finalize_arrivals(self, server: FedAMPState, uploads: Any, round_num: tf.Tensor):
        """The state in which those who take part have their `xi_ij`, and metrics.

        Args:
            server: The state.
            uploads: A `Stack` of `OwnUpload` without models.
            round_num: int32 scalar.
        """
        ids = uploads.accepted(uploads.value.client_id).client_id
        neighbour_ids = ids if self.neighbours == "cohort" else tf.range(self.num_clients)
        rows = self._attend(server.models, ids, neighbour_ids, round_num)
        columns = tf.one_hot(neighbour_ids, self.num_clients)
        rows = tf.matmul(rows, columns)  # 0 where there is no neighbour
        xi = trees.put_rows(server.xi, ids, rows)
        own = tf.gather(tf.linalg.diag_part(xi), ids)
        metrics = collections.OrderedDict(
            xi_own=tf.math.divide_no_nan(tf.reduce_sum(own), tf.cast(tf.size(ids), tf.float32))
        )
        return server._replace(xi=xi), metrics

    def finalize(self, server: FedAMPState, uploads: Any, round_num: tf.Tensor):
        """The state with what clients have trained; see `finalize_arrivals`."""
        del round_num
        ids, trained = uploads.accepted(uploads.value.client_id)
        models = trees.put_rows(server.models, ids, trained)
        return server._replace(models=models), collections.OrderedDict()

    def _attend(self, models, ids, neighbour_ids, round_num):
        """`xi` of some clients to their neighbours."""
        is_self = tf.equal(ids[:, tf.newaxis], neighbour_ids)
        own, others = trees.row(models, ids), trees.row(models, neighbour_ids)
        if self.similarity == "cosine":
            cosines = attention.cosines(own, others)
            return attention.cosine_attention(cosines, is_self, self.sigma, self.self_weight)
        distances = attention.squared_distances(own, others)
        if self.distance_scale == "num_weights":
            leaves = tf.nest.flatten(models)
            distances /= sum(leaf.shape[1:].num_elements() for leaf in leaves)
        elif self.distance_scale == "median":
            unit = attention.median_of_others(distances, is_self)
            distances = attention.in_unit(distances, unit)
        return attention.distance_attention(
            distances, is_self, self.alpha_of(round_num), self.sigma
        )
