"""FedFomo: each client mixes the models of other clients that help it.

Zhang et al., "Personalized federated learning with first order model optimization", ICLR 2021.

The server keeps the last model `theta_j` of every client, and `P_ij`, a measure of how much model j
helped client i. A client keeps its own `theta_i`, and `ref_i`, the start of its last training. A
fifth of its examples are for validation. A round:

    down    the M - 1 models theta_j, j != i, of the largest P_ij; some are random instead
    client  omega_j = (Lval(ref_i) - Lval(theta_j)) / (||theta_j - ref_i|| + 1e-5)
                  of the models received and of its own;   omega+ = max(omega, 0)
            mix = ref_i + sum_j (omega+_j / sum omega+) (theta_j - ref_i),   or theta_i if all are 0
            ref_i <- mix;   theta_i <- LocalTraining(mix)
    up      theta_i,  omega_j
    server  P_ij <- P_ij + omega_j / |sum omega|

The personal model is `theta_i` of the client's last participation. All of them start from common
initial weights. There is no global model.

M = 1: Local, without the validation examples.
"""

import collections
import dataclasses
from typing import Any, NamedTuple

import tensorflow as tf

from tff_pfl.aggregators import StackFactory
from tff_pfl.algorithms.registry import ALGORITHMS, idle_where
from tff_pfl.arguments.names import check_names
from tff_pfl.arguments.ranges import at_least, between, inside, takes, whole
from tff_pfl.local import LocalTraining, evaluate, split_examples, trees
from tff_pfl.local.seeds import client_seed, run_seed
from tff_pfl.models import Model, Weights
from tff_pfl.models.statistics import trained_leaves
from tff_pfl.templates import Algorithm, ClientOutput, Exchange, Federation, Personalization

_DISTANCE_OFFSET = 1e-5


class OwnModels(NamedTuple):
    """Client state.

    Attributes:
        model: `W`, `theta_i`.
        reference: `W`, `ref_i`.
        split_seed: int32 `[2]`, the seed that chooses the validation examples.
        optimizer: The client's optimizer state; `()` unless it persists.
    """

    model: Weights
    reference: Weights
    split_seed: tf.Tensor
    optimizer: tuple


@ALGORITHMS.register("fedfomo")
@idle_where("exploration_decay", exploration=0)
@takes(
    num_clients=whole(1),
    num_models=whole(1),
    exploration=between(0, 1),
    exploration_decay=at_least(0),
    validation_share=inside(0, 1),
)
def fedfomo(
    model: Model,
    local: LocalTraining,
    *,
    num_clients: int,
    num_models: int = 5,
    exploration: float = 0.3,
    exploration_decay: float = 0.05,
    candidates: str = "all",
    affinity: str = "normalized",
    fallback: str = "own",
    validation_share: float = 0.2,
) -> Algorithm:
    """Builds the FedFomo algorithm.

    The server reports the mean number of models that help a client, its own included, as a metric.
    Its snapshot is `affinity`, `P`.

    Args:
        model: The model, of weights `W`.
        local: The local training.
        num_clients: The number of clients of the federation; ids are below it. The server's state
            has `4 n num_clients` bytes for a model of `n` weights.
        num_models: The number of models that a client mixes, `M`, at most `num_clients`. It counts
            the client's own model, which is not sent; the authors have 5 or 10, PGFed's comparison
            8.
        exploration: The probability in the first round that a received model is a random one.
        exploration_decay: The decrease of that probability in each round.
        candidates: "all", the last models of all other clients; or "last_cohort", the models
            trained in the previous round, as in PGFed's comparison, which may be fewer than M - 1.
        affinity: The addition to `P_ij`: "normalized" (`omega_j / |sum omega|`), "raw" (`omega_j`)
            or "clipped" (`omega+_j / sum omega+`).
        fallback: The `mix` of a client that no model helps: "own" (`theta_i`) or "reference"
            (`ref_i`, as in the authors' code).
        validation_share: The share of a client's examples that are for validation, the same ones in
            all rounds.
    """
    check_names("candidates", [candidates], ("all", "last_cohort"))
    check_names("affinity", [affinity], ("normalized", "raw", "clipped"))
    check_names("fallback", [fallback], ("own", "reference"))
    if num_models > num_clients:
        raise ValueError(
            f"num_models must be in 1 to {num_clients}, the number of clients, got {num_models}."
        )
    server = FedFomoServer(
        num_clients, num_models - 1, exploration, exploration_decay, candidates, affinity
    )

    def client_init(client_id, seed):
        weights = model.init(seed)
        split_seed = tf.stack([seed & 0x7FFFFFFF, client_id])
        return OwnModels(weights, weights, split_seed, local.optimizer_state(weights))

    def rate(state, received, validation):
        """Returns `omega` of the client's own and the received models, float32 `[M]`."""

        def loss(weights):
            return evaluate(model, weights, validation)["loss"].mean

        reference_loss = loss(state.reference)

        def omega(weights):
            distance = trees.norm(trained_leaves(trees.subtract(weights, state.reference)))
            return (reference_loss - loss(weights)) / (distance + _DISTANCE_OFFSET)

        ratings = omega(state.model)[tf.newaxis]
        if num_models > 1:
            others = trees.fill_rows(
                tf.zeros([num_models - 1]), lambda j: omega(trees.row(received.models, j))
            )
            ratings = tf.concat([ratings, tf.where(received.exists, others, 0.0)], axis=0)
        # A model whose loss overflows must not make the upload of its receiver non-finite.
        return tf.where(tf.math.is_finite(ratings), ratings, 0.0)

    def mix(state, received, omega):
        positive = tf.nn.relu(omega)
        total = tf.reduce_sum(positive)
        shares = tf.math.divide_no_nan(positive, total)
        parts = trees.scale(state.model, shares[0])
        if num_models > 1:
            parts = trees.add(parts, trees.combine(shares[1:], received.models))
        otherwise = state.model if fallback == "own" else state.reference
        return trees.select(total > 0.0, parts, otherwise)

    def client_work(message, state, examples, context):
        received = message.own
        training, validation = split_examples(examples, validation_share, seed=state.split_seed)
        omega = rate(state, received, validation)
        reference = mix(state, received, omega)
        trained = local.train(model, reference, training, context, optimizer_state=state.optimizer)
        return ClientOutput(
            state=OwnModels(trained.weights, reference, state.split_seed, trained.optimizer_state),
            upload=Ratings(context.client_id, trained.weights, received.client_ids, omega),
            metrics=trained.totals,
        )

    return Algorithm(
        server_init=lambda seed: server.init(model.init(seed), seed),
        client_init=client_init,
        exchanges=[
            Exchange(
                select=server.own,
                client_work=client_work,
                aggregator=StackFactory(),
                finalize=server.finalize,
            )
        ],
        personalize=Personalization(
            client_work=lambda message, state, examples, context: state.model
        ),
        snapshot=lambda state: {"affinity": state.affinity},
        made_for=Federation(num_clients),
    )


