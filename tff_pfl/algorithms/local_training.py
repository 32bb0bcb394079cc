"""Local: every client trains a model of its own and sends nothing.

A round, at each client of the cohort, with `theta_i` the client's model, at first the common `w_0`:

    theta_i <- LocalSGD(theta_i)

The personal model is `theta_i`; there is no global model. A client trains only when it takes part,
as in the papers' comparisons, so that it gets as many epochs as under any other algorithm; let all
clients take part in every round for `T * E` epochs each.
"""

from typing import Any, NamedTuple

import tensorflow_federated as tff

from tff_pfl.local import LocalSGD
from tff_pfl.models import Model
from tff_pfl.templates import (
    ClientOutput,
    Exchange,
    Personalization,
    PersonalizedProcess,
    compose_personalized_process,
)


class OwnModel(NamedTuple):
    """Client state.

    Attributes:
        model: The weights `W` of the client's own model.
        optimizer: What persists of the client's optimizer.
    """

    model: Any
    optimizer: Any


def build_local(
    model: Model, examples_type: tff.types.Type, local: LocalSGD, *, seed: int = 0
) -> PersonalizedProcess:
    """Builds local training.

    Args:
        model: The model, of weights `W`.
        examples_type: TFF type of a client's examples.
        local: The local training.
        seed: Of the initial weights and of the order of batches.
    """

    def client_init(client_id):
        del client_id
        weights = model.init(seed)
        return OwnModel(weights, local.optimizer_state(weights))

    def client_work(message, state, examples, context):
        del message
        trained = local.train(
            model, state.model, examples, context, optimizer_state=state.optimizer
        )
        return ClientOutput(
            state=OwnModel(trained.weights, trained.optimizer_state), metrics=trained.totals
        )

    return compose_personalized_process(
        server_init=lambda: (),
        client_init=client_init,
        exchanges=[Exchange(client_work=client_work)],
        personalize=Personalization(client_work=lambda message, state, examples, ctx: state.model),
        examples_type=examples_type,
        seed=seed,
    )
