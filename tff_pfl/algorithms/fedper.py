"""FedPer: Arivazhagan et al., "Federated learning with personalization layers", 2019.

The layers of the model are split into a body, which is shared, and a head, which each client
keeps. A round, with `p_i = n_i / sum n_j` over the cohort (or uniform):

    down    body
    client  (body_i, head_i) <- LocalSGD(body, head_i)            jointly
    up      body_i - body
    server  body <- body + sum_i p_i (body_i - body)

The personal model is the client's own head on the current body, for every client, whether it took
part or not; heads start from a common initial value. There is no global model.

No personal layer: FedAvg. All layers personal: Local.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import tensorflow_federated as tff

from tff_pfl.local import LocalSGD, trees
from tff_pfl.models import Model, partition
from tff_pfl.server import mean_update
from tff_pfl.templates import (
    ClientOutput,
    Exchange,
    Personalization,
    PersonalizedProcess,
    aggregation_weight,
    compose_personalized_process,
)


class OwnHead(NamedTuple):
    """Client state.

    Attributes:
        head: The weights of the client's personal layers.
        optimizer: What persists of the client's optimizer, of body and head.
    """

    head: Any
    optimizer: Any


def build_fedper(
    model: Model,
    examples_type: tff.types.Type,
    local: LocalSGD,
    *,
    personal_layers: Iterable[str] | None = None,
    weighting: str = "num_examples",
    seed: int = 0,
) -> PersonalizedProcess:
    """Builds FedPer.

    Args:
        model: The model, of weights `W`.
        examples_type: TFF type of a client's examples.
        local: The local training of body and head.
        personal_layers: Names of the head's layers; default the model's last layer.
        weighting: "num_examples" or "uniform".
        seed: Of the initial weights and of the order of batches.
    """
    parts = partition(model, personal=personal_layers)

    def initial_parts():
        return parts.split(model.init(seed))

    def client_init(client_id):
        del client_id
        return OwnHead(initial_parts()[1], local.optimizer_state(model.init(seed)))

    def client_work(body, state, examples, context):
        trained = local.train(
            model,
            parts.merge(body, state.head),
            examples,
            context,
            optimizer_state=state.optimizer,
        )
        new_body, new_head = parts.split(trained.weights)
        return ClientOutput(
            state=OwnHead(new_head, trained.optimizer_state),
            upload=trees.subtract(new_body, body),
            weight=aggregation_weight(examples, weighting),
            metrics=trained.totals,
        )

    return compose_personalized_process(
        server_init=lambda: initial_parts()[0],
        client_init=client_init,
        exchanges=[
            Exchange(distribute=lambda body: body, client_work=client_work, finalize=mean_update())
        ],
        personalize=Personalization(
            distribute=lambda body: body,
            client_work=lambda body, state, examples, context: parts.merge(body, state.head),
        ),
        examples_type=examples_type,
        seed=seed,
    )
