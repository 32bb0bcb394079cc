"""FedAvg: McMahan et al., "Communication-efficient learning of deep networks", AISTATS 2017.

A round, with `p_i = n_i / sum n_j` over the cohort (or uniform):

    down    w
    client  w_i = LocalSGD(w)
    up      w_i - w
    server  w <- w + server_learning_rate * sum_i p_i (w_i - w)          (= sum_i p_i w_i at rate 1)

FedAvg has no personal model of its own. What is evaluated as one differs between the papers that
compare with it, and is a parameter:

    "global"  the global model itself (PGFed)
    "local"   the client's model just before the last aggregation it took part in (FedPG); the
              current global model for a client that never took part

pFedMB's comparison fine-tunes the global model: `tff_pfl.evaluation.fine_tuned`.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.local import LocalSGD, trees
from tff_pfl.models import Model
from tff_pfl.names import check_names
from tff_pfl.ranges import at_least, takes
from tff_pfl.server import mean_update
from tff_pfl.templates import (
    ClientOutput,
    Exchange,
    Personalization,
    PersonalizedProcess,
    aggregation_weight,
    compose_personalized_process,
    last_own_model,
)

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

    optimizer: Any
    model: Any = ()
    participations: Any = ()


@takes(server_learning_rate=at_least(0))
def build_fedavg(
    model: Model,
    examples_type: tff.types.Type,
    local: LocalSGD,
    objective: Callable[[Any], Mapping[str, Any]] = lambda received: {},
    *,
    weighting: str = "num_examples",
    personalized: str = "global",
    server_learning_rate: float = 1.0,
    seed: int = 0,
) -> PersonalizedProcess:
    """Builds FedAvg.

    Args:
        model: The model, of weights `W`.
        examples_type: TFF type of a client's examples.
        local: The local training.
        objective: `(W -> keyword arguments of LocalSGD.train)`: what clients minimise in place of
            their loss, given the model they received; for algorithms that are FedAvg but for that.
        weighting: "num_examples" or "uniform".
        personalized: Which model is evaluated as the client's own; see the module docstring.
        server_learning_rate: Length of the server's step along the mean change; 1 is averaging.
        seed: Of the initial weights and of the order of batches.
    """
    check_names("convention for personalized", [personalized], PERSONALIZED)
    keeps_model = personalized == "local"

    def client_init(client_id):
        del client_id
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
            weight=aggregation_weight(examples, weighting),
            metrics=trained.totals,
        )

    def personalize(weights, state, examples, context):
        if personalized == "local":
            return last_own_model(weights, state, examples, context)
        return weights

    return compose_personalized_process(
        server_init=lambda: model.init(seed),
        client_init=client_init,
        exchanges=[
            Exchange(
                distribute=lambda weights: weights,
                client_work=client_work,
                finalize=mean_update(server_learning_rate),
            )
        ],
        personalize=Personalization(client_work=personalize, distribute=lambda weights: weights),
        global_weights=lambda weights: weights,
        examples_type=examples_type,
        seed=seed,
    )
