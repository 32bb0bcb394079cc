"""CFL: clients share a model until it suits them all, and then form clusters that agree.

Sattler et al., "Clustered federated learning: model-agnostic distributed multitask optimization
under privacy constraints", IEEE TNNLS 2021.

All clients start in one cluster. If the updates of a cluster cancel out, though those of single
clients are large, it is split into the two parts that are least similar. A round, with means and
maxima over the clients of a cluster in the cohort:

    down    w_c, the model of the client's cluster c
    client  w_i = LocalTraining(w_c)
    up      u_i = w_i - w_c
    server  for each cluster c:
                if ||mean u_i|| < eps_1 and max ||u_i|| > eps_2:
                    c', c'' = the parts of c with the least alpha,
                        alpha = max cos(u_i, u_j) over i in c' and j in c''
                    if sqrt((1 - alpha) / 2) > gamma:  replace c by c' and c'', of the model w_c
            for each cluster c, the new ones too:  w_c <- w_c + mean u_i

A split knows the updates of the cohort only. Other clients of `c` keep `w_c`, which is not trained
any more. When such a client takes part again, it trains `w_c`, and its update moves it to the part
of the larger mean cosine, and has no other effect. So it goes down a tree of splits, one in each
round, until it is in a cluster. The paper leads new clients down this tree, by the largest cosine
instead, for which the server keeps the updates of all clients.

The personal model is that of the client's cluster, or of the split that it is at. There is no
global model.

The least alpha is that of single linkage, the paper's optimal bipartition. The authors' code has
linkage="complete", min_members=3, first_round=20 and gamma=0.

eps_1 = 0 or max_clusters = 1: FedAvg with uniform weights.
"""

import collections
import dataclasses
from typing import Any, NamedTuple

import tensorflow as tf

from tff_pfl.aggregators import StackFactory
from tff_pfl.algorithms.fedavg import fedavg
from tff_pfl.algorithms.registry import ALGORITHMS, idle_where
from tff_pfl.arguments.names import check_names
from tff_pfl.arguments.ranges import at_least, between, takes, whole
from tff_pfl.local import LocalTraining, trees
from tff_pfl.models import Model, Weights
from tff_pfl.models.statistics import without_statistics
from tff_pfl.numerics.host import on_host
from tff_pfl.numerics.linkage import LINKAGES, bipartition
from tff_pfl.templates import Algorithm, Exchange, Federation, Personalization, Weighting


@ALGORITHMS.register("cfl")
@idle_where("eps_1", "eps_2", "gamma", "linkage", "min_members", "first_round", max_clusters=1)
@takes(
    num_clients=whole(1),
    max_clusters=whole(1),
    eps_1=at_least(0),
    eps_2=at_least(0),
    gamma=between(0, 1),
    min_members=whole(2),
    first_round=whole(0),
)
def cfl(
    model: Model,
    local: LocalTraining,
    *,
    num_clients: int,
    max_clusters: int = 4,
    eps_1: float = 0.4,
    eps_2: float = 1.6,
    gamma: float = 0.0,
    linkage: str = "single",
    min_members: int = 2,
    first_round: int = 0,
    weighting: Weighting = "uniform",
) -> Algorithm:
    """Makes CFL.

    The server reports, as metrics, the number of clusters; the number of clients of the cohort that
    were at a split; and, of the cluster with the largest update, the norms of its mean update and
    of that one, to compare with `eps_1` and `eps_2`. Its snapshot is `node`, the number of the
    cluster or of the split at which each client is.

    Args:
        model: The model, of weights `W`.
        local: The local training.
        num_clients: The number of clients of the federation; ids are below it.
        max_clusters: The largest number of clusters. The server's state has
            `8 n (2 max_clusters - 1)` bytes for a model of `n` weights.
        eps_1: The norm below which the mean update of a cluster is small. It needs tuning, as does
            `eps_2`; the defaults are those of the authors' code.
        eps_2: The norm above which the update of a client is large.
        gamma: How far apart the parts of a split must be: 0 accepts any parts, 1 none. In the paper
            it bounds how far clients of one cluster may deviate.
        linkage: The way to find the parts: "single" or "complete"; see `tff_pfl.numerics.linkage`.
        min_members: The fewest clients of a cluster in the cohort that may be split.
        first_round: The first round, from 0, in which a cluster may be split.
        weighting: The weights of clients in means: "uniform" as in the paper, "num_examples", or a
            function of their examples; see `weighing`.
    """
    check_names("linkage", [linkage], LINKAGES)
    shared = fedavg(model, local, weighting=weighting)
    (training,) = shared.exchanges
    server = CflServer(
        num_clients, max_clusters, eps_1, eps_2, gamma, linkage, min_members, first_round
    )

    def client_work(message, state, examples, context):
        output = training.client_work(message.own, state, examples, context)
        return output._replace(upload=OwnUpdate(context.client_id, output.upload))

    return Algorithm(
        server_init=lambda seed: server.init(model.init(seed)),
        client_init=shared.client_init,
        exchanges=[
            Exchange(
                client_work=client_work,
                select=server.own_model,
                aggregator=StackFactory(),
                finalize=server.finalize,
            )
        ],
        personalize=Personalization(
            lambda message, state, examples, context: message.own, select=server.own_model
        ),
        snapshot=lambda tree: {"node": tree.node},
        made_for=Federation(num_clients),
    )


