"""FedAvg: clients train the global model, and the server averages the results.

McMahan et al., "Communication-efficient learning of deep networks", AISTATS 2017.

A round, with `p_i = n_i / sum n_j` over the cohort (or uniform):

    down    w
    client  w_i = LocalTraining(w)
    up      w_i - w
    server  w <- w + sum_i p_i (w_i - w)                                          (= sum_i p_i w_i)

FedAvg has no personal model. Papers that compare with it evaluate different models as personal
ones, hence the option `personalized`:

    "global"  the global model itself (PGFed)
    "local"   the client's model just before the last aggregation it took part in (FedPG); the
              current global model for a client that never took part

pFedMB's comparison fine-tunes the global model: see `tff_pfl.evaluation.fine_tuned`. A server
optimizer turns FedAvg into FedAvgM, FedAdam and so on: see `tff_pfl.templates.averaging`.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from tff_pfl.algorithms.registry import ALGORITHMS
from tff_pfl.arguments.extension import extends
from tff_pfl.arguments.names import check_names
from tff_pfl.local import LocalTraining, trees
from tff_pfl.models import Model, Weights
from tff_pfl.templates import Algorithm, ClientOutput, averaging, last_own_model

PERSONALIZED = ("global", "local")


class OwnState(NamedTuple):
    """Client state.

    Attributes:
        optimizer: The client's optimizer state; `()` unless it persists.
        model: With personalized="local", `W`, the client's model at the end of its last
            participation; otherwise `()`.
        participations: With personalized="local", int32 scalar, the number of rounds the client
            took part in; otherwise `()`.
    """

    optimizer: tuple
    model: Weights | tuple = ()
    participations: tf.Tensor | tuple = ()


@ALGORITHMS.register("fedavg")
@extends(averaging)
def fedavg(
    model: Model,
    local: LocalTraining,
    objective: Callable[[Weights], Mapping[str, Any]] = lambda received: {},
    *,
    personalized: str = "global",
    **options,
) -> Algorithm:
    """Builds the FedAvg algorithm.

    Args:
        model: The model, of weights `W`.
        local: The local training.
        objective: `(W -> keyword arguments of LocalTraining.train)`, which gives clients another
            objective than their loss, from the model they received; for algorithms that differ from
            FedAvg only in this.
        personalized: The model that is evaluated as the client's own: "global", or "local", the
            client's model at the end of its last training.
        **options: Options of `averaging`.
    """
    check_names("personalized", [personalized], PERSONALIZED)
    keeps_model = personalized == "local"

    def client_init(client_id, seed):
        weights = model.init(seed)
        own_model = (weights, tf.constant(0)) if keeps_model else ()
        return OwnState(local.optimizer_state(weights), *own_model)

    def client_work(weights, state, examples, context):
        trained = local.train(
            model,
            weights,
            examples,
            context,
            optimizer_state=state.optimizer,
            **objective(weights),
        )
        own_model = (trained.weights, state.participations + 1) if keeps_model else ()
        return ClientOutput(
            state=OwnState(trained.optimizer_state, *own_model),
            upload=trees.subtract(trained.weights, weights),
            metrics=trained.totals,
        )

    return averaging(
        model.init,
        client_work,
        last_own_model if keeps_model else lambda weights, state, examples, context: weights,
        client_init,
        global_weights=lambda weights: weights,
        **options,
    )
