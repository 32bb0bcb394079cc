"""FedFomo's server: every client's last model, and which of them a client receives."""

import collections
import dataclasses
from typing import Any, NamedTuple

import tensorflow as tf

from tff_pfl.local import trees
from tff_pfl.local.seeds import client_seed, run_seed
from tff_pfl.models import Weights


class FedFomoState(NamedTuple):
    """Server state.

    Attributes:
        models: `W`, each tensor with a leading axis of `num_clients`: `theta`.
        affinity: float32 `[num_clients, num_clients]`, `P`.
        is_fresh: bool `[num_clients]`, who trained in the last round.
        round_num: int32 scalar, rounds done, those apart in which nobody was accepted.
        seed: int32 `[2]`, of the choice of models.
    """

    models: Weights
    affinity: tf.Tensor
    is_fresh: tf.Tensor
    round_num: tf.Tensor
    seed: tf.Tensor


class Received(NamedTuple):
    """What one client receives.

    Attributes:
        models: `W`, each tensor with a leading axis of `m`.
        client_ids: int32 `[m]`, whose they are.
        exists: bool `[m]`, whether there is such a model; the others are not to be used.
    """

    models: Weights
    client_ids: tf.Tensor
    exists: tf.Tensor


class Ratings(NamedTuple):
    """What a client sends.

    Attributes:
        client_id: int32 scalar.
        model: `W`, `theta_i`.
        rated_ids: int32 `[m]`, whose models it received.
        omega: float32 `[1 + m]`, of its own model and of those.
    """

    client_id: tf.Tensor
    model: Weights
    rated_ids: tf.Tensor
    omega: tf.Tensor


@dataclasses.dataclass(frozen=True)
class FedFomoServer:
    """The server's part of FedFomo; see `tff_pfl.algorithms.fedfomo` for its parameters.

    Attributes:
        num_others: `m`, the models that a client receives.
    """

    num_clients: int
    num_others: int
    exploration: float
    exploration_decay: float
    candidates: str
    affinity: str

    def init(self, weights: Any, seed: int) -> FedFomoState:
        """The state before the first round."""
        return FedFomoState(
            trees.copies(weights, self.num_clients),
            tf.eye(self.num_clients),
            tf.zeros([self.num_clients], tf.bool),
            tf.constant(0),
            run_seed(seed, 0),
        )

    def own(self, server: FedFomoState, client_id: tf.Tensor) -> Received:
        """The models that a client receives.

        Of its `m` choices some, by chance, are random; the others are the candidates of the largest
        affinity, in random order where it is equal.
        """
        all_ids = tf.range(self.num_clients)
        may_be = tf.not_equal(all_ids, client_id)
        if self.candidates == "last_cohort":
            may_be &= server.is_fresh
        seed = client_seed(server.seed, server.round_num, client_id)
        seeds = tf.unstack(tf.random.experimental.stateless_split(seed, 3))
        is_random = tf.random.stateless_uniform([self.num_others], seeds[0]) < self._exploration(
            server.round_num
        )
        num_best = self.num_others - tf.reduce_sum(tf.cast(is_random, tf.int32))
        shuffled = tf.argsort(tf.random.stateless_uniform([self.num_clients], seeds[1]))
        affinity = tf.where(may_be, tf.gather(server.affinity, client_id), -float("inf"))
        by_affinity = tf.argsort(tf.gather(-affinity, shuffled), stable=True)
        ranks = tf.argsort(tf.gather(shuffled, by_affinity))
        # Candidates are taken in the order of these keys: the best, the rest at random, others.
        draws = tf.random.stateless_uniform([self.num_clients], seeds[2])
        keys = tf.where(ranks < num_best, 2.0, draws)
        keys = tf.where(may_be, keys, -1.0)
        chosen = tf.math.top_k(keys, k=self.num_others)
        return Received(
            trees.row(server.models, chosen.indices), chosen.indices, chosen.values >= 0.0
        )

    def _exploration(self, round_num):
        return self.exploration - self.exploration_decay * tf.cast(round_num, tf.float32)

    def finalize(self, server: FedFomoState, uploads: Any, round_num: tf.Tensor):
        """The state after a round, and metrics.

        Args:
            server: The state before the round.
            uploads: A `Stack` of `Ratings`.
            round_num: Not used.
        """
        del round_num
        ids, models, rated_ids, omega = uploads.accepted(uploads.value.client_id)
        positive = tf.nn.relu(omega)
        if self.affinity == "raw":
            gains = omega
        elif self.affinity == "clipped":
            gains = tf.math.divide_no_nan(positive, tf.reduce_sum(positive, 1, keepdims=True))
        else:
            gains = tf.math.divide_no_nan(omega, tf.abs(tf.reduce_sum(omega, 1, keepdims=True)))
        columns = tf.concat([ids[:, tf.newaxis], rated_ids], axis=1)
        rows = tf.broadcast_to(ids[:, tf.newaxis], tf.shape(columns))
        affinity = tf.tensor_scatter_nd_add(
            server.affinity, tf.stack([rows, columns], axis=-1), gains
        )
        helpers = tf.reduce_sum(tf.cast(omega > 0.0, tf.float32))
        metrics = collections.OrderedDict(
            helpers=tf.math.divide_no_nan(helpers, tf.cast(tf.size(ids), tf.float32))
        )
        state = FedFomoState(
            trees.put_rows(server.models, ids, models),
            affinity,
            tf.reduce_any(tf.one_hot(ids, self.num_clients, True, False), axis=0),
            server.round_num + 1,
            server.seed,
        )
        return state, metrics
