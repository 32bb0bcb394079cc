"""FedAMP and HeurFedAMP: Huang et al., "Personalized cross-silo federated learning on non-IID
data", AAAI 2021.

The server keeps the last model `w_j` of every client, and sends each a mixture `u_i` of its own and
those of its neighbours, most of those that are near. A round, of two exchanges:

    up      who takes part
    server  xi_ij = alpha A'(||w_i - w_j||^2), j != i,   A'(x) = exp(-x / sigma) / sigma
            xi_ii = 1 - sum_{j != i} xi_ij                       (see `attention`)
    down    u_i = sum_j xi_ij w_j
    client  w_i <- LocalTraining(w_i) with the gradient of the loss + (lambda / alpha) (w - u_i)
    up      w_i

HeurFedAMP instead has `xi_ij` in proportion to `exp(sigma cos(w_i, w_j))` and a fixed `xi_ii`. The
personal model is `w_i` of the client's last participation, all of which start from common initial
weights. There is no global model.

Squared distances grow with the number of weights: with most networks and a fixed sigma all `xi_ij`
vanish, and FedAMP is Local. `distance_scale` measures them in another unit.

With start="own" and the defaults, neither FedAMP nor HeurFedAMP mixes much: each step of local
training goes a share `eta lambda / alpha = eta 1e-4` of the way to `u_i`; 50 steps at `eta` = 0.1,
0.05 %. A comparison tunes `lambda_ / alpha`, whose product with the learning rate should stay below
1, or starts from `u_i`: start="mixture".

lambda = 0 (and start="own"): Local, but for the order of batches.
"""

from tff_pfl.aggregators import StackFactory
from tff_pfl.algorithms.fedamp.server import FedAMPServer, OwnUpload
from tff_pfl.algorithms.local_training import OwnModel
from tff_pfl.algorithms.registry import ALGORITHMS, idle_where
from tff_pfl.local import LocalTraining, trees
from tff_pfl.models import Model
from tff_pfl.names import check_names
from tff_pfl.ranges import above, at_least, between, takes, whole
from tff_pfl.templates import Algorithm, ClientOutput, Exchange, Federation, Personalization


@ALGORITHMS.register("fedamp")
@idle_where("self_weight", similarity="distance")
@idle_where("distance_scale", similarity="cosine")
@idle_where("alpha_decay_rounds", alpha_decay=1)
@takes(
    num_clients=whole(1),
    alpha=above(0),
    sigma=above(0),
    lambda_=at_least(0),
    self_weight=between(0, 1),
    alpha_decay=above(0),
    alpha_decay_rounds=whole(1),
)
def fedamp(
    model: Model,
    local: LocalTraining,
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
) -> Algorithm:
    """FedAMP or HeurFedAMP.

    The process measures, at the server, the mean `xi_ii` of the cohort; its snapshot is `xi`. The
    defaults of `alpha`, `sigma` and `lambda_` are those of FedPG's comparison; with PGFed's and
    other code they are 10,000, 25 and 1.

    Args:
        model: The model, of weights `W`.
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
    """
    check_names("similarity", [similarity], ("distance", "cosine"))
    check_names("distance_scale", [distance_scale], ("none", "num_weights", "median"))
    check_names("neighbours", [neighbours], ("cohort", "all"))
    check_names("start", [start], ("own", "mixture"))
    server = FedAMPServer(
        num_clients,
        similarity,
        alpha,
        sigma,
        self_weight,
        distance_scale,
        neighbours,
        alpha_decay,
        alpha_decay_rounds,
    )

    def client_init(client_id, seed):
        weights = model.init(seed)
        return OwnModel(weights, local.optimizer_state(weights))

    def arrive(message, state, examples, context):
        return ClientOutput(state=state, upload=OwnUpload(context.client_id))

    def client_work(message, state, examples, context):
        mixture = message.own
        pull = lambda_ / server.alpha_of(context.round_num)
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

    return Algorithm(
        server_init=lambda seed: server.init(model.init(seed)),
        client_init=client_init,
        exchanges=[
            Exchange(
                client_work=arrive,
                aggregator=StackFactory(),
                finalize=server.finalize_arrivals,
                name="arrivals",
            ),
            Exchange(
                select=server.own,
                client_work=client_work,
                aggregator=StackFactory(),
                finalize=server.finalize,
            ),
        ],
        personalize=Personalization(
            client_work=lambda message, state, examples, context: state.model
        ),
        snapshot=lambda state: {"xi": state.xi},
        made_for=Federation(num_clients),
    )


heur_fedamp = ALGORITHMS.variant("heur_fedamp", fedamp, similarity="cosine", sigma=25.0)
