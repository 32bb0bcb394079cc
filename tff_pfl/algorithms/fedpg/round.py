"""FedPG: a common descent direction, and personal directions that hurt no other client.

FedPG is an anonymous submission. A round, with gradients `g_i` of the clients' mean losses `L_i`
and the rate `eta`:

    down    w                                                                    (exchange "train")
    client  g_i = grad L_i(w), exact, over all examples; L_i
    up      g_i, L_i
    server  drop gradients that are 0, whose clients leave the memory; scale the others to their
            mean norm mu
            Q = [ g_i online,  g_j of clients absent for at most tau rounds,  fairness gradient ]
            d = -sigma Q lambda*,  the min-norm point of the hull of Q, as long as the mean of the
            online gradients;  tau = clients whose last gradient was not 0 / clients online
            d = 0 and sigma = 0 if that point is not longer than 1e-6 mu
            gamma_i: how far client i may turn from d to its own -g_i without hurting another
            w <- w + eta d
    down    d, eta, gamma_i                                                (exchange "personalize")
    client  theta_i = w + eta d_i,   d_i = d + gamma_i (-g_i - d)            (w before the round)

The personal model is `theta_i` of the client's last round; the current `w` for a client that never
took part. To compute all personal models at the current `w` ("rebuild"), run a round of all clients
and discard its server state: `process.next(state, everyone).clients` are the clients' states then.
S-FedPG searches for the step: `tff_pfl.algorithms.fedpg.search`.

The server sends `w` to all clients of a round. Clients of the round before could compute it
themselves, so that the paper's protocol sends it only to the others. `bytes_down_per_client` is
therefore up to twice as large as necessary.

The paper leaves `gradient`, `fair_from`, `rescale_with`, `gamma_mode` and `protect_absent` open;
their defaults follow the authors' code. Three things are not in the paper: the bound 1e-6, below
which descent cannot be told from rounding; `memory_size`, which bounds the server's memory; and
`outlier_ratio`, which keeps single huge gradients from determining `mu` and with it the length of
the step.
"""

from typing import NamedTuple

import tensorflow as tf

from tff_pfl.aggregators import StackFactory
from tff_pfl.algorithms.fedpg.server import (
    ZERO_GRADIENT,
    FedPGServer,
    Upload,
    moved,
    own_gamma,
)
from tff_pfl.algorithms.registry import ALGORITHMS, idle_where
from tff_pfl.arguments.extension import extends
from tff_pfl.arguments.names import check_names
from tff_pfl.local import ExactGradient, LocalTraining, evaluate, exact_gradient, trees
from tff_pfl.models import Model, Weights
from tff_pfl.templates import Algorithm, ClientOutput, Exchange, Personalization, last_own_model

GRADIENTS = ("full", "pseudo")


class OwnProgress(NamedTuple):
    """Client state.

    Attributes:
        model: `W`, the personal model of the client's last participation.
        participations: int32 scalar, the number of rounds in which the client took part.
        gradients: int32 scalar, the number of its gradients since the last one that was 0.
    """

    model: Weights
    participations: tf.Tensor
    gradients: tf.Tensor


class Carry(NamedTuple):
    """The values that a client keeps between the exchanges of a round.

    Attributes:
        weights: `W`, the weights it received.
        gradient: float32 `[n]`, its own gradient.
    """

    weights: Weights
    gradient: tf.Tensor


@ALGORITHMS.register("fedpg")
@idle_where("local", gradient="full")
@idle_where("memory_size", absent_memory=False)
@idle_where("gamma_mode", "gamma", "protect_absent", personalize=False)
@idle_where("gamma", gamma_mode="auto")
@extends(FedPGServer)
def fedpg(model: Model, local: LocalTraining, *, gradient: str = "full", **options) -> Algorithm:
    """Makes FedPG or one of its variants.

    The paper's ablations are M1: `direction="mean"`, M2: `fairness=False`, M3:
    `personalize=False`, M4: `absent_memory=False`.

    Args:
        model: The model, of weights `W`, `n` numbers.
        local: The local training. Its learning rate and decay are the server's step `eta`; the
            rest of it is used only if `gradient` is "pseudo".
        gradient: The gradient that clients send: "full", the exact one; or "pseudo",
            `(w - LocalTraining(w)) / eta`, which is 0 in rounds whose rate is 0.
        **options: Options of `FedPGServer`.
    """
    model.check_no_batch_normalization("fedpg")
    check_names("gradient", [gradient], GRADIENTS)
    server = FedPGServer(local, **options)

    def client_init(client_id, seed):
        return OwnProgress(model.init(seed), tf.constant(0), tf.constant(0))

    def gradient_and_totals(weights, examples, context):
        if gradient == "full":
            return exact_gradient(model, weights, examples)
        trained = local.train(model, weights, examples, context)
        change = trees.subtract(weights, trained.weights)
        rate = local.learning_rate(context.round_num)
        pseudo = trees.scale(change, tf.math.divide_no_nan(1.0, rate))
        return ExactGradient(pseudo, evaluate(model, weights, examples))

    def send_gradient(weights, state, examples, context):
        found = gradient_and_totals(weights, examples, context)
        vector = trees.to_vector(found.gradient)
        is_zero = tf.norm(vector) <= ZERO_GRADIENT
        upload = Upload(
            client_id=context.client_id,
            is_new=tf.equal(state.gradients, 0),
            gradient=vector,
            loss=found.loss,
        )
        return ClientOutput(
            state=state._replace(gradients=tf.where(is_zero, 0, state.gradients + 1)),
            upload=upload,
            metrics=found.totals,
            carry=Carry(weights, vector),
        )

    def make_personal(message, state, examples, context):
        del examples
        (round_num, step, direction), gamma = message
        weights, own = context.carry
        personal = direction + gamma * (-own - direction)
        after = state._replace(
            model=moved(weights, personal, step), participations=state.participations + 1
        )
        # If this round's plan was rejected, the message still holds an earlier plan.
        return ClientOutput(trees.select(tf.equal(round_num, context.round_num), after, state))

    return Algorithm(
        server_init=lambda seed: server.init(model.init(seed)),
        client_init=client_init,
        exchanges=[
            Exchange(
                distribute=lambda state: state.weights,
                client_work=send_gradient,
                aggregator=StackFactory(),
                finalize=server.take_direction,
            ),
            Exchange(
                distribute=lambda state: state.plan[:3],  # the round, eta and d
                select=own_gamma,
                client_work=make_personal,
                name="personalize",
            ),
        ],
        personalize=Personalization(
            distribute=lambda state: state.weights, client_work=last_own_model
        ),
        global_weights=lambda state: state.weights,
    )
