"""APFL: each client trains an adaptive mixture of the global model and its own.

Deng et al., "Adaptive personalized federated learning", 2020.

FedAvg trains a global model `w`. In addition each client trains its own model `v_i`, within the
mixture of both models that it is evaluated with. A round, with `p_i = n_i / sum n_j` (or uniform):

    down    w
    client  w_i = w;  for each mini-batch b, in all epochs:
                w_i   <- w_i - eta grad loss(w_i; b)
                vbar   = alpha_i v_i + (1 - alpha_i) w_i
                v_i   <- v_i - eta alpha_i grad loss(vbar; b)
                alpha_i <- clip(alpha_i - eta_alpha <v_i - w_i, grad loss(vbar; b)>, 0, 1)
    up      w_i - w
    server  w <- w + sum_i p_i (w_i - w)

The client's last line applies only if `alpha_i` adapts; otherwise `alpha_i` is constant. If it
adapts on every batch it tends to 0, as on `configs/digits.py`, because `w_i` trains too and fits
the client's examples better than `v_i`. With alpha_update="round", as in the authors' code, it
adapts only on the first batch of a round, with `w_i` as received or, if `vbar_refresh` is "after",
after its first step.

Both gradients follow from the chain rule, at the `v_i` and `w_i` that `vbar` mixes. With
vbar_refresh="before", `vbar` mixes `w_i` before its step on the same batch, as in the paper's
Algorithm 1 and in the code of PGFed and Ditto; with "after", it mixes `w_i` after that step.

The personal model is `alpha_i v_i + (1 - alpha_i) w` with the current `w`. A client that never took
part has `w`. All `v_i` start from the common `w_0`.

Moving statistics of batch normalisation are those of the model whose batches assign them: `v_i` has
those of `vbar`, and the personal model has those of `v_i`.

alpha = 0: `v_i` is constant, except that weight decay shrinks it; the personal model is FedAvg's
`w`. alpha = 1: `v_i` is Local. The global model never depends on `v_i` and `alpha_i`.
"""

from typing import NamedTuple

import tensorflow as tf

from tff_pfl.algorithms.registry import ALGORITHMS, idle_where
from tff_pfl.arguments.extension import extends
from tff_pfl.arguments.names import check_names
from tff_pfl.arguments.ranges import at_least, between, takes
from tff_pfl.local import LocalTraining, trees
from tff_pfl.models import Mean, Model, Totals, Weights, merged, prefixed
from tff_pfl.models.statistics import only_statistics, with_statistics
from tff_pfl.templates import Algorithm, ClientOutput, averaging


class OwnMixture(NamedTuple):
    """Client state.

    Attributes:
        model: `W`, the client's `v_i`.
        alpha: float32 scalar, the client's `alpha_i`.
        participations: int32 scalar, the number of rounds the client took part in.
        optimizers: The optimizer states of `w_i` and `v_i`; each is `()` unless it persists.
    """

    model: Weights
    alpha: tf.Tensor
    participations: tf.Tensor
    optimizers: tuple


class Carry(NamedTuple):
    """The carry of the training of `v_i`.

    Attributes:
        shared: `W`, the client's `w_i`.
        optimizer: The optimizer state of `w_i`.
        alpha: float32 scalar, `alpha_i`.
        totals: The sums of losses and metrics of `vbar`.
        is_first: bool scalar, whether the next batch is the round's first.
        statistics: The moving statistics of `vbar` after the last step, if the model has any.
    """

    shared: Weights
    optimizer: tuple
    alpha: tf.Tensor
    totals: Totals
    is_first: tf.Tensor
    statistics: dict


