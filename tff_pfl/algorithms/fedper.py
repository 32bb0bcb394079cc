"""FedPer: clients keep the head of the model and share its body.

Arivazhagan et al., "Federated learning with personalization layers", 2019.

The layers of the model are split into a body, which is shared, and a head, which each client
keeps. A round, with `p_i = n_i / sum n_j` over the cohort (or uniform):

    down    body
    client  (body_i, head_i) <- LocalTraining(body, head_i)            jointly
    up      body_i - body
    server  body <- body + sum_i p_i (body_i - body)

The personal model is the client's own head on the current body, for every client, whether it took
part or not. Heads start from a common initial value. There is no global model.

No personal layer: FedAvg. All layers personal: Local.
"""

from collections.abc import Iterable
from typing import NamedTuple

from tff_pfl.algorithms.registry import ALGORITHMS
from tff_pfl.arguments.extension import extends
from tff_pfl.local import LocalTraining, trees
from tff_pfl.models import Model, Weights, two_parts
from tff_pfl.templates import Algorithm, ClientOutput, averaging


class OwnHead(NamedTuple):
    """Client state.

    Attributes:
        head: The weights of the client's personal layers.
        optimizer: The client's optimizer state, `()` unless it persists; a pair if head and body
            are trained one after the other.
    """

    head: Weights
    optimizer: tuple


@ALGORITHMS.register("fedper")
@extends(averaging)
def fedper(
    model: Model, local: LocalTraining, *, personal_layers: Iterable[str] | None = None, **options
) -> Algorithm:
    """Builds the FedPer algorithm.

    Args:
        model: The model, of weights `W`.
        local: The local training of body and head.
        personal_layers: The names of the head's layers; default the model's last layer.
        **options: Options of `averaging`.
    """
    parts = two_parts(model, personal=personal_layers)

    def client_init(client_id, seed):
        weights = model.init(seed)
        return OwnHead(parts.split(weights)[1], local.optimizer_state(weights))

    def own_model(body, state, examples=None, context=None):
        return parts.merge(body, state.head)

    def client_work(body, state, examples, context):
        trained = local.train(
            model, own_model(body, state), examples, context, optimizer_state=state.optimizer
        )
        new_body, new_head = parts.split(trained.weights)
        return ClientOutput(
            state=OwnHead(new_head, trained.optimizer_state),
            upload=trees.subtract(new_body, body),
            metrics=trained.totals,
        )

    return averaging(
        lambda seed: parts.split(model.init(seed))[0],
        client_work,
        own_model,
        client_init,
        **options,
    )
