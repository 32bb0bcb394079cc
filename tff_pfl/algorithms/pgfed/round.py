"""PGFed, PGFedMo and PGFed-CE: Luo et al., ICCV 2023.

The paper is "PGFed: Personalize each client's global objective for federated learning".

Every client minimises its own risk `f_i` plus the risks of the last cohort `J`, which are
approximated by linear functions (see `tff_pfl.algorithms.pgfed.server`) and weighted by
coefficients that the client learns:

    F_i = f_i(theta_i) + mu sum_j alpha_ij (l_j + g_j . theta_i)

A round, with `gbar` the mean of the `g_j` and `p_i = n_i / sum n_j` over the cohort (or uniform):

    down    w,  a_i = mu sum_j alpha_ij g_j,  mu gbar,  mu l_j,  alpha_ij       (0 while J is empty)
    client  theta_i = w;  in each step of LocalTraining, with alpha_ij before theta_i:
                alpha_ij <- max(0, alpha_ij - eta_alpha (mu l_j + mu gbar . theta_i))
                theta_i  <- a step along  grad loss(theta_i; b) + a_i
            g_i = grad f_i(theta_i), exact, over all examples;  l_i = f_i(theta_i) - g_i . theta_i
    up      theta_i - w,  g_i,  l_i,  alpha_ij
    server  w <- w + sum_i p_i (theta_i - w);  keeps g_i, l_i for the next round's J

The personal model is `theta_i` of the client's last round; the current `w` for a client that never
took part. `J` includes the client itself if it took part in the previous round, as in the authors'
code. Unlike there, `g_i` is computed from all examples even if `local` drops partial batches.

PGFedMo: the client averages the `a_i` that it receives, `a_i <- (1 - beta) a_new + beta a_i`,
starting with the first `a_new` of a round whose `J` is not empty. PGFed-CE: the slope of `alpha_ij`
uses `w` instead of `theta_i` and is therefore constant during the round. The server makes all
steps of `alpha_ij` at once, and neither `gbar` nor `alpha_ij` is sent.

mu = 0: FedAvg. beta = 0: PGFedMo is PGFed.
"""

from typing import NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.aggregators import FieldsFactory, StackFactory
from tff_pfl.algorithms.pgfed.server import PGFedCEServer, PGFedServer, Risk
from tff_pfl.algorithms.pgfed.sparse_matrix import dense
from tff_pfl.algorithms.registry import ALGORITHMS
from tff_pfl.arguments.ranges import at_least, between, takes, whole
from tff_pfl.local import LocalTraining, exact_gradient, trees
from tff_pfl.models import Model, Weights
from tff_pfl.templates import (
    Algorithm,
    ClientOutput,
    Exchange,
    Federation,
    Personalization,
    Weighting,
    last_own_model,
    weighing,
)

_MOST_CLIENTS_SHOWN = 4096  # a snapshot takes 64 MiB then


class OwnAverage(NamedTuple):
    """Client state.

    Attributes:
        model: `W`, the client's model at the end of its last participation.
        participations: int32 scalar, the number of rounds in which the client took part.
        average: An `Average`; `()` without momentum.
        optimizer: The state of the client's optimizer that persists between rounds.
    """

    model: Weights
    participations: tf.Tensor
    average: "Average | tuple"
    optimizer: tuple


class Average(NamedTuple):
    """PGFedMo's running average.

    Attributes:
        gradient: `W`, `a_i`.
        count: int32 scalar, the number of auxiliary gradients in it.
    """

    gradient: Weights
    count: tf.Tensor


class Upload(NamedTuple):
    """A client's upload: `change`, `theta_i - w`, which is averaged, and its `Risk`."""

    change: Weights
    risk: Risk


