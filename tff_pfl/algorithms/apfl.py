"""APFL: Deng et al., "Adaptive personalized federated learning", 2020.

FedAvg trains a global model `w`; beside it, each client trains a model `v_i` of its own in the
mixture of both that it is evaluated with. A round, with `p_i = n_i / sum n_j` (or uniform):

    down    w
    client  w_i = w;  for each mini-batch b, in all epochs:
                w_i   <- w_i - eta grad loss(w_i; b)
                vbar   = alpha_i v_i + (1 - alpha_i) w_i
                v_i   <- v_i - eta alpha_i grad loss(vbar; b)
                alpha_i <- clip(alpha_i - eta_alpha <v_i - w_i, grad loss(vbar; b)>, 0, 1)
    up      w_i - w
    server  w <- w + sum_i p_i (w_i - w)

The last of the client's lines is for an `alpha_i` that adapts, which else stays as it is. Where it
does so on every batch, it tends to 0, as on `configs/digits.py`: `w_i`, which trains too, fits the
client's examples better than `v_i` does. With alpha_update="round", as in the authors' code, it
adapts on the first batch of a round alone, with `w_i` as it was received or, where `vbar_refresh`
is "after", after its first step.

Both gradients are the chain rule's, at the `v_i` and `w_i` that `vbar` mixes. With
vbar_refresh="before", it mixes the `w_i` before its step on the same batch, as in the paper's
Algorithm 1 and in the code of PGFed and Ditto; with "after", the `w_i` after that step.

The personal model is `alpha_i v_i + (1 - alpha_i) w` with the current `w`; `w` itself for a client
that never took part. All `v_i` start from the common `w_0`.

alpha = 0: `v_i` stays, but for weight decay, which shortens it as any other; the personal model is
FedAvg's `w`. alpha = 1: `v_i` is Local. The global model never depends on `v_i` and `alpha_i`.
"""

from typing import NamedTuple

import tensorflow as tf

from tff_pfl.algorithms.registry import ALGORITHMS, idle_where
from tff_pfl.local import LocalTraining, trees
from tff_pfl.models import Mean, Model, Totals, Weights, merged, prefixed
from tff_pfl.names import check_names
from tff_pfl.ranges import at_least, between, takes
from tff_pfl.templates import Algorithm, ClientOutput, averaging, extends


class OwnMixture(NamedTuple):
    """Client state.

    Attributes:
        model: `W`, the client's `v_i`.
        alpha: float32 scalar, its `alpha_i`.
        participations: int32 scalar, rounds the client took part in.
        optimizers: What persists of the optimizers of `w_i` and of `v_i`.
    """

    model: Weights
    alpha: tf.Tensor
    participations: tf.Tensor
    optimizers: tuple


class Beside(NamedTuple):
    """What moves along with `v_i`: `w_i` and its optimizer, `alpha_i`, the sums of `vbar`.

    And `is_first`, whether the next batch is the first one.
    """

    shared: Weights
    optimizer: tuple
    alpha: tf.Tensor
    totals: Totals
    is_first: tf.Tensor


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
    """APFL.

    Clients measure their `alpha_i` at the end of the round; their snapshot is `alpha`.

    Args:
        model: The model, of weights `W`.
        local: The local training of both models.
        alpha: `alpha_i`, or where it starts; PGFed's comparison has 0.25, 0.5 and 0.75.
        adaptive: Whether `alpha_i` adapts.
        alpha_learning_rate: `eta_alpha`; default the learning rate of the round, as in the paper.
        alpha_decay: Adds this times `alpha_i` to its gradient; 0.02 in the authors' code and in
            FedPG's comparison, not in the paper.
        alpha_update: When it adapts: on every "batch", or on the first one of a "round".
        vbar_refresh: "before" or "after" the step of `w_i`, see above.
        **options: Those of `averaging`.
    """
    check_names("alpha_update", [alpha_update], ("batch", "round"))
    check_names("vbar_refresh", [vbar_refresh], ("before", "after"))

    def mix(alpha, own, shared):
        return trees.add(trees.scale(own, alpha), trees.scale(shared, 1.0 - alpha))

    def client_init(client_id, seed):
        weights = model.init(seed)
        optimizers = (local.optimizer_state(weights),) * 2
        return OwnMixture(weights, tf.constant(alpha, tf.float32), tf.constant(0), optimizers)

    def client_work(weights, state, examples, context):
        shared_optimizer, own_optimizer = state.optimizers
        rate = alpha_learning_rate
        if rate is None:
            rate = local.learning_rate(context.round_num)

        def gradient(own, batch, beside):
            direction, totals = model.gradient(beside.shared, batch)
            shared, optimizer = local.step(beside.shared, direction, beside.optimizer)
            mixed_with = beside.shared if vbar_refresh == "before" else shared
            mixture = mix(beside.alpha, own, mixed_with)
            of_mixture, mixture_totals = model.gradient(mixture, batch)
            new_alpha = beside.alpha
            if adaptive:
                moves = beside.is_first if alpha_update == "round" else True
                slope = trees.dot(trees.subtract(own, mixed_with), of_mixture)
                slope += alpha_decay * beside.alpha
                stepped = tf.clip_by_value(beside.alpha - rate * slope, 0.0, 1.0)
                new_alpha = tf.where(moves, stepped, beside.alpha)
            measured = trees.add(beside.totals, mixture_totals)
            new = Beside(shared, optimizer, new_alpha, measured, tf.constant(False))
            return trees.scale(of_mixture, beside.alpha), totals, new

        start = local.begin(weights, context, shared_optimizer)
        own = local.train(
            model,
            state.model,
            examples,
            context,
            optimizer_state=own_optimizer,
            gradient=gradient,
            carry=Beside(weights, start, state.alpha, model.zero_totals(), tf.constant(True)),
        )
        beside = own.carry
        alpha_i = Mean(beside.alpha, tf.constant(1.0))
        metrics = merged(own.totals, {"alpha": alpha_i}, prefixed("personal", beside.totals))
        optimizers = (local.kept(beside.optimizer), own.optimizer_state)
        return ClientOutput(
            state=OwnMixture(own.weights, beside.alpha, state.participations + 1, optimizers),
            upload=trees.subtract(beside.shared, weights),
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
