"""FedBABU: clients train and share a body under a fixed random head.

Oh et al., "FedBABU: toward enhanced representation for federated image classification", ICLR 2022
(body aggregation and body update).

The layers of the model are split into a body, which is trained and shared, and a head, which keeps
its random initial value, common to all clients, and is never sent. A round, with
`p_i = n_i / sum n_j` over the cohort (or uniform):

    down    body
    client  body_i = LocalTraining(body), with the initial head
    up      body_i - body
    server  body <- body + sum_i p_i (body_i - body)

The global model is the current body with the initial head. The personal model of every client,
whether it took part or not, is that model fine-tuned on the client's examples, head included:

    (body_i, head_i) = LocalTraining(body, initial head)               fine_tune_epochs

The result is not kept. This step is the `fine_tune` of the algorithm's `Personalization`. Other
fine-tuning before evaluations (`tff_pfl.fine_tuned`, `config.evaluation.fine_tune_epochs`) replaces
it.

fine_tune_epochs = 0: the personal model is the global one. The training equals FedRep's with
head_epochs = 0 and, if no layer is in the head, FedAvg's.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any, NamedTuple

from tff_pfl.algorithms.fedper import OwnHead
from tff_pfl.algorithms.registry import ALGORITHMS
from tff_pfl.arguments.extension import extends
from tff_pfl.arguments.names import check_names
from tff_pfl.arguments.ranges import at_least, takes, whole
from tff_pfl.local import LocalTraining, trees
from tff_pfl.models import Model, Weights, two_parts
from tff_pfl.templates import Algorithm, ClientOutput, averaging

PARTS = ("full", "body", "head")


class BodyAndHead(NamedTuple):
    """Server state: the `SharedPart` of `averaging` and the head.

    Attributes:
        weights: The body.
        optimizer: The state of the server's optimizer; `()` without one.
        head: The initial head, which never changes.
    """

    weights: Weights
    optimizer: Any
    head: Weights


@ALGORITHMS.register("fedbabu")
@extends(averaging)
@takes(fine_tune_epochs=whole(0), fine_tune_learning_rate=at_least(0))
def fedbabu(
    model: Model,
    local: LocalTraining,
    *,
    head_layers: Iterable[str] | None = None,
    fine_tune_epochs: int = 1,
    fine_tune_learning_rate: float | None = None,
    fine_tune_part: str = "full",
    **options,
) -> Algorithm:
    """Builds the FedBABU algorithm.

    Args:
        model: The model, of weights `W`.
        local: The local training of the body. Fine-tuning also follows it, with the learning rate
            of the last round and a new optimizer.
        head_layers: The names of the head's layers; default the model's last layer.
        fine_tune_epochs: The epochs of fine-tuning; 1 in PGFed's comparison, 5 in others.
        fine_tune_learning_rate: The learning rate of fine-tuning, the same after every round;
            default the rate of `local`. The default can be too high for the head, because the
            features of a body grow large under a small random head.
        fine_tune_part: The part that is fine-tuned: "full", "body" or "head".
        **options: Options of `averaging`; the authors weigh clients uniformly.
    """
    check_names("fine_tune_part", [fine_tune_part], PARTS)
    parts = two_parts(model, personal=head_layers)
    rate = fine_tune_learning_rate
    tuning = local if rate is None else local.at_constant_rate(rate)

    def client_init(client_id, seed):
        body, head = parts.split(model.init(seed))
        return OwnHead(head, local.optimizer_state(body))

    def client_work(body, state, examples, context):
        trained = local.train(
            parts.shared_model(model, state.head),
            body,
            examples,
            context,
            optimizer_state=state.optimizer,
        )
        return ClientOutput(
            state=OwnHead(state.head, trained.optimizer_state),
            upload=trees.subtract(trained.weights, body),
            metrics=trained.totals,
        )

    def fine_tune(weights, examples, context):
        def tuned(trained_model, start):
            return tuning.train(
                trained_model,
                start,
                examples,
                context,
                epochs=fine_tune_epochs,
                optimizer_state=(),
            ).weights

        body, head = parts.split(weights)
        if fine_tune_part == "body":
            return parts.merge(tuned(parts.shared_model(model, head), body), head)
        if fine_tune_part == "head":
            return parts.merge(body, tuned(parts.personal_model(model, body), head))
        return tuned(model, weights)

    algorithm = averaging(
        lambda seed: parts.split(model.init(seed))[0],
        client_work,
        lambda body, state, examples, context: parts.merge(body, state.head),
        client_init,
        **options,
    )

    def server_init(seed):
        return BodyAndHead(*algorithm.server_init(seed), head=parts.split(model.init(seed))[1])

    return dataclasses.replace(
        algorithm,
        server_init=server_init,
        personalize=dataclasses.replace(algorithm.personalize, fine_tune=fine_tune),
        global_weights=lambda server: parts.merge(server.weights, server.head),
    )
