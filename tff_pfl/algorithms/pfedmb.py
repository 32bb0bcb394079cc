"""pFedMB: every client mixes branches of weights that all clients share.

Mori et al., "Personalized federated learning with multi-branch architecture", IJCNN 2023.

The server holds `B` branches `W_lb` of every linear layer `l` of the model. Every client has a
convex combination `alpha^i_l` of them in each layer, so that similar clients come to share branches
(see `tff_pfl.models.multi_branch`). A round:

    down    W, all branches
    client  alpha^i <- LocalTraining(alpha^i) with W fixed
            W^i      = LocalTraining(W) with the new alpha^i fixed
    up      W^i - W,  alpha^i
    server  W_lb <- sum_i n_i alpha^i_lb W^i_lb / sum_i n_i alpha^i_lb             (equation (5))
            or, without weighing by alpha,  sum_i n_i W^i_lb / sum_i n_i           (equation (6))

Both phases see the same batches. Sums are over the cohort; a branch that no client of the cohort
uses keeps its value. Layers without branches are averaged by `n_i`. The personal model is the
client's mixture of the current branches, for every client; `alpha` starts as 1 / B. The paper has
no global model; here it is the mixture of equal parts.

The paper does not say how SGD stays on the simplex. "softmax": `alpha = softmax(a)`, and SGD moves
the logits `a`. "projection": SGD moves alpha, and each step ends at the nearest point of the
simplex.

The gradient of a branch carries its coefficient. A layer of the mixture therefore moves by
`||alpha_l||^2` of the step of a layer with one branch: by 1 / B at first, and by the whole step
once the client is at a corner. No constant rate suits both. `normalize_step` divides the gradients
of the layer's branches by that factor, so that the mixture moves like one model.

B = 1: FedAvg. Clients with equal alpha that does not move: both averages are the same.
"""

import collections
import dataclasses
from collections.abc import Callable, Iterable
from typing import NamedTuple

import tensorflow as tf

from tff_pfl.aggregators import BranchMeanFactory, Shares
from tff_pfl.algorithms.registry import ALGORITHMS
from tff_pfl.arguments.extension import extends
from tff_pfl.arguments.names import check_names
from tff_pfl.arguments.ranges import at_least, ranges_of, takes, whole
from tff_pfl.local import LocalTraining, project_to_simplex, trees
from tff_pfl.models import Model, merged, multi_branch, prefixed
from tff_pfl.templates import Algorithm, ClientOutput, averaging


class OwnMixture(NamedTuple):
    """Client state.

    Attributes:
        coefficients: The logits of `alpha`, or `alpha` itself: float32 `[L, B]`, or `[1, B]` if all
            layers share one row.
        optimizers: The optimizer states of coefficients and weights; each is `()` unless it
            persists.
    """

    coefficients: tf.Tensor
    optimizers: tuple


class Parametrization(NamedTuple):
    """A parametrization that keeps `alpha` on the simplex.

    Attributes:
        initial: `(shape -> coefficients)`, the coefficients of equal parts.
        alpha: `(coefficients -> alpha)`.
        project: A function applied to coefficients after each step, or `None`.
    """

    initial: Callable[[list[int]], tf.Tensor]
    alpha: Callable[[tf.Tensor], tf.Tensor]
    project: Callable[[tf.Tensor], tf.Tensor] | None


_PARAMETRIZATIONS = {
    "softmax": Parametrization(tf.zeros, tf.nn.softmax, None),
    "projection": Parametrization(
        lambda shape: tf.fill(shape, 1 / shape[-1]), tf.identity, project_to_simplex
    ),
}


