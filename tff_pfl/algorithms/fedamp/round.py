"""FedAMP and HeurFedAMP: Huang et al., AAAI 2021.

The paper is "Personalized cross-silo federated learning on non-IID data".

The server keeps the last model `w_j` of every client. It sends each client a mixture `u_i` of its
own model and its neighbours' models, in which near models have more weight. A round has two
exchanges:

    up      client ids
    server  xi_ij = alpha A'(||w_i - w_j||^2), j != i,   A'(x) = exp(-x / sigma) / sigma
            xi_ii = 1 - sum_{j != i} xi_ij                       (see `attention`)
    down    u_i = sum_j xi_ij w_j
    client  w_i <- LocalTraining(w_i) with the gradient of the loss + (lambda / alpha) (w - u_i)
    up      w_i

HeurFedAMP instead has `xi_ij` proportional to `exp(sigma cos(w_i, w_j))` and a fixed `xi_ii`. The
personal model is `w_i` of the client's last participation. All clients start from common initial
weights. There is no global model.

Squared distances grow with the number of weights. For most networks and a fixed sigma, all `xi_ij`
vanish, and FedAMP is Local. `distance_scale` measures distances in another unit.

With start="own" and the defaults, neither FedAMP nor HeurFedAMP mixes much: each step of local
training covers a share `eta lambda / alpha = eta 1e-4` of the way to `u_i`; 50 steps at `eta` = 0.1
cover 0.05 %. A comparison should tune `lambda / alpha`, whose product with the learning rate
should stay below 1, or start from `u_i`: start="mixture".

lambda = 0 (and start="own"): Local, except for the order of batches.
"""

from tff_pfl.aggregators import StackFactory
from tff_pfl.algorithms.fedamp.server import FedAMPServer, OwnUpload
from tff_pfl.algorithms.local_training import LocalModel
from tff_pfl.algorithms.registry import ALGORITHMS, idle_where
from tff_pfl.arguments.extension import extends
from tff_pfl.arguments.names import check_names
from tff_pfl.arguments.ranges import at_least, takes
from tff_pfl.local import LocalTraining, trees
from tff_pfl.models import Model
from tff_pfl.templates import Algorithm, ClientOutput, Exchange, Federation, Personalization


@ALGORITHMS.register("fedamp")
@idle_where("self_weight", similarity="distance")
@idle_where("distance_scale", similarity="cosine")
@idle_where("alpha_decay_rounds", alpha_decay=1)
@extends(FedAMPServer)
@takes(lambda_=at_least(0))
def fedamp(
    model: Model, local: LocalTraining, *, lambda_: float = 5e-7, start: str = "own", **options
) -> Algorithm:
    """Makes FedAMP or HeurFedAMP.

    The server's metric is the mean `xi_ii` of the cohort, the snapshot is `xi`. The defaults of
    `alpha`, `sigma` and `lambda_` are from FedPG's comparison; PGFed's and other code have 10,000,
    25 and 1.

    Args:
        model: The model, of weights `W`.
        local: The local training; its learning rate times `lambda_ / alpha` should be below 1.
        lambda_: The pull towards the mixture `u_i`, `lambda`.
        start: The weights from which local training starts: "own" (`w_i`) or "mixture" (`u_i`).
        **options: Options of `FedAMPServer`.
    """
    check_names("start", [start], ("own", "mixture"))
    server = FedAMPServer(**options)

    def client_init(client_id, seed):
        weights = model.init(seed)
        return LocalModel(weights, local.optimizer_state(weights))

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
            state=LocalModel(trained.weights, trained.optimizer_state),
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
        made_for=Federation(server.num_clients),
    )


heur_fedamp = ALGORITHMS.variant("heur_fedamp", fedamp, similarity="cosine", sigma=25.0)
