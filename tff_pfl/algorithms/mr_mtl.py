"""MR-MTL: each client trains its own model, which is pulled towards the mean of all models.

Liu et al., "On privacy and personalization in cross-silo federated learning", NeurIPS 2022.

The objective is mean-regularized multi-task learning, `sum_i f_i(w_i) + lambda/2 ||w_i - wbar||^2`.
A round, with `p_i = n_i / sum n_j` over the cohort (or uniform):

    down    wbar
    client  w_i <- LocalTraining(w_i) with the gradient  grad loss(w_i; b) + lambda (w_i - wbar)
    up      w_i - wbar
    server  wbar <- wbar + sum_i p_i (w_i - wbar)                                 (= sum_i p_i w_i)

Unlike in Ditto, a client trains a single model, and the mean is that of the clients' own models.
The personal model is `w_i`, which starts from the common `w_0`; a client that never took part is
evaluated with `wbar`, the global model. A client trains only when it takes part.

The authors' code adds the mean change of the `w_i` in a round to `wbar`. That is the same if all
clients take part in every round, as in the paper; if not, its `wbar` is no mean of models. The
paper's noise, which keeps single examples private, is not part of this module.

lambda = 0: `w_i` is Local.
"""

import tensorflow as tf

from tff_pfl.algorithms.registry import ALGORITHMS
from tff_pfl.arguments.extension import extends
from tff_pfl.arguments.ranges import at_least, takes
from tff_pfl.local import LocalTraining, trees
from tff_pfl.models import Model
from tff_pfl.templates import Algorithm, ClientOutput, OwnModel, averaging, last_own_model


@ALGORITHMS.register("mr_mtl")
@extends(averaging)
@takes(lambda_=at_least(0))
def mr_mtl(model: Model, local: LocalTraining, *, lambda_: float = 0.1, **options) -> Algorithm:
    """Makes MR-MTL.

    Args:
        model: The model, of weights `W`.
        local: The local training.
        lambda_: The pull of a client's model towards the mean. The paper tunes it for each data
            set; the authors' example of a search has 0.1, 0.3, 1 and 3.
        **options: Options of `averaging`.
    """

    def client_init(client_id, seed):
        weights = model.init(seed)
        return OwnModel(weights, tf.constant(0), local.optimizer_state(weights))

    def client_work(mean, state, examples, context):
        trained = local.train(
            model,
            state.model,
            examples,
            context,
            reg=lambda own: trees.scale(trees.subtract(own, mean), lambda_),
            optimizer_state=state.optimizer,
        )
        return ClientOutput(
            state=OwnModel(trained.weights, state.participations + 1, trained.optimizer_state),
            upload=trees.subtract(trained.weights, mean),
            metrics=trained.totals,
        )

    return averaging(
        model.init,
        client_work,
        last_own_model,
        client_init,
        global_weights=lambda mean: mean,
        **options,
    )