@ALGORITHMS.register("pgfed")
@takes(
    num_clients=whole(1),
    clients_per_round=whole(1),
    largest_cohort=whole(1),
    mu=at_least(0),
    alpha_learning_rate=at_least(0),
    beta=between(0, 1),
)
def pgfed(
    model: Model,
    local: LocalTraining,
    *,
    num_clients: int,
    clients_per_round: int,
    largest_cohort: int | None = None,
    mu: float = 0.1,
    alpha_learning_rate: float = 0.01,
    beta: float = 0.0,
    communication_efficient: bool = False,
    weighting: Weighting = "num_examples",
) -> Algorithm:
    """Makes PGFed or one of its variants.

    The server's metrics are the mean and the largest entry of `alpha`, and the share of entries
    that are 0. The server stores `alpha_ij`, in 12 bytes, once `j` took part in the round before
    one of `i`'s rounds; all other entries keep their initial value. The snapshot is `alpha` as a
    matrix, for up to 4,096 clients.

    Args:
        model: The model, of weights `W`.
        local: The local training.
        num_clients: The number of clients of the federation; ids are below it.
        clients_per_round: The expected size of a cohort; `alpha_ij` starts as one over it.
        largest_cohort: The largest number of clients in a round; `None`: `clients_per_round`.
            The cohort's gradients take `4 n largest_cohort` bytes, for `n` weights.
        mu: Weight of the other clients' risks; the paper's grid is 0.001 to 0.1.
        alpha_learning_rate: The learning rate of `alpha_ij`, `eta_alpha`.
        beta: PGFedMo's momentum, in [0, 1]; the paper's grid is 0.2, 0.5, 0.8. 0: no momentum.
        communication_efficient: Whether the method is PGFed-CE.
        weighting: The weights of clients: "num_examples", "uniform", or a function of their
            examples; see `weighing`.
    """
    weigh = weighing(weighting)
    server = (PGFedCEServer if communication_efficient else PGFedServer)(
        num_clients=num_clients,
        clients_per_round=clients_per_round,
        largest_cohort=clients_per_round if largest_cohort is None else largest_cohort,
        mu=mu,
        alpha_learning_rate=alpha_learning_rate,
    )

    def client_init(client_id, seed):
        weights = model.init(seed)
        return OwnAverage(
            model=weights,
            participations=tf.constant(0),
            average=Average(trees.zeros_like(weights), tf.constant(0)) if beta else (),
            optimizer=local.optimizer_state(weights),
        )

    def averaged(average, new, num_last):
        old = tf.cast(average.count > 0, tf.float32) * beta
        moved = trees.add(trees.scale(new, 1.0 - old), trees.scale(average.gradient, old))
        return trees.select(num_last > 0, Average(moved, average.count + 1), average)

    def client_work(message, state, examples, context):
        shared, own = message
        auxiliary_gradient = own.auxiliary_gradient
        average = state.average
        if beta:
            average = averaged(average, auxiliary_gradient, shared.num_last)
            auxiliary_gradient = average.gradient

        def gradient(theta, batch, alpha):
            stepped = server.stepped_alpha(alpha, shared, theta)
            return *model.gradient(theta, batch), stepped

        trained = local.train(
            model,
            shared.weights,
            examples,
            context,
            reg=lambda theta: auxiliary_gradient,
            optimizer_state=state.optimizer,
            gradient=gradient,
            carry=server.received_alpha(own),
        )
        found = exact_gradient(model, trained.weights, examples)
        risk = Risk(
            client_id=context.client_id,
            gradient=found.gradient,
            intercept=found.loss - trees.dot(found.gradient, trained.weights),
            alpha=trained.carry,
        )
        return ClientOutput(
            state=OwnAverage(
                model=trained.weights,
                participations=state.participations + 1,
                average=average,
                optimizer=trained.optimizer_state,
            ),
            upload=Upload(trees.subtract(trained.weights, shared.weights), risk),
            weight=weigh(examples),
            metrics=trained.totals,
        )

    def snapshot(state):
        return {"alpha": dense(state.alpha, num_clients)}

    return Algorithm(
        server_init=lambda seed: server.init(model.init(seed)),
        client_init=client_init,
        exchanges=[
            Exchange(
                distribute=server.shared,
                select=server.own,
                client_work=client_work,
                aggregator=FieldsFactory(change=tff.aggregators.MeanFactory(), risk=StackFactory()),
                finalize=server.finalize,
                averaged=lambda state: state.weights,
            )
        ],
        personalize=Personalization(
            distribute=lambda state: state.weights, client_work=last_own_model
        ),
        global_weights=lambda state: state.weights,
        snapshot=snapshot if num_clients <= _MOST_CLIENTS_SHOWN else None,
        made_for=Federation(num_clients, clients_per_round, largest_cohort),
    )


pgfedmo = ALGORITHMS.variant("pgfedmo", pgfed, beta=0.5)
pgfed_ce = ALGORITHMS.variant("pgfed_ce", pgfed, communication_efficient=True)
pgfedmo_ce = ALGORITHMS.variant("pgfedmo_ce", pgfedmo, communication_efficient=True)
