"""Ditto: FedAvg, and personal models that are pulled towards the global model.

Li et al., "Fair and robust federated learning through personalization", ICML 2021.

FedAvg trains a global model `w`. In addition each client trains its own model `v_i`, which is kept
near the global model it received. A round, with `p_i = n_i / sum n_j` (or uniform):

    down    w
    client  w_i = LocalTraining(w)
            v_i <- LocalTraining(v_i) with the gradient  grad loss(v_i; b) + lambda (v_i - w)
    up      w_i - w
    server  w <- w + sum_i p_i (w_i - w)

Both models see the same batches. The personal model is `v_i`, which starts from the common `w_0`;
a client that never took part is evaluated with the current `w`. A client trains only when it takes
part.

lambda = 0: `v_i` is Local, `w` is FedAvg. The global model never depends on lambda.
"""

import tensorflow as tf

from tff_pfl.algorithms.registry import ALGORITHMS
from tff_pfl.arguments.extension import extends
from tff_pfl.arguments.ranges import at_least, takes, whole
from tff_pfl.local import LocalTraining, trees
from tff_pfl.models import Model, merged, prefixed
from tff_pfl.templates import Algorithm, ClientOutput, OwnModel, averaging, last_own_model


@ALGORITHMS.register("ditto")
@extends(averaging)
@takes(lambda_=at_least(0), personal_epochs=whole(0))
def ditto(
    model: Model,
    local: LocalTraining,
    *,
    lambda_: float = 0.1,
    personal_epochs: int | None = None,
    **options,
) -> Algorithm:
    """Builds the Ditto algorithm.

    Args:
        model: The model, of weights `W`.
        local: The local training of both models.
        lambda_: The pull of the personal model towards the global one; the paper uses 0.1, 1 and 2.
        personal_epochs: The epochs of the personal model; default as in `local`.
        **options: Options of `averaging`; the authors' code weighs clients uniformly.
    """

    def client_init(client_id, seed):
        weights = model.init(seed)
        return OwnModel(weights, tf.constant(0), (local.optimizer_state(weights),) * 2)

    def client_work(weights, state, examples, context):
        shared_optimizer, personal_optimizer = state.optimizer
        trained = local.train(model, weights, examples, context, optimizer_state=shared_optimizer)
        personal = local.train(
            model,
            state.model,
            examples,
            context,
            reg=lambda v: trees.scale(trees.subtract(v, weights), lambda_),
            epochs=personal_epochs,
            optimizer_state=personal_optimizer,
        )
        metrics = merged(trained.totals, prefixed("personal", personal.totals))
        optimizers = (trained.optimizer_state, personal.optimizer_state)
        return ClientOutput(
            state=OwnModel(personal.weights, state.participations + 1, optimizers),
            upload=trees.subtract(trained.weights, weights),
            metrics=metrics,
        )

    return averaging(
        model.init,
        client_work,
        last_own_model,
        client_init,
        global_weights=lambda weights: weights,
        **options,
    )
