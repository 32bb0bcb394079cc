"""Local: every client trains its own model and sends nothing.

A round, at each client of the cohort, with `theta_i` the client's model, at first the common `w_0`:

    theta_i <- LocalTraining(theta_i)

The personal model is `theta_i`. There is no global model. A client trains only when it takes part,
as in the papers' comparisons, so it gets as many epochs as with any other algorithm. For `T * E`
epochs of every client, let all clients take part in every round.
"""

from typing import NamedTuple

from tff_pfl.algorithms.registry import ALGORITHMS
from tff_pfl.local import LocalTraining
from tff_pfl.models import Model, Weights
from tff_pfl.templates import Algorithm, ClientOutput, Exchange, Personalization, no_server_state


class LocalModel(NamedTuple):
    """Client state.

    Attributes:
        model: The weights `W` of the client's own model.
        optimizer: The client's optimizer state; `()` unless it persists.
    """

    model: Weights
    optimizer: tuple


@ALGORITHMS.register("local")
def local_training(model: Model, local: LocalTraining) -> Algorithm:
    """Builds the algorithm of local training.

    Args:
        model: The model, of weights `W`.
        local: The local training.
    """

    def client_init(client_id, seed):
        weights = model.init(seed)
        return LocalModel(weights, local.optimizer_state(weights))

    def client_work(message, state, examples, context):
        trained = local.train(
            model, state.model, examples, context, optimizer_state=state.optimizer
        )
        return ClientOutput(
            state=LocalModel(trained.weights, trained.optimizer_state), metrics=trained.totals
        )

    return Algorithm(
        server_init=no_server_state,
        client_init=client_init,
        exchanges=[Exchange(client_work=client_work)],
        personalize=Personalization(client_work=lambda message, state, examples, ctx: state.model),
    )
