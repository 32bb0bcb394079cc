"""FML: a model of each client and a shared one learn from each other.

Shen et al., "Federated mutual learning", 2020. A client keeps a private model `v_i`, and trains it
beside its copy of the shared model `w`, which the paper calls the meme model. The networks of both
may differ. A round, with `p_i = n_i / sum n_j` (or uniform) and `p(y | x; v)` the softmax of the
outputs of `v`, is

    down    w
    client  w_i = w;  for each mini-batch b of (x, y), in all epochs:
                v_i <- a step along grad alpha CE(v_i) + (1 - alpha) KL(p(x; w_i) || p(x; v_i))
                w_i <- a step along grad beta CE(w_i) + (1 - beta) KL(p(x; v_i) || p(x; w_i))
    up      w_i - w
    server  w <- w + sum_i p_i (w_i - w)

Both gradients are taken before the steps, and each is clipped separately. The other model's outputs
are constants in them, as in the authors' code; in PFLlib's, both models follow the sum of both
losses, with a KL that is also divided by the number of classes. The authors' code takes the plain
mean of clients (`weighting="uniform"`).

The personal model is `v_i`, the global one is `w`. All `v_i` start from common weights. If `w` has
the same network, it starts from them, too, as in PFLlib; the authors draw others. A client that
never took part then has `w`; with another network, it has the initial `v_i`.

alpha = beta = 1: `v_i` is Local, `w` is FedAvg.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import tensorflow as tf

from tff_pfl.algorithms.registry import ALGORITHMS
from tff_pfl.arguments.extension import extends
from tff_pfl.arguments.ranges import between, takes
from tff_pfl.local import ClientContext, Examples, LocalTraining, TrainResult, trees
from tff_pfl.models import Model, beside, merged, prefixed
from tff_pfl.templates import Algorithm, ClientOutput, OwnModel, averaging, last_own_model


class Pair(NamedTuple):
    """A value for each of two models that a client trains together.

    Attributes:
        own: The value for the client's own model.
        shared: The value for its copy of the shared model.
    """

    own: Any
    shared: Any


@ALGORITHMS.register("fml")
@extends(averaging)
@takes(alpha=between(0, 1), beta=between(0, 1))
def fml(
    model: Model,
    local: LocalTraining,
    *,
    alpha: float = 0.5,
    beta: float = 0.5,
    network: str | Model = "",
    **options,
) -> Algorithm:
    """Makes FML.

    Args:
        model: The model of clients' own, whose outputs are class logits.
        local: The local training of both models.
        alpha: The share of the labels in the loss of the private model; the rest is that of the
            shared model's outputs.
        beta: The share of the labels in the loss of the shared model.
        network: The network of the shared model: "", that of clients' own; a key of `MODELS`; or a
            `Model` for the same inputs and task.
        **options: Options of `averaging`.

    Raises:
        ValueError: The task has no class labels, or `network` cannot be built; see `models.beside`.
    """
    model.check_class_logits("fml")
    shared_model = beside(model, network)
    terms = Pair(_instead_of_labels(model, 1 - alpha), _instead_of_labels(shared_model, 1 - beta))

    def client_init(client_id, seed):
        weights = model.init(seed)
        optimizer = local.optimizer_state(Pair(weights, shared_model.init(seed)))
        return OwnModel(weights, tf.constant(0), optimizer)

    def client_work(received, state, examples, context):
        trained = train_together(
            Pair(model, shared_model),
            local,
            Pair(state.model, received),
            examples,
            context,
            terms=terms,
            optimizer_state=state.optimizer,
        )
        own, shared = trained.weights
        return ClientOutput(
            state=OwnModel(own, state.participations + 1, trained.optimizer_state),
            upload=trees.subtract(shared, received),
            metrics=merged(trained.totals, prefixed("personal", trained.carry)),
        )

    return averaging(
        shared_model.init,
        client_work,
        (lambda received, state, *_: state.model) if network else last_own_model,
        client_init,
        global_weights=lambda weights: weights,
        global_model=shared_model if network else None,
        **options,
    )


def _instead_of_labels(model, share):
    """Returns `other -> term`, which replaces a share of the labels by the other's outputs."""

    def learned_from(other):
        def term(forward, batch):
            of_labels = model.task.example_loss(batch.labels, forward.outputs)
            return share * (divergence(other.outputs, forward.outputs) - of_labels)

        return term

    return learned_from


def train_together(
    models: Pair,
    local: LocalTraining,
    weights: Pair,
    examples: Examples,
    context: ClientContext,
    *,
    terms: Pair,
    optimizer_state: Any,
) -> TrainResult:
    """Trains two models on the same batches, in steps at the same time.

    Args:
        models: The models.
        local: The local training of each.
        weights: Their initial weights.
        examples: The client's examples.
        context: The context.
        terms: For each model, a function from the `Forward` of the other model, which is constant,
            to a `term` of `LocalTraining.train`.
        optimizer_state: See `LocalTraining.train`.

    Returns:
        The result, with the totals of the shared model, and those of the own model as the carry.
    """
    longest = math.inf if local.clip_norm is None else local.clip_norm
    unclipped = dataclasses.replace(local, clip_norm=None)

    def gradient(weights, batch, own_totals):
        own = models.own.training_forward(weights.own, batch)
        shared = models.shared.training_forward(weights.shared, batch)
        to_own, of_own, _ = models.own.training_gradient(weights.own, batch, term=terms.own(shared))
        to_shared, of_shared, _ = models.shared.training_gradient(
            weights.shared, batch, term=terms.shared(own)
        )
        directions = Pair(trees.clip(to_own, longest), trees.clip(to_shared, longest))
        return directions, of_shared, trees.add(own_totals, of_own)

    def assign(weights, batch, carry):
        return Pair(
            models.own.assigned(weights.own, batch), models.shared.assigned(weights.shared, batch)
        )

    return unclipped.train(
        models.shared,
        weights,
        examples,
        context,
        optimizer_state=optimizer_state,
        gradient=gradient,
        carry=models.own.zero_totals(),
        assign=assign,
    )


def divergence(target: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Computes `KL(softmax(target) || softmax(logits))` of each row, `[batch]`."""
    log_p, log_q = tf.nn.log_softmax(target), tf.nn.log_softmax(logits)
    return tf.reduce_sum(tf.exp(log_p) * (log_p - log_q), axis=-1)
