"""FedAMP's server: every client's last model, and the clients' mixtures of them."""

import collections
import dataclasses
from typing import Any, NamedTuple

import tensorflow as tf

from tff_pfl.algorithms.fedamp import attention
from tff_pfl.arguments.names import check_names
from tff_pfl.arguments.ranges import above, between, takes, whole
from tff_pfl.local import trees
from tff_pfl.models import Weights
from tff_pfl.models.statistics import trained_leaves


class FedAMPState(NamedTuple):
    """Server state.

    Attributes:
        models: `W`, each tensor with a leading axis of `num_clients`.
        xi: float32 `[num_clients, num_clients]`; row `i` is from the last round of client `i`.
    """

    models: Weights
    xi: tf.Tensor


class OwnUpload(NamedTuple):
    """A client's upload: its `client_id`, int32, and in the second exchange `model`, `W`."""

    client_id: tf.Tensor
    model: Weights | tuple = ()


@takes(
    num_clients=whole(1),
    alpha=above(0),
    sigma=above(0),
    self_weight=between(0, 1),
    alpha_decay=above(0),
    alpha_decay_rounds=whole(1),
)
@dataclasses.dataclass(frozen=True, kw_only=True)
class FedAMPServer:
    """The server's computations as pure functions.

    Attributes:
        num_clients: The number of clients of the federation; ids are below it. The server's state
            takes `4 n num_clients` bytes for `n` weights.
        similarity: The measure of how alike models are: "distance" (FedAMP) or "cosine"
            (HeurFedAMP).
        alpha: The step of the mixture; `xi_ij`, `j != i`, add up to at most 1 in a row.
        sigma: Width (or with "cosine" sharpness) of the attention.
        self_weight: The share of the client's own model, `xi_ii`, with "cosine"; default one over
            the number of neighbours.
        distance_scale: The unit of squared distances: "none"; "num_weights", the number of
            weights; or "median", the median squared distance between the clients of a cohort and
            their neighbours, without equal models.
        neighbours: The clients whose models are mixed: "cohort", the clients of this round; or
            "all", which adds absent clients with their last known models.
        alpha_decay: The factor by which alpha decays; 0.1 in HeurFedAMP.
        alpha_decay_rounds: The number of rounds between two decays of alpha.
    """

    num_clients: int
    similarity: str = "distance"
    alpha: float = 0.005
    sigma: float = 0.1
    self_weight: float | None = None
    distance_scale: str = "none"
    neighbours: str = "cohort"
    alpha_decay: float = 1.0
    alpha_decay_rounds: int = 30

    def __post_init__(self):
        """Checks the options that are names."""
        check_names("similarity", [self.similarity], ("distance", "cosine"))
        check_names("distance_scale", [self.distance_scale], ("none", "num_weights", "median"))
        check_names("neighbours", [self.neighbours], ("cohort", "all"))

    def init(self, weights: Any) -> FedAMPState:
        """Returns the state before the first round."""
        return FedAMPState(trees.copies(weights, self.num_clients), tf.eye(self.num_clients))

    def alpha_of(self, round_num: tf.Tensor) -> tf.Tensor:
        """Returns the `alpha` of a round, float32 scalar."""
        decays = tf.cast(round_num // self.alpha_decay_rounds, tf.float32)
        return self.alpha * self.alpha_decay**decays

    def own(self, server: FedAMPState, client_id: tf.Tensor) -> Any:
        """Returns the mixture `u_i` that a client receives."""
        return trees.combine(tf.gather(server.xi, client_id), server.models)

    def finalize_arrivals(self, server: FedAMPState, uploads: Any, round_num: tf.Tensor):
        """Computes the `xi_ij` of the cohort; returns the state with them, and metrics.

        Args:
            server: The state.
            uploads: A `Stack` of `OwnUpload` without models.
            round_num: int32 scalar.
        """
        ids = uploads.accepted(uploads.value.client_id).client_id
        neighbour_ids = ids if self.neighbours == "cohort" else tf.range(self.num_clients)
        rows = self._attend(server.models, ids, neighbour_ids, round_num)
        columns = tf.one_hot(neighbour_ids, self.num_clients)
        rows = tf.matmul(rows, columns)  # 0 for clients that are not neighbours
        xi = trees.put_rows(server.xi, ids, rows)
        own = tf.gather(tf.linalg.diag_part(xi), ids)
        metrics = collections.OrderedDict(
            xi_own=tf.math.divide_no_nan(tf.reduce_sum(own), tf.cast(tf.size(ids), tf.float32))
        )
        return server._replace(xi=xi), metrics

    def finalize(self, server: FedAMPState, uploads: Any, round_num: tf.Tensor):
        """Stores the trained models in the state; see `finalize_arrivals`."""
        del round_num
        ids, trained = uploads.accepted(uploads.value.client_id)
        models = trees.put_rows(server.models, ids, trained)
        return server._replace(models=models), collections.OrderedDict()

    def _attend(self, models, ids, neighbour_ids, round_num):
        """Computes clients' `xi` of their neighbours."""
        models = trained_leaves(models)
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