class FedFomoState(NamedTuple):
    """Server state.

    Attributes:
        models: `theta`, `W` with a leading axis of `num_clients` in each tensor.
        affinity: float32 `[num_clients, num_clients]`, `P`.
        is_fresh: bool `[num_clients]`, whether a client trained in the last round.
        round_num: int32 scalar, the number of rounds in which a client was accepted.
        seed: int32 `[2]`, the seed of the choice of models.
    """

    models: Weights
    affinity: tf.Tensor
    is_fresh: tf.Tensor
    round_num: tf.Tensor
    seed: tf.Tensor


class Received(NamedTuple):
    """The models that a client receives.

    Attributes:
        models: `W` with a leading axis of `m` in each tensor.
        client_ids: int32 `[m]`, the clients that trained the models.
        exists: bool `[m]`, whether a model may be used; the others only fill the axis.
    """

    models: Weights
    client_ids: tf.Tensor
    exists: tf.Tensor


class Ratings(NamedTuple):
    """The upload of a client.

    Attributes:
        client_id: int32 scalar.
        model: `W`, `theta_i`.
        rated_ids: int32 `[m]`, the clients that trained the received models.
        omega: float32 `[1 + m]`, the ratings of the client's own and the received models.
    """

    client_id: tf.Tensor
    model: Weights
    rated_ids: tf.Tensor
    omega: tf.Tensor


@dataclasses.dataclass(frozen=True)
class FedFomoServer:
    """The server's part of FedFomo; see `fedfomo` for its parameters.

    Attributes:
        num_others: `m`, the number of models that a client receives.
    """

    num_clients: int
    num_others: int
    exploration: float
    exploration_decay: float
    candidates: str
    affinity: str

    def init(self, weights: Any, seed: int) -> FedFomoState:
        """Returns the state before the first round."""
        return FedFomoState(
            trees.copies(weights, self.num_clients),
            tf.eye(self.num_clients),
            tf.zeros([self.num_clients], tf.bool),
            tf.constant(0),
            run_seed(seed, 0),
        )

    def own(self, server: FedFomoState, client_id: tf.Tensor) -> Received:
        """Chooses the models that a client receives.

        Each of the `m` choices is random with the probability of exploration. The other choices are
        the candidates of the largest affinity; equal ones are in random order.
        """
        all_ids = tf.range(self.num_clients)
        is_candidate = tf.not_equal(all_ids, client_id)
        if self.candidates == "last_cohort":
            is_candidate &= server.is_fresh
        seed = client_seed(server.seed, server.round_num, client_id)
        seeds = tf.unstack(tf.random.experimental.stateless_split(seed, 3))
        is_random = tf.random.stateless_uniform([self.num_others], seeds[0]) < self._exploration(
            server.round_num
        )
        num_best = self.num_others - tf.reduce_sum(tf.cast(is_random, tf.int32))
        shuffled = tf.argsort(tf.random.stateless_uniform([self.num_clients], seeds[1]))
        affinity = tf.where(is_candidate, tf.gather(server.affinity, client_id), -float("inf"))
        by_affinity = tf.argsort(tf.gather(-affinity, shuffled), stable=True)
        ranks = tf.argsort(tf.gather(shuffled, by_affinity))
        # The largest keys win: the best candidates, other candidates at random, the rest last.
        draws = tf.random.stateless_uniform([self.num_clients], seeds[2])
        keys = tf.where(ranks < num_best, 2.0, draws)
        keys = tf.where(is_candidate, keys, -1.0)
        chosen = tf.math.top_k(keys, k=self.num_others)
        return Received(
            trees.row(server.models, chosen.indices), chosen.indices, chosen.values >= 0.0
        )

    def _exploration(self, round_num):
        return self.exploration - self.exploration_decay * tf.cast(round_num, tf.float32)

    def finalize(self, server: FedFomoState, uploads: Any, round_num: tf.Tensor):
        """Returns the state after a round, and metrics.

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