@ALGORITHMS.register("apfl")
@extends(averaging)
@idle_where("alpha_learning_rate", "alpha_decay", "alpha_update", adaptive=False)
@takes(alpha=between(0, 1), alpha_learning_rate=at_least(0), alpha_decay=at_least(0))
def apfl(
    model: Model,
    local: LocalTraining,
    *,
    alpha: float = 0.5,
    adaptive: bool = False,
    alpha_learning_rate: float | None = None,
    alpha_decay: float = 0.0,
    alpha_update: str = "batch",
    vbar_refresh: str = "before",
    **options,
) -> Algorithm:
    """Builds the APFL algorithm.

    Clients report `alpha_i` at the end of the round as a metric; their snapshot is `alpha`.

    Args:
        model: The model, of weights `W`.
        local: The local training of both models.
        alpha: The share of the client's own model, `alpha_i`, or its initial value if it adapts;
            PGFed's comparison has 0.25, 0.5 and 0.75.
        adaptive: Whether clients learn `alpha_i`; otherwise it is constant.
        alpha_learning_rate: The learning rate of `alpha_i`, `eta_alpha`; default the rate of the
            round, as in the paper.
        alpha_decay: The factor of `alpha_i` in a term added to its gradient; 0.02 in the authors'
            code and in FedPG's comparison, absent from the paper.
        alpha_update: When `alpha_i` adapts: on every "batch", or on the first batch of a "round".
        vbar_refresh: Whether `vbar` mixes `w_i` "before" or "after" its step on the same batch.
        **options: Options of `averaging`.
    """
    check_names("alpha_update", [alpha_update], ("batch", "round"))
    check_names("vbar_refresh", [vbar_refresh], ("before", "after"))

    def mix(alpha, own, shared):
        mixture = trees.add(trees.scale(own, alpha), trees.scale(shared, 1.0 - alpha))
        return with_statistics(mixture, own)

    def client_init(client_id, seed):
        weights = model.init(seed)
        optimizers = (local.optimizer_state(weights),) * 2
        return OwnMixture(weights, tf.constant(alpha, tf.float32), tf.constant(0), optimizers)

    def client_work(weights, state, examples, context):
        shared_optimizer, own_optimizer = state.optimizers
        rate = alpha_learning_rate
        if rate is None:
            rate = local.learning_rate(context.round_num)

        def gradient(own, batch, carry):
            direction, totals, assigned = model.training_gradient(carry.shared, batch)
            shared, optimizer = local.step(carry.shared, direction, carry.optimizer)
            shared = with_statistics(shared, assigned)
            mixed_with = carry.shared if vbar_refresh == "before" else shared
            mixture = mix(carry.alpha, own, mixed_with)
            mixture_gradient, mixture_totals, assigned = model.training_gradient(mixture, batch)
            new_alpha = carry.alpha
            if adaptive:
                updates_alpha = carry.is_first if alpha_update == "round" else True
                slope = trees.dot(trees.subtract(own, mixed_with), mixture_gradient)
                slope += alpha_decay * carry.alpha
                stepped = tf.clip_by_value(carry.alpha - rate * slope, 0.0, 1.0)
                new_alpha = tf.where(updates_alpha, stepped, carry.alpha)
            measured = trees.add(carry.totals, mixture_totals)
            statistics = only_statistics(assigned)
            new = Carry(shared, optimizer, new_alpha, measured, tf.constant(False), statistics)
            return trees.scale(mixture_gradient, carry.alpha), totals, new

        start = Carry(
            shared=weights,
            optimizer=local.begin(weights, context, shared_optimizer),
            alpha=state.alpha,
            totals=model.zero_totals(),
            is_first=tf.constant(True),
            statistics=only_statistics(state.model),
        )
        own = local.train(
            model,
            state.model,
            examples,
            context,
            optimizer_state=own_optimizer,
            gradient=gradient,
            carry=start,
            assign=lambda own, batch, carry: carry.statistics,
        )
        carry = own.carry
        alpha_i = Mean(carry.alpha, tf.constant(1.0))
        metrics = merged(own.totals, {"alpha": alpha_i}, prefixed("personal", carry.totals))
        optimizers = (local.kept(carry.optimizer), own.optimizer_state)
        return ClientOutput(
            state=OwnMixture(own.weights, carry.alpha, state.participations + 1, optimizers),
            upload=trees.subtract(carry.shared, weights),
            metrics=metrics,
        )

    def personalize(weights, state, examples, context):
        mixture = mix(state.alpha, state.model, weights)
        return trees.select(state.participations > 0, mixture, weights)

    return averaging(
        model.init,
        client_work,
        personalize,
        client_init,
        global_weights=lambda weights: weights,
        client_snapshot=lambda state: {"alpha": state.alpha},
        **options,
    )