class SplitTree(NamedTuple):
    """Server state: a tree of splits, whose leaves are the clusters.

    Nodes have numbers in the order in which they were made, from the root, node 0. There are at
    most `N = 2 max_clusters - 1`.

    Attributes:
        models: `W` with a leading axis of `N` in each tensor.
        directions: The same, the mean of the updates, scaled to length 1, of the clients for whom a
            node was made; 0 for the root.
        children: int32 `[N]`, the first of the two parts of a split, which follow each other; 0 for
            a cluster.
        node: int32 `[num_clients]`, the node of each client.
    """

    models: Weights
    directions: Weights
    children: tf.Tensor
    node: tf.Tensor


class OwnUpdate(NamedTuple):
    """The upload of a client: its id, an int32 scalar, and `u_i`."""

    client_id: tf.Tensor
    update: Weights


class Cohort(NamedTuple):
    """The updates of a cohort.

    Attributes:
        members: bool `[N, k]`, which clients are in each cluster; those at a split are in none.
        cosines: float64 `[k, k]`, of the angles between updates; 0 for an update of 0.
        inverse_norms: float64 `[k]`, 1 over the norm of each update; 0 for an update of 0.
        mean_norms: float64 `[N]`, the norm of the mean update of each cluster.
        max_norms: float64 `[N]`, the largest norm of an update of each cluster.
    """

    members: tf.Tensor
    cosines: tf.Tensor
    inverse_norms: tf.Tensor
    mean_norms: tf.Tensor
    max_norms: tf.Tensor

    @classmethod
    def of(cls, members: tf.Tensor, weight: tf.Tensor, gram: tf.Tensor) -> "Cohort":
        """Computes the cosines and norms of the inner products `[k, k]` of updates."""
        norms, shares = tf.sqrt(tf.linalg.diag_part(gram)), _shares(members, weight)
        inverse_norms = tf.math.divide_no_nan(tf.constant(1.0, tf.float64), norms)
        squares = tf.reduce_sum(tf.matmul(shares, gram) * shares, axis=1)
        return cls(
            members,
            gram * inverse_norms[:, tf.newaxis] * inverse_norms,
            inverse_norms,
            tf.sqrt(tf.maximum(squares, 0.0)),
            tf.reduce_max(tf.where(members, norms, 0.0), axis=1),
        )


