"""Floco: clients train regions of a simplex of heads, which all share.

Grinwald, Wiesner and Nakajima, "Federated learning over connected modes", NeurIPS 2024.

The last layer of the model is a convex combination of `M` endpoints `W_m`. A client trains it at
random points `alpha` of the simplex, drawn anew for each batch: in the first `tau` rounds from the
whole simplex, and from then on from the client's own region, the points within a distance `rho` of
a centre `alpha_i`, in the 1-norm. Clients with similar updates have near centres (see `regions`). A
round, with `p_i = n_i / sum n_j` over the cohort (or uniform):

    down    w = (body, W_1 .. W_M), alpha_i
    client  w_i = w;  for each mini-batch b, in all epochs:
                alpha ~ the client's region
                w_i  <- a step along grad loss(body, sum_m alpha_m W_m; b)
    up      w_i - w
    server  w <- w + sum_i p_i (w_i - w)
            after round tau:  alpha_i of all clients so far, from the last changes of their W_m

The personal model is that of `alpha_i`, for every client; before it has a region, that of the
simplex' centre, as is the global model.

In the authors' code, all clients train in round `tau`, to send updates. Here the updates are those
of clients' last rounds, and a client that comes later gets its `alpha_i` after its first round, by
the same projection. That code has no endpoints for the bias, and draws points that may lie outside
of the simplex. Floco+, which adds the personal models of Ditto, is left out.

M = 1: FedAvg.
"""

import collections
from collections.abc import Iterable
from typing import NamedTuple

import tensorflow as tf

from tff_pfl.aggregators import Stack, StackFactory
from tff_pfl.aggregators.robust_rules import weighted_mean
from tff_pfl.algorithms.fedavg import OwnState
from tff_pfl.algorithms.floco.regions import Assignment, drawn
from tff_pfl.algorithms.registry import ALGORITHMS, idle_where
from tff_pfl.arguments.ranges import at_least, takes, whole
from tff_pfl.local import LocalTraining, trees
from tff_pfl.models import Model, Weights, multi_branch
from tff_pfl.templates import (
    Algorithm,
    ClientOutput,
    Exchange,
    Federation,
    Personalization,
    Weighting,
    weighing,
)

_POINT = -1  # Draws of points fold this number into a batch's seed.


class FlocoState(NamedTuple):
    """Server state.

    Attributes:
        weights: `w`; each tensor of a layer with endpoints has a leading axis of `M`.
        assignment: The regions of all clients.
    """

    weights: Weights
    assignment: Assignment


class Change(NamedTuple):
    """The upload of a client: its `client_id`, int32, and its `change`, `w_i - w`."""

    client_id: tf.Tensor
    change: Weights


@ALGORITHMS.register("floco")
@idle_where("tau", "rho", endpoints=1)
@takes(num_clients=whole(1), endpoints=whole(1), tau=whole(1), rho=at_least(0))
def floco(
    model: Model,
    local: LocalTraining,
    *,
    num_clients: int,
    endpoints: int = 10,
    tau: int = 10,
    rho: float = 0.1,
    simplex_layers: Iterable[str] | None = None,
    weighting: Weighting = "num_examples",
) -> Algorithm:
    """Makes Floco.

    The server's metric is the number of clients that have a region of their own. Its snapshot is
    `alpha`, the centres.

    Args:
        model: The model with one endpoint.
        local: The local training.
        num_clients: The number of clients of the federation; ids are below it. The server's state
            has `4 d num_clients` bytes for endpoints of `d` weights in all.
        endpoints: The number of endpoints, `M`.
        tau: The number of rounds before clients have regions; 10 in the authors' code, 250 of 500
            in their runs on CIFAR-10.
        rho: The radius of regions; 0.1 in the authors' code, up to 0.5 in their runs.
        simplex_layers: The names of the layers with endpoints; default the model's last layer.
        weighting: The weights of clients: their "num_examples", "uniform", or a function of their
            examples; see `weighing`.
    """
    weigh = weighing(weighting)
    layers = model.layers[-1:] if simplex_layers is None else simplex_layers
    simplex = multi_branch(model, endpoints, layers=layers)

    def endpoints_of(stack):
        """Returns the weights of the endpoints in each row of a stack, `[k, d]`."""
        leaves = tf.nest.flatten([stack[layer] for layer in simplex.layers])
        return tf.concat(
            [tf.reshape(leaf, [-1, leaf.shape[1:].num_elements()]) for leaf in leaves], axis=1
        )

    def server_init(seed):
        weights = simplex.init(seed)
        num_weights = endpoints_of(trees.copies(weights, 1)).shape[1]
        return FlocoState(weights, Assignment.initial(num_clients, endpoints, num_weights))

    def client_init(client_id, seed):
        return OwnState(local.optimizer_state(simplex.init(seed)))

    def own_region(server, client_id):
        return trees.row(server.assignment.regions, client_id)

    def client_work(message, state, examples, context):
        weights, region = message

        def at_random(batch):
            seed = tf.random.experimental.stateless_fold_in(batch.seed, _POINT)
            return simplex.weights_model(drawn(region, rho, seed)[tf.newaxis])

        def gradient(weights, batch, carry):
            return *at_random(batch).gradient(weights, batch), carry

        trained = local.train(
            model,
            weights,
            examples,
            context,
            gradient=gradient,
            assign=lambda weights, batch, carry: at_random(batch).assigned(weights, batch),
            optimizer_state=state.optimizer,
        )
        return ClientOutput(
            state=OwnState(trained.optimizer_state),
            upload=Change(context.client_id, trees.subtract(trained.weights, weights)),
            weight=weigh(examples),
            metrics=trained.totals,
        )

    def finalize(server, uploads, round_num):
        change = weighted_mean(Stack(uploads.value.change, uploads.weight))
        weights = trees.add(server.weights, change)
        ids, changes = uploads.accepted(uploads.value.client_id)
        assignment = server.assignment.after(ids, endpoints_of(changes), round_num + 1 >= tau)
        metrics = collections.OrderedDict(assigned=trees.count(assignment.regions.is_assigned))
        return FlocoState(weights, assignment), metrics

    def personalize(message, state, examples, context):
        return simplex.mix(message.shared, message.own.centre[tf.newaxis])

    return Algorithm(
        server_init=server_init,
        client_init=client_init,
        exchanges=[
            Exchange(
                distribute=lambda server: server.weights,
                select=own_region,
                client_work=client_work,
                aggregator=StackFactory(),
                finalize=finalize,
            )
        ],
        personalize=Personalization(
            distribute=lambda server: server.weights, select=own_region, client_work=personalize
        ),
        global_weights=lambda server: simplex.mix(server.weights, simplex.uniform()),
        snapshot=lambda server: {"alpha": server.assignment.regions.centre},
        made_for=Federation(num_clients),
    )
