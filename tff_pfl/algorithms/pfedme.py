"""pFedMe: personal models that minimise each client's Moreau envelope.

Dinh et al., "Personalized federated learning with Moreau envelopes", NeurIPS 2020.

A client's part in the global problem is the Moreau envelope of its loss,

    F_i(w) = min_theta f_i(theta) + lambda/2 ||theta - w||^2,      grad F_i(w) = lambda (w - theta)

at the minimiser `theta`, which is its personal model. A round, with `p_i = n_i / sum n_j` over the
cohort (or uniform):

    down    w
    client  w_i = theta = w;  for each mini-batch b, in all epochs:
                theta <- theta - eta_p (grad loss(theta; b) + lambda (theta - w_i) + mu theta),
                    K times
                w_i <- a step of the local training along  lambda (w_i - theta)
    up      w_i - w
    server  w <- w + beta sum_i p_i (w_i - w)

`theta` is carried from batch to batch, as in the authors' code, which also has the weight decay
`mu`. The personal model is `theta` at the end of the last round the client took part in; a client
that never took part has the current `w`. The reported loss is measured at `theta`, before each
batch. Unlike in the authors' simulation, clients outside the cohort do not train.

beta = 0, or lambda = 0 without weight decay in `local`: the global model does not change.
"""

import dataclasses

import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.algorithms.registry import ALGORITHMS
from tff_pfl.arguments.extension import extends
from tff_pfl.arguments.ranges import at_least, takes, whole
from tff_pfl.local import LocalTraining, trees
from tff_pfl.models import Model
from tff_pfl.models.statistics import with_statistics
from tff_pfl.templates import Algorithm, ClientOutput, OwnModel, averaging, last_own_model

_SGD = type(tff.learning.optimizers.build_sgdm())


@ALGORITHMS.register("pfedme")
@extends(averaging)
@takes(
    lambda_=at_least(0),
    beta=at_least(0),
    personal_learning_rate=at_least(0),
    personal_steps=whole(1),
    personal_weight_decay=at_least(0),
)
def pfedme(
    model: Model,
    local: LocalTraining,
    *,
    lambda_: float = 15.0,
    beta: float = 1.0,
    personal_learning_rate: float = 0.01,
    personal_steps: int = 5,
    personal_weight_decay: float = 0.001,
    server_optimizer: tff.learning.optimizers.Optimizer | None = None,
    **options,
) -> Algorithm:
    """Builds the pFedMe algorithm.

    Args:
        model: The model, of weights `W`.
        local: The local training of `w_i`. With SGD, its learning rate times `lambda_` should be
            below 1.
        lambda_: The pull between `theta` and `w_i`; the paper has 15.
        beta: The length of the server's step, if the server has no optimizer; 1 is averaging.
        personal_learning_rate: The learning rate of `theta`, `eta_p`, in all rounds; times
            `lambda_` it should be below 1.
        personal_steps: The number of steps of `theta` on each batch, `K`.
        personal_weight_decay: The weight decay of `theta`, `mu`; 0.001 in the authors' code, not in
            the paper.
        server_optimizer: The optimizer of the server's step; requires `beta` = 1.
        **options: Options of `averaging`.

    Raises:
        ValueError: `personal_learning_rate` or a learning rate of SGD, times `lambda_`, is 2 or
            more, so that the steps diverge; or both `beta` and a server optimizer are set.
    """
    rates = {}
    if isinstance(local.optimizer, _SGD):  # others do not step by rate times gradient
        first = dataclasses.replace(local, warm_up_rounds=0).learning_rate(0)
        rates["The learning rate"] = float(first)
    rates["personal_learning_rate"] = personal_learning_rate
    for name, rate in rates.items():
        if not rate * lambda_ < 2:
            raise ValueError(
                f"{name} {rate:g} times lambda_={lambda_:g} is 2 or more: pFedMe would diverge. "
                "Keep the product below 1."
            )

    if beta != 1:
        if server_optimizer is not None:
            raise ValueError(f"beta must be 1 with a server optimizer, got {beta}.")
        server_optimizer = tff.learning.optimizers.build_sgdm(beta)

    def client_init(client_id, seed):
        weights = model.init(seed)
        return OwnModel(weights, tf.constant(0), local.optimizer_state(weights))

    def envelope_gradient(shared, batch, theta):
        """Moves `theta` on one batch, and computes the envelope's gradient at `shared`."""
        totals = None
        for _ in range(personal_steps):
            gradient, before, assigned = model.training_gradient(theta, batch)
            totals = totals or before
            pull = trees.scale(trees.subtract(theta, shared), lambda_)
            decay = trees.scale(theta, personal_weight_decay)
            step = trees.add(gradient, trees.add(pull, decay))
            theta = trees.subtract(theta, trees.scale(step, personal_learning_rate))
            theta = with_statistics(theta, assigned)
        return trees.scale(trees.subtract(shared, theta), lambda_), totals, theta

    def client_work(weights, state, examples, context):
        trained = local.train(
            model,
            weights,
            examples,
            context,
            optimizer_state=state.optimizer,
            gradient=envelope_gradient,
            carry=weights,
        )
        return ClientOutput(
            state=OwnModel(trained.carry, state.participations + 1, trained.optimizer_state),
            upload=trees.subtract(trained.weights, weights),
            metrics=trained.totals,
        )

    return averaging(
        model.init,
        client_work,
        last_own_model,
        client_init,
        global_weights=lambda weights: weights,
        server_optimizer=server_optimizer,
        **options,
    )
