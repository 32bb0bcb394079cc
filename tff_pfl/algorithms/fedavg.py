"""FedAvg: McMahan et al., "Communication-efficient learning of deep networks", AISTATS 2017.

A round, with `p_i = n_i / sum n_j` over the cohort (or uniform):

    down    w
    client  w_i = LocalTraining(w)
    up      w_i - w
    server  w <- w + sum_i p_i (w_i - w)                                          (= sum_i p_i w_i)

FedAvg has no personal model of its own. What is evaluated as one differs between the papers that
compare with it, and is a parameter:

    "global"  the global model itself (PGFed)
    "local"   the client's model just before the last aggregation it took part in (FedPG); the
              current global model for a client that never took part

pFedMB's comparison fine-tunes the global model: `tff_pfl.evaluation.fine_tuned`. With a server
optimizer it is FedAvgM, FedAdam and their like: see `tff_pfl.templates.averaging`.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from tff_pfl.algorithms.registry import ALGORITHMS
from tff_pfl.local import LocalTraining, trees
from tff_pfl.models import Model, Weights
from tff_pfl.names import check_names
from tff_pfl.templates import Algorithm, ClientOutput, averaging, extends, last_own_model

PERSONALIZED = ("global", "local")


class OwnState(NamedTuple):
    """Client state.

    Attributes:
        optimizer: What persists of the client's optimizer.
        model: In the "local" convention `W`, the client's model at the end of its last
            participation; else `()`.
        participations: In the "local" convention an int32 scalar, rounds the client took part in;
            else `()`.
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
    """FedAvg.

    Args:
        model: The model, of weights `W`.
        local: The local training.
        objective: `(W -> keyword arguments of LocalTraining.train)`: what clients minimise in place
            of their loss, given the model they received; for algorithms that are FedAvg but for
            that.
        personalized: Which model is evaluated as the client's own; see the module docstring.
        **options: Those of `averaging`.
    """
    check_names("convention for personalized", [personalized], PERSONALIZED)
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