@dataclasses.dataclass(frozen=True)
class CflServer:
    """The server's part of CFL; see `cfl` for its parameters."""

    num_clients: int
    max_clusters: int
    eps_1: float
    eps_2: float
    gamma: float
    linkage: str
    min_members: int
    first_round: int

    @property
    def most_nodes(self) -> int:
        """The largest number of nodes, `N`."""
        return 2 * self.max_clusters - 1

    def init(self, weights: Weights) -> SplitTree:
        """Returns the state before the first round, of one cluster."""
        models = trees.copies(weights, self.most_nodes)
        return SplitTree(
            models=models,
            directions=trees.zeros_like(models),
            children=tf.zeros([self.most_nodes], tf.int32),
            node=tf.zeros([self.num_clients], tf.int32),
        )

    def own_model(self, tree: SplitTree, client_id: tf.Tensor) -> Weights:
        """Returns the model of a client."""
        return trees.row(tree.models, tf.gather(tree.node, client_id))

    def finalize(self, tree: SplitTree, stack: Any, round_num: tf.Tensor):
        """Returns the state after a round, and metrics.

        Args:
            tree: The state.
            stack: A `Stack` of `OwnUpdate`.
            round_num: int32 scalar.
        """
        weighted = stack._replace(value=(stack.value, stack.weight))
        (client_id, update), weight = weighted.accepted(stack.value.client_id)
        k, vectors = tf.size(weight), without_statistics(update)
        rows = tf.nest.map_structure(lambda *of: tf.concat(of, 0), vectors, tree.directions)
        products = trees.gram(rows)
        with on_host():
            weight = tf.cast(weight, tf.float64)
            node, num_splits = tf.gather(tree.node, client_id), trees.count(tree.children > 0)
            is_at_split = tf.gather(tree.children, node) > 0
            cohort = Cohort.of(self._at(node) & ~is_at_split, weight, products[:k, :k])
            is_split, is_second = self._splits(cohort, num_splits, round_num)
            number = num_splits + tf.cumsum(tf.cast(is_split, tf.int32), exclusive=True)
            children = tf.where(is_split, 1 + 2 * number, tree.children)

            # Each client of the cohort goes down to a part of its node, if this has parts.
            child = tf.gather(children, node)
            first, second = (
                tf.gather(products[:k, k:], tf.minimum(part, self.most_nodes - 1), batch_dims=1)
                for part in (child, child + 1)
            )
            is_second = tf.where(is_at_split, second > first, is_second)
            node = tf.where(child > 0, child + tf.cast(is_second, tf.int32), node)

            # New clusters start with the model of the split, and with the updates of their clients.
            members = self._at(node) & ~is_at_split
            is_new = tf.range(self.most_nodes)[:, tf.newaxis] > 2 * num_splits
            unit_shares = _shares(members & is_new, tf.ones_like(weight)) * cohort.inverse_norms
            parents = tf.cast(tf.where(is_split)[:, 0], tf.int32)
            parts = tf.gather(children, parents)
            origins = trees.put_rows(
                tf.range(self.most_nodes),
                tf.concat([parts, parts + 1], axis=0),
                tf.concat([parents, parents], axis=0),
            )
        moves = trees.combine(_shares(members, weight), update)
        state = SplitTree(
            models=trees.add(trees.row(tree.models, origins), moves),
            directions=trees.add(tree.directions, trees.combine(unit_shares, vectors)),
            children=children,
            node=trees.put_rows(tree.node, client_id, node),
        )
        largest = tf.argmax(cohort.max_norms)
        metrics = collections.OrderedDict(
            num_clusters=1 + trees.count(children > 0),
            num_at_splits=trees.count(is_at_split),
            mean_norm=cohort.mean_norms[largest],
            max_norm=cohort.max_norms[largest],
        )
        return state, metrics

    def _splits(self, cohort: Cohort, num_splits: tf.Tensor, round_num: tf.Tensor):
        """Returns which nodes are split, bool `[N]`, and who is in a second part, bool `[k]`."""
        size = tf.reduce_sum(tf.cast(cohort.members, tf.int32), axis=1)
        wanted = (size >= self.min_members) & (round_num >= self.first_round)
        wanted &= (cohort.mean_norms < self.eps_1) & (cohort.max_norms > self.eps_2)
        to_split = cohort.members & wanted[:, tf.newaxis]
        numbers = tf.range(self.most_nodes)[:, tf.newaxis]
        sets = tf.reduce_max(tf.where(to_split, numbers, -1), axis=0)
        is_second = bipartition(cohort.cosines, sets, self.linkage)
        is_across = tf.not_equal(is_second, is_second[:, tf.newaxis])
        is_across &= tf.equal(sets, sets[:, tf.newaxis])
        alpha = tf.reduce_max(tf.where(is_across, cohort.cosines, -1.0), axis=1)
        alpha = tf.reduce_max(tf.where(to_split, alpha, -1.0), axis=1)
        wanted &= tf.sqrt((1.0 - alpha) / 2.0) > self.gamma
        most = self.max_clusters - 1 - num_splits
        return wanted & (tf.cumsum(tf.cast(wanted, tf.int32)) <= most), is_second

    def _at(self, node: tf.Tensor) -> tf.Tensor:
        """Returns which clients are at each node, bool `[N, k]`."""
        return tf.equal(tf.range(self.most_nodes)[:, tf.newaxis], node)


def _shares(members: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
    """Returns the share of each client in the mean of each node, float64 `[N, k]`."""
    weight = tf.where(members, weight, 0.0)
    return tf.math.divide_no_nan(weight, tf.reduce_sum(weight, axis=1, keepdims=True))
