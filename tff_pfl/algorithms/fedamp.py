"""FedAMP and HeurFedAMP: Huang et al., "Personalized cross-silo federated learning on non-IID
data", AAAI 2021.

The server keeps the last model `w_j` of every client, and sends each a mixture `u_i` of its own and
those of its neighbours, most of those that are near. A round, of two exchanges:

    up      who takes part
    server  xi_ij = alpha A'(||w_i - w_j||^2), j != i,   A'(x) = exp(-x / sigma) / sigma
            xi_ii = 1 - sum_{j != i} xi_ij                       (see `tff_pfl.server.attention`)
    down    u_i = sum_j xi_ij w_j
    client  w_i <- LocalSGD(w_i) with the gradient of the loss + (lambda / alpha) (w - u_i)
    up      w_i

HeurFedAMP instead has `xi_ij` in proportion to `exp(sigma cos(w_i, w_j))` and a fixed `xi_ii`. The
personal model is `w_i` of the client's last participation, all of which start from common initial
weights. There is no global model.

Squared distances grow with the number of weights: with most networks and a fixed sigma all `xi_ij`
vanish, and FedAMP is Local. `distance_scale` measures them in another unit.

lambda = 0 (and start="own"): Local, but for the order of batches.
"""

import collections
import functools
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.aggregators import StackFactory
from tff_pfl.local import LocalSGD, trees
from tff_pfl.models import Model
from tff_pfl.names import check_names
from tff_pfl.server import attention
from tff_pfl.templates import (
    ClientOutput,
    Exchange,
    Personalization,
    PersonalizedProcess,
    compose_personalized_process,
)


class ClientModels(NamedTuple):
    """Server state.

    Attributes:
        models: `W`, each tensor with a leading axis of `num_clients`.
        xi: float32 `[num_clients, num_clients]`; row `i` is of the last round of client `i`.
    """

    models: Any
    xi: Any


class OwnModel(NamedTuple):
    """Client state: `model`, `W`; and `optimizer`, what persists of the client's optimizer."""

    model: Any
    optimizer: Any


class OwnUpload(NamedTuple):
    """What a client sends: its `client_id`, int32, and in the second exchange `model`, `W`."""

    client_id: Any
    model: Any = ()