@ALGORITHMS.register("pfedmb")
@extends(averaging, without=["aggregator"])
@takes(alpha_learning_rate=at_least(0), alpha_epochs=whole(0), **ranges_of(multi_branch))
def pfedmb(
    model: Model,
    local: LocalTraining,
    *,
    branches: int = 5,
    branched_layers: Iterable[str] | None = None,
    shared_alpha: bool = False,
    parametrization: str = "softmax",
    alpha_weighted: bool = True,
    alpha_learning_rate: float | None = None,
    alpha_epochs: int | None = None,
    normalize_step: bool = False,
    init_scale: float = 1.0,
    **options,
) -> Algorithm:
    """Builds the pFedMB algorithm.

    A client's snapshot is its `alpha`, a row for each branched layer.

    Args:
        model: The model of one branch.
        local: The local training of alpha, without weight decay, and of the branches.
        branches: The number of branches, `B`; the paper has 5 in its study and tunes it up to 10.
        branched_layers: The names of the layers with branches; default all linear layers.
        shared_alpha: Whether a client has one row of alpha for all layers, as in the paper's study.
        parametrization: The way to keep alpha on the simplex: "softmax" or "projection".
        alpha_weighted: Whether the server weighs by alpha.
        alpha_learning_rate: The learning rate of alpha (or of its logits); default the rate of
            `local`.
        alpha_epochs: The epochs of alpha; default as in `local`.
        normalize_step: Whether the gradients of a layer's branches are divided by `||alpha_l||^2`;
            not in the paper.
        init_scale: A factor of the initial branches; `sqrt(B)` keeps the scale of their mean.
        **options: Options of `averaging`, except the aggregator.
    """
    check_names("parametrization", [parametrization], _PARAMETRIZATIONS)
    initial, alpha_of, project = _PARAMETRIZATIONS[parametrization]
    branched = multi_branch(model, branches, layers=branched_layers, init_scale=init_scale)
    shape = [1 if shared_alpha else len(branched.layers), branches]
    # Weight decay of the logits would pull them towards equal parts.
    alpha_local = dataclasses.replace(local, weight_decay=0.0)

    def client_init(client_id, seed):
        coefficients = initial(shape)
        optimized = (coefficients, branched.init(seed))
        return OwnMixture(coefficients, tuple(map(local.optimizer_state, optimized)))

    def client_work(weights, state, examples, context):
        alpha_optimizer, weights_optimizer = state.optimizers
        mixture = alpha_local.train(
            branched.alpha_model(weights, alpha_of),
            state.coefficients,
            examples,
            context,
            epochs=alpha_epochs,
            learning_rate=alpha_learning_rate,
            project=project,
            optimizer_state=alpha_optimizer,
        )
        alpha = alpha_of(mixture.weights)
        branches_model = branched.weights_model(alpha)
        trained = local.train(
            branches_model,
            weights,
            examples,
            context,
            optimizer_state=weights_optimizer,
            gradient=normalized_gradient(branches_model, alpha) if normalize_step else None,
        )
        change = trees.subtract(trained.weights, weights)
        metrics = merged(trained.totals, prefixed("alpha", mixture.totals))
        return ClientOutput(
            state=OwnMixture(mixture.weights, (mixture.optimizer_state, trained.optimizer_state)),
            upload=Shares(change, shares(change, alpha)) if alpha_weighted else change,
            metrics=metrics,
        )

    def normalized_gradient(branches_model, alpha):
        lengths = {layer: tf.reduce_sum(row**2) for layer, row in branched.rows(alpha).items()}

        def gradient(weights, batch, carry):
            direction, totals = branches_model.gradient(weights, batch)
            direction = collections.OrderedDict(
                (layer, trees.scale(part, 1.0 / lengths.get(layer, 1.0)))
                for layer, part in direction.items()
            )
            return direction, totals, carry

        return gradient

    def shares(weights, alpha):
        rows = branched.rows(alpha)
        return collections.OrderedDict((layer, rows.get(layer, 1.0)) for layer in weights)

    def own_model(weights, state, examples, context):
        return branched.mix(weights, alpha_of(state.coefficients))

    def client_snapshot(state):
        alpha = alpha_of(state.coefficients)
        rows = {"all layers": alpha[0]} if shared_alpha else branched.rows(alpha)
        return collections.OrderedDict((f"alpha/{layer}", row) for layer, row in rows.items())

    return averaging(
        branched.init,
        client_work,
        own_model,
        client_init,
        global_weights=lambda weights: branched.mix(weights, branched.uniform()),
        client_snapshot=client_snapshot,
        aggregator=BranchMeanFactory() if alpha_weighted else None,
        **options,
    )
