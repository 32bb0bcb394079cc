"""FedRep: clients train their own head first, then the shared body.

Collins et al., "Exploiting shared representations for personalized federated learning", ICML 2021.

The layers of the model are split into a body, the shared representation, and a head, which each
client keeps. A round, with `p_i = n_i / sum n_j` over the cohort (or uniform):

    down    body
    client  head_i <- LocalTraining(head_i), head_epochs, with the body it received
            body_i  = LocalTraining(body), body_epochs, with the new head
    up      body_i - body
    server  body <- body + sum_i p_i (body_i - body)

Both phases see the same batches. The personal model is the client's own head on the current body,
for every client. Heads start from a common initial value. There is no global model.

No personal layer: FedAvg. All layers personal: Local with head_epochs.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tff_pfl.algorithms.fedper import OwnHead
from tff_pfl.algorithms.registry import ALGORITHMS
from tff_pfl.arguments.extension import extends
from tff_pfl.arguments.ranges import takes, whole
from tff_pfl.local import ClientContext, LocalTraining, trees
from tff_pfl.models import Model, merged, prefixed, two_parts
from tff_pfl.templates import Algorithm, ClientOutput, averaging


@ALGORITHMS.register("fedrep")
@extends(averaging)
@takes(
    head_epochs=whole(0),
    head_steps=whole(1),
    body_epochs=whole(0),
    body_steps=whole(1),
    evaluation_head_epochs=whole(0),
)
def fedrep(
    model: Model,
    local: LocalTraining,
    body_objective: Callable[[Model, ClientContext], Mapping[str, Any]] = lambda model, context: {},
    body_local: LocalTraining | None = None,
    *,
    personal_layers: Iterable[str] | None = None,
    head_epochs: int | None = None,
    head_steps: int | None = None,
    body_epochs: int | None = None,
    body_steps: int | None = None,
    evaluation_head_epochs: int = 0,
    **options,
) -> Algorithm:
    """Builds the FedRep algorithm.

    Args:
        model: The model, of weights `W`.
        local: The local training of head and body.
        body_objective: `(model of the body, context) -> keyword arguments of LocalTraining.train`,
            which gives the body another objective than the loss; for algorithms that differ from
            FedRep only in the body's training.
        body_local: The local training of the body, for these algorithms; default `local`.
        personal_layers: The names of the head's layers; default the model's last layer.
        head_epochs: The epochs of the head; default as in `local`. The paper has 10, PGFed's and
            FedPG's comparisons 5.
        head_steps: The number of mini-batches of the head, not of epochs; for PLGU-GRep.
        body_epochs: The epochs of the body; default as in `local`.
        body_steps: The number of mini-batches of the body, which replaces body_epochs.
        evaluation_head_epochs: The epochs of the head before an evaluation, whose result is not
            kept; the authors' code has 10 after the last round.
        **options: Options of `averaging`.
    """
    parts = two_parts(model, personal=personal_layers)

    def client_init(client_id, seed):
        body, head = parts.split(model.init(seed))
        return OwnHead(head, (local.optimizer_state(head), local.optimizer_state(body)))

    def train_head(body, head, examples, context, optimizer_state, **length):
        head_model = parts.personal_model(model, body)
        return local.train(
            head_model, head, examples, context, optimizer_state=optimizer_state, **length
        )

    def client_work(body, state, examples, context):
        head_optimizer, body_optimizer = state.optimizer
        head = train_head(
            body,
            state.head,
            examples,
            context,
            head_optimizer,
            **_epochs_or_steps(head_epochs, head_steps),
        )
        body_model = parts.shared_model(model, head.weights)
        trained = (body_local or local).train(
            body_model,
            body,
            examples,
            context,
            optimizer_state=body_optimizer,
            **_epochs_or_steps(body_epochs, body_steps),
            **body_objective(body_model, context),
        )
        metrics = merged(trained.totals, prefixed("head", head.totals))
        return ClientOutput(
            state=OwnHead(head.weights, (head.optimizer_state, trained.optimizer_state)),
            upload=trees.subtract(trained.weights, body),
            metrics=metrics,
        )

    def personalize(body, state, examples, context):
        head = train_head(body, state.head, examples, context, (), epochs=evaluation_head_epochs)
        return parts.merge(body, head.weights)

    return averaging(
        lambda seed: parts.split(model.init(seed))[0],
        client_work,
        personalize,
        client_init,
        **options,
    )


def _epochs_or_steps(epochs, steps):
    return {"epochs": epochs} if steps is None else {"steps": steps}