def build_fedamp(
    model: Model,
    examples_type: tff.types.Type,
    local: LocalSGD,
    *,
    num_clients: int,
    similarity: str = "distance",
    alpha: float = 0.005,
    sigma: float = 0.1,
    lambda_: float = 5e-7,
    self_weight: float | None = None,
    distance_scale: str = "none",
    neighbours: str = "cohort",
    start: str = "own",
    alpha_decay: float = 1.0,
    alpha_decay_rounds: int = 30,
    seed: int = 0,
) -> PersonalizedProcess:
    """Builds FedAMP or HeurFedAMP.

    The process measures, at the server, the mean `xi_ii` of the cohort; its snapshot is `xi`. The
    defaults of `alpha`, `sigma` and `lambda_` are those of FedPG's comparison; with PGFed's and
    other code they are 10,000, 25 and 1.

    Args:
        model: The model, of weights `W`.
        examples_type: TFF type of a client's examples.
        local: The local training; its learning rate times `lambda_ / alpha` should be below 1.
        num_clients: Clients of the federation, whose ids are less; `4 n num_clients` bytes is the
            server's state for `n` weights.
        similarity: "distance" (FedAMP) or "cosine" (HeurFedAMP).
        alpha: `alpha`, the step of the mixture; a row's others add up to 1 at most.
        sigma: Width (or with "cosine" sharpness) of the attention.
        lambda_: `lambda`.
        self_weight: `xi_ii` with "cosine"; default one over the number of neighbours.
        distance_scale: The unit of squared distances: "none", "num_weights", their number, or
            "median", the median of those between the clients of a cohort and their neighbours,
            equal models apart.
        neighbours: Of whom clients take: "cohort", of this round; or "all", also of those who are
            absent, in their last known state.
        start: Where local training starts: "own" (`w_i`) or "mixture" (`u_i`).
        alpha_decay: Factor of alpha; HeurFedAMP has 0.1,
        alpha_decay_rounds: after every so many rounds.
        seed: Of the initial weights and of the order of batches.
    """
    check_names("similarity", [similarity], ("distance", "cosine"))
    check_names("distance_scale", [distance_scale], ("none", "num_weights", "median"))
    check_names("neighbours", [neighbours], ("cohort", "all"))
    check_names("start", [start], ("own", "mixture"))
    if not (alpha > 0 and sigma > 0 and lambda_ >= 0 and alpha_decay > 0):
        raise ValueError(
            "FedAMP needs alpha > 0, sigma > 0, lambda_ >= 0 and alpha_decay > 0, got "
            f"{alpha}, {sigma}, {lambda_} and {alpha_decay}."
        )
    if alpha_decay_rounds < 1:
        raise ValueError(f"alpha_decay_rounds must be at least 1, got {alpha_decay_rounds}.")
    if self_weight is not None and not 0 <= self_weight <= 1:
        raise ValueError(f"self_weight must be in [0, 1] or None, got {self_weight}.")

    def alpha_of(round_num):
        return alpha * alpha_decay ** tf.cast(round_num // alpha_decay_rounds, tf.float32)

    def attend(models, ids, neighbour_ids, round_num):
        """`xi` of some clients to their neighbours."""
        is_self = tf.equal(ids[:, tf.newaxis], neighbour_ids)
        own, others = trees.row(models, ids), trees.row(models, neighbour_ids)
        if similarity == "cosine":
            cosines = attention.cosines(own, others)
            return attention.cosine_attention(cosines, is_self, sigma, self_weight)
        distances = attention.squared_distances(own, others)
        if distance_scale == "num_weights":
            distances /= model.num_weights
        elif distance_scale == "median":
            unit = attention.median_of_others(distances, is_self)
            distances = tf.math.divide_no_nan(distances, unit)
        return attention.distance_attention(distances, is_self, alpha_of(round_num), sigma)

    def finalize_arrivals(server, uploads, round_num):
        ids = uploads.accepted(uploads.value.client_id).client_id
        neighbour_ids = ids if neighbours == "cohort" else tf.range(num_clients)
        rows = attend(server.models, ids, neighbour_ids, round_num)
        columns = tf.one_hot(neighbour_ids, num_clients)
        rows = tf.matmul(rows, columns)  # 0 where there is no neighbour
        xi = trees.put_rows(server.xi, ids, rows)
        own = tf.gather(tf.linalg.diag_part(xi), ids)
        metrics = collections.OrderedDict(
            xi_own=tf.math.divide_no_nan(tf.reduce_sum(own), tf.cast(tf.size(ids), tf.float32))
        )
        return server._replace(xi=xi), metrics

    def client_init(client_id):
        del client_id
        weights = model.init(seed)
        return OwnModel(weights, local.optimizer_state(weights))

    def arrive(message, state, examples, context):
        return ClientOutput(state=state, upload=OwnUpload(context.client_id))

    def client_work(message, state, examples, context):
        mixture = message.own
        pull = lambda_ / alpha_of(context.round_num)
        trained = local.train(
            model,
            state.model if start == "own" else mixture,
            examples,
            context,
            reg=lambda w: trees.scale(trees.subtract(w, mixture), pull),
            optimizer_state=state.optimizer,
        )
        return ClientOutput(
            state=OwnModel(trained.weights, trained.optimizer_state),
            upload=OwnUpload(context.client_id, trained.weights),
            metrics=trained.totals,
        )

    def finalize(server, uploads, round_num):
        del round_num
        ids, trained = uploads.accepted(uploads.value.client_id)
        models = trees.put_rows(server.models, ids, trained)
        return server._replace(models=models), collections.OrderedDict()

    return compose_personalized_process(
        server_init=lambda: ClientModels(
            trees.copies(model.init(seed), num_clients), tf.eye(num_clients)
        ),
        client_init=client_init,
        exchanges=[
            Exchange(
                client_work=arrive,
                aggregator=StackFactory(),
                finalize=finalize_arrivals,
                name="arrivals",
            ),
            Exchange(
                select=lambda server, client_id: trees.combine(
                    tf.gather(server.xi, client_id), server.models
                ),
                client_work=client_work,
                aggregator=StackFactory(),
                finalize=finalize,
            ),
        ],
        personalize=Personalization(
            client_work=lambda message, state, examples, context: state.model
        ),
        snapshot=lambda server: {"xi": server.xi},
        examples_type=examples_type,
        seed=seed,
    )


build_heur_fedamp = functools.partial(build_fedamp, similarity="cosine", sigma=25.0)
