"""FedPAC: Xu et al., ICLR 2023.

The paper is "Personalized federated learning with feature alignment and classifier collaboration".

The layers of the model are split into a body, whose outputs are features `f(x)`, and a linear head
for each client. Clients keep their features near the global mean of the features of the same class,
and combine each other's heads. A round has two exchanges, with `p_i = n_i / sum n_j` over the
cohort (or uniform) and `n_ic`, the number of examples of class `c`:

    down    body, global centres c_y
    client  h_i, V_i, the moments of its features under the body it received (see `collaboration`)
            head_i <- LocalTraining(head_i), head_epochs, with that body
            body_i  = LocalTraining(body), with the new head and the loss
                          CE + lambda / d ||f(x) - c_y||^2,    of features of d numbers
            c_iy    = mean f(x) of its examples of class y, under body_i
    up      body_i - body,  head_i,  h_i, V_i,  n_iy c_iy, n_iy
    server  body <- body + sum_i p_i (body_i - body)
            c_y  <- sum_i n_iy c_iy / sum_i n_iy,  for the classes of the cohort
            alpha_i = argmin over the simplex of alpha^T (diag(V) + D_i) alpha,
                      (D_i)_jk = <h_i - h_j, h_i - h_k>
    down    sum_j alpha_ij head_j                                         (exchange "collaborate")
    client  head_i <- sum_j alpha_ij head_j

All phases see the same batches. Features of a class without a global centre are not pulled; in the
first round, no class has one. The authors' code pulls them to the client's own centre from the
second round on. That code also drops each `alpha_ij` up to 0.001 without scaling up the others;
this is left out here. The personal model is the client's own head on the current body, for every
client; heads start from a common initial value. There is no global model.

lambda = 0 and collaborate=False: FedRep with one epoch for heads.
"""

import collections
import dataclasses

from tff_pfl.aggregators import FieldsFactory, StackFactory
from tff_pfl.algorithms.fedpac import collaboration, server
from tff_pfl.algorithms.fedper import OwnHead
from tff_pfl.algorithms.fedproto import pull
from tff_pfl.algorithms.fedrep import fedrep
from tff_pfl.algorithms.registry import ALGORITHMS
from tff_pfl.arguments.extension import extends
from tff_pfl.arguments.ranges import at_least, takes, whole
from tff_pfl.local import LocalTraining, trees
from tff_pfl.models import Model, layer_parts, linear_head_shape, merged, prefixed
from tff_pfl.templates import Algorithm, ClientOutput, Exchange, averaging


@ALGORITHMS.register("fedpac")
@extends(averaging)
@takes(
    lambda_=at_least(0),
    head_epochs=whole(0),
    head_learning_rate=at_least(0),
    body_epochs=whole(0),
)
def fedpac(
    model: Model,
    local: LocalTraining,
    *,
    lambda_: float = 1.0,
    collaborate: bool = True,
    head_epochs: int = 1,
    head_learning_rate: float | None = None,
    body_epochs: int | None = None,
    **options,
) -> Algorithm:
    """Makes FedPAC.

    The server's metric is the mean `alpha_ii` of the cohort.

    Args:
        model: The model, whose last layer is a linear head.
        local: The local training of head and body.
        lambda_: The pull of features towards the centre of their class; the paper uses 1. The
            squared distance is a mean over features, as in the authors' code. With a sum over `d`
            features, `lambda` would be `d` times as strong.
        collaborate: Whether clients combine each other's heads; the paper's ablation does not.
        head_epochs: Passes over the examples for the head.
        head_learning_rate: The learning rate of heads, which decays as in `local`; default the rate
            of `local`. The authors train heads with 0.1 and bodies with 0.01.
        body_epochs: Passes for the body; default the epochs of `local`.
        **options: Options of `averaging`.

    Raises:
        ValueError: The model has no features (see `Model`), or only one logit.
    """
    dim, num_classes = linear_head_shape(model, "fedpac")
    parts = layer_parts(model)

    def client_work(message, state, examples, context):
        (body, centres), (head_optimizer, body_optimizer) = message, state.optimizer
        weights = parts.merge(body, state.head)
        received = collaboration.class_moments(model, weights, examples, num_classes)
        head = local.train(
            parts.personal_model(model, body),
            state.head,
            examples,
            context,
            epochs=head_epochs,
            learning_rate=head_learning_rate,
            optimizer_state=head_optimizer,
        )
        trained = local.train(
            parts.shared_model(model, head.weights),
            body,
            examples,
            context,
            term=pull(centres, lambda_),
            epochs=body_epochs,
            optimizer_state=body_optimizer,
        )
        weights = parts.merge(trained.weights, head.weights)
        moments = collaboration.class_moments(model, weights, examples, num_classes)
        own = server.OwnUpload(
            context.client_id,
            head.weights,
            received.mean,
            received.variance,
            moments.features,
            moments.counts,
        )
        metrics = merged(trained.totals, prefixed("head", head.totals))
        return ClientOutput(
            state=OwnHead(head.weights, (head.optimizer_state, trained.optimizer_state)),
            upload=server.Upload(trees.subtract(trained.weights, body), own),
            metrics=metrics,
        )

    averaged = averaging(
        lambda seed: parts.split(model.init(seed))[0],
        client_work,
        lambda body, state, examples, context: parts.merge(body, state.head),
        fedrep(model, local).client_init,
        **options,
    )
    (exchange,) = averaged.exchanges

    def server_init(seed):
        head = parts.split(model.init(seed))[1]
        return server.initial(averaged.server_init(seed), head, num_classes, dim)

    def finalize(state, aggregate, round_num):
        state, metrics = exchange.finalize(state, aggregate["change"], round_num)
        state, measured = server.with_uploads(state, aggregate["own"], round_num)
        return state, collections.OrderedDict(metrics, **measured)

    train = dataclasses.replace(
        exchange,
        distribute=lambda state: (state.weights, state.centres),
        aggregator=FieldsFactory(change=exchange.aggregator, own=StackFactory()),
        finalize=finalize,
    )
    combine = Exchange(select=server.own_head, client_work=server.take_head, name="collaborate")
    return dataclasses.replace(
        averaged,
        server_init=server_init,
        exchanges=[train, combine] if collaborate else [train],
    )
