"""LG-FedAvg: clients keep the body of the model and share its head.

Liang et al., "Think locally, act globally: federated learning with local and global
representations", 2020.

FedPer with the roles swapped: each client keeps the body, its own representation of its examples,
and the head is shared. A round, with `p_i = n_i / sum n_j` over the cohort (or uniform):

    down    head
    client  (body_i, head_i) <- LocalTraining(body_i, head)            jointly
    up      head_i - head
    server  head <- head + sum_i p_i (head_i - head)

With `alternate`, each mini-batch b takes two steps instead of the joint one:

    body_i <- a step along grad loss(body_i, head_i; b), with head_i fixed
    head_i <- a step along grad loss(body_i, head_i; b), with the new body_i fixed

Each step has its own optimizer, and each gradient is clipped separately. Without momentum this is
PGFed's code; with momentum, the fixed part in that code keeps moving along its velocity.

The personal model is the client's own body under the current head, for every client, whether it
took part or not. Bodies start from a common initial value. There is no global model. (The authors
start from a model that FedAvg has trained, and weigh clients uniformly.)

No shared layer: Local. All layers shared: FedAvg.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple, cast

from tff_pfl.algorithms.fedper import fedper
from tff_pfl.algorithms.registry import ALGORITHMS
from tff_pfl.arguments.extension import extends
from tff_pfl.arguments.ranges import takes
from tff_pfl.local import ClientContext, Examples, LocalTraining, TrainResult
from tff_pfl.models import LayerParts, Model, Weights, layer_parts
from tff_pfl.templates import Algorithm


@ALGORITHMS.register("lg_fedavg")
@extends(fedper, without=["personal_layers"])
@takes()
def lg_fedavg(
    model: Model,
    local: LocalTraining,
    *,
    shared_layers: Iterable[str] | None = None,
    alternate: bool = False,
    **options,
) -> Algorithm:
    """Builds the LG-FedAvg algorithm.

    The client state is FedPer's `OwnHead`, whose `head` holds the body.

    Args:
        model: The model, of weights `W`.
        local: The local training of body and head.
        shared_layers: The names of the head's layers; default the model's last layer.
        alternate: Whether body and head take separate steps on each batch.
        **options: Options of `fedper`; the authors weigh clients uniformly.
    """
    body_layers = layer_parts(model, personal=shared_layers).shared
    if alternate:
        model.check_no_batch_normalization("lg_fedavg with alternate=True")
        local = cast(LocalTraining, _Alternating(local, layer_parts(model, personal=body_layers)))
    return fedper(model, local, personal_layers=body_layers, **options)


class _Alternating(NamedTuple):
    """A replacement of `LocalTraining` for FedPer, with separate steps of body and head.

    Attributes:
        local: The local training of both parts.
        parts: The shared head and the body.
    """

    local: LocalTraining
    parts: LayerParts

    def optimizer_state(self, weights: Weights) -> Any:
        return tuple(map(self.local.optimizer_state, self.parts.split(weights)))

    def train(
        self,
        model: Model,
        weights: Weights,
        examples: Examples,
        context: ClientContext,
        *,
        optimizer_state: Any,
    ) -> TrainResult:
        local, parts = self
        head, body = parts.split(weights)
        head_optimizer, body_optimizer = optimizer_state

        def gradient(head, batch, carry):
            body, body_optimizer = carry
            direction, totals = parts.personal_model(model, head).gradient(body, batch)
            body, body_optimizer = local.step(body, direction, body_optimizer)
            direction, _ = parts.shared_model(model, body).gradient(head, batch)
            return direction, totals, (body, body_optimizer)

        trained = local.train(
            model,
            head,
            examples,
            context,
            optimizer_state=head_optimizer,
            gradient=gradient,
            carry=(body, local.begin(body, context, body_optimizer)),
        )
        body, body_optimizer = trained.carry
        return trained._replace(
            weights=parts.merge(trained.weights, body),
            optimizer_state=(trained.optimizer_state, local.kept(body_optimizer)),
        )
