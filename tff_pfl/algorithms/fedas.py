"""FedAS: FedPer with bodies that are aligned to the client, and weighted by Fisher information.

Yang, Huang and Ye, "FedAS: Bridging inconsistency in personalized federated learning", CVPR 2024.

The layers of the model are split into a body, whose outputs are features `f(x)`, and a head. A
client keeps the model of its last participation, with body `body_i`, head `head_i` and features
`f_i(x)`. A round, with `n_i` examples of a client:

    down    body
    client  c_iy   = mean f_i(x) of its examples of class y
            start  = LocalTraining(body), alignment_epochs, with the loss
                         1/d ||f(x) - c_iy||^2,    of features of d numbers
            (body_i, head_i) <- LocalTraining(start, head_i)           jointly
            F_i    = 1/n_i sum_(x, y) ||grad log p(y | x; body_i, head_i)||^2
    up      body_i - body,  F_i
    server  body <- body + sum_i F_i (body_i - body) / sum_j F_j

`F_i` is the trace of the client's Fisher information, and `-log p` the loss of an example. A client
that never took part has no features of its own: it starts from the body. Both trainings see the
same batches, with the same optimizer. The personal model is that of the client's last participation
(personalized="last"), as in the authors' code, or its head on the current body, as in FedPer
("current"); a client that never took part has the current body under the initial head. There is no
global model.

In the authors' code, the loss of the alignment is a sum over the classes of a batch, each with the
mean of its examples; its optimizer is plain SGD, on batches of 16 examples. That code adds up the
squared norms of gradients of whole batches (weighting="batch_fisher"). These weights grow with the
number of batches, and are smaller where gradients of examples cancel out.

alignment_epochs = 0, personalized="current" and weighting="num_examples": FedPer.
"""

import dataclasses
from collections.abc import Iterable

import tensorflow as tf

from tff_pfl.algorithms.fedproto import class_sums, moved, pull, unknown
from tff_pfl.algorithms.registry import ALGORITHMS, idle_where
from tff_pfl.arguments.extension import extends
from tff_pfl.arguments.names import check_names
from tff_pfl.arguments.ranges import at_least, takes, whole
from tff_pfl.local import Examples, LocalTraining, sum_over, trees
from tff_pfl.models import Mean, Model, Weights, linear_head_shape, two_parts
from tff_pfl.templates import (
    Algorithm,
    ClientOutput,
    OwnModel,
    Weighting,
    averaging,
    last_own_model,
)
from tff_pfl.templates.averaging import WEIGHTINGS


@ALGORITHMS.register("fedas")
@idle_where("alignment_learning_rate", alignment_epochs=0)
@extends(averaging)
@takes(alignment_epochs=whole(0), alignment_learning_rate=at_least(0))
def fedas(
    model: Model,
    local: LocalTraining,
    *,
    personal_layers: Iterable[str] | None = None,
    alignment_epochs: int = 1,
    alignment_learning_rate: float | None = 0.01,
    personalized: str = "last",
    weighting: Weighting = "fisher",
    **options,
) -> Algorithm:
    """Makes FedAS.

    Args:
        model: The model, whose last layer is a linear head.
        local: The local training of the body alone, in the alignment, and of body and head.
        personal_layers: The names of the head's layers; default the model's last layer.
        alignment_epochs: The epochs of the alignment; 1 in the authors' code.
        alignment_learning_rate: The learning rate of the alignment, which decays as in `local`;
            0.01 in the authors' code. None: the rate of `local`.
        personalized: The model that is evaluated as the client's own: "last" or "current".
        weighting: The weights of clients: "fisher", `F_i`; "batch_fisher", as in the authors' code;
            or one of `averaging`.
        **options: Options of `averaging`.

    Raises:
        ValueError: The model has no features (see `Model`), or only one logit.
    """
    check_names("personalized", [personalized], ("last", "current"))
    if not callable(weighting):
        check_names("weighting", [weighting], ("fisher", "batch_fisher", *WEIGHTINGS))
    dim, num_classes = linear_head_shape(model, "fedas")
    parts = two_parts(model, personal=personal_layers)
    # Only the term of the alignment is left of its loss.
    no_loss = model.task.with_loss(lambda labels, outputs: tf.zeros(tf.shape(labels)))
    alignment_model = dataclasses.replace(model, task=no_loss, penalty=None, made_of=model)

    def client_init(client_id, seed):
        weights = model.init(seed)
        return OwnModel(weights, tf.constant(0), local.optimizer_state(weights))

    def align(body, state, examples, context):
        own_sums = class_sums(model, state.model, examples, num_classes)
        aligned = local.train(
            parts.shared_model(alignment_model, parts.split(state.model)[1]),
            body,
            examples,
            context,
            term=pull(moved(unknown(num_classes, dim), own_sums), 1.0),
            epochs=alignment_epochs,
            learning_rate=alignment_learning_rate,
            optimizer_state=(),
        )
        return trees.select(state.participations > 0, aligned.weights, body)

    def with_own_head(body, state):
        return parts.merge(body, parts.split(state.model)[1])

    def client_work(body, state, examples, context):
        start = with_own_head(align(body, state, examples, context), state)
        trained = local.train(model, start, examples, context, optimizer_state=state.optimizer)
        return ClientOutput(
            state=OwnModel(trained.weights, state.participations + 1, trained.optimizer_state),
            upload=trees.subtract(parts.split(trained.weights)[0], body),
            metrics=trained.totals,
        )

    def personalize(body, state, examples, context):
        current = with_own_head(body, state)
        if personalized == "current":
            return current
        return last_own_model(current, state, examples, context)

    is_by_fisher = weighting in ("fisher", "batch_fisher")
    averaged = averaging(
        lambda seed: parts.split(model.init(seed))[0],
        client_work,
        personalize,
        client_init,
        weighting="uniform" if is_by_fisher else weighting,
        **options,
    )
    if not is_by_fisher:
        return averaged

    def weighted(exchange):
        def client_work(body, state, examples, context):
            output = exchange.client_work(body, state, examples, context)
            if weighting == "fisher":
                weight = fisher_trace(model, output.state.model, examples)
            else:
                weight = batch_fisher_trace(model, output.state.model, examples, local.batch_size)
            return output._replace(weight=weight)

        return dataclasses.replace(exchange, client_work=client_work)

    return averaged.with_exchanges(weighted)


def fisher_trace(model: Model, weights: Weights, examples: Examples) -> tf.Tensor:
    """Computes the mean over examples of the squared norm of the gradient of their losses.

    It is 0 for a client without examples.
    """
    return sum_over(
        examples,
        lambda example: _squared_norm(model, weights, example),
        batch_size=1,
        start=Mean(tf.constant(0.0), tf.constant(0.0)),
    ).mean


def batch_fisher_trace(
    model: Model, weights: Weights, examples: Examples, batch_size: int
) -> tf.Tensor:
    """Computes the sum over batches of the squared norm of the gradient of their mean loss."""
    return sum_over(
        examples,
        lambda batch: _squared_norm(model, weights, batch).mean,
        batch_size=batch_size,
        start=tf.constant(0.0),
    )


def _squared_norm(model, weights, batch):
    """Returns the squared norm for a batch, as a `Mean` that counts its examples."""
    of_means = dataclasses.replace(model.task, reduction="mean")
    likelihood = dataclasses.replace(model, task=of_means, penalty=None, made_of=model)
    gradient, totals = likelihood.gradient(weights, batch, training=False)
    count = totals["loss"].count
    return Mean(trees.dot(gradient, gradient) * count, count)
