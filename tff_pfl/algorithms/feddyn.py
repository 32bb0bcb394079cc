"""FedDyn: clients minimise their loss with a linear correction that makes the optima agree.

Acar et al., "Federated learning based on dynamic regularization", ICLR 2021.

FedAvg whose clients minimise a corrected loss, so that the optimum of all clients is also optimal
for each of them. A round, with `S` the cohort and `N` the number of all clients:

    down    w
    client  theta_i = LocalTraining(w) with the gradient
                          grad loss(theta; b) - h_i + alpha (theta - w)
            h_i <- h_i - alpha (theta_i - w)
    up      theta_i - w
    server  h <- h - alpha / N sum_{i in S} (theta_i - w)
            w <- 1 / |S| sum_{i in S} theta_i - h / alpha

`h` is always the mean of all `h_i`, provided that the server applies the plain mean of the uploads.
Clients update `h_i` even in a round whose mean the server rejects. If an aggregator, noise or
compression changes the mean, `h` is off by that difference from then on. Under privacy the mean is
over the expected number of clients: `h / alpha` then weighs more in a round with fewer clients, and
moves `w` by itself in a round without any.

The states hold `-h_i / alpha`, the sum of the client's changes, and `-h / alpha`, the mean of these
sums. All clients weigh the same, as in the paper; with other weights `h` would not be a mean. If
clients solve their local problems exactly, `h_i` is the gradient of the client's loss at `theta_i`,
and `w` approaches the minimiser of the mean loss over all clients, however much they differ and
whichever take part.

The option `personalized` chooses the personal model, as in FedAvg.

alpha towards 0 is not FedAvg, because the correction of `w` stays. A small alpha is unstable;
weight decay and clipping in `local` help. The authors' code has alpha = 0.01, weight decay 0.001
and clipping at 10. It always scales alpha by the mean number of examples over the client's own
number; this module does not.
"""

import collections
import dataclasses
from typing import Any, NamedTuple

from tff_pfl.aggregators import Counted, CountedFactory
from tff_pfl.algorithms.fedavg import fedavg
from tff_pfl.algorithms.registry import ALGORITHMS
from tff_pfl.arguments.ranges import above, takes, whole
from tff_pfl.local import LocalTraining, trees
from tff_pfl.models import Model, Weights
from tff_pfl.models.statistics import without_statistics
from tff_pfl.templates import Algorithm, ClientOutput, Federation


class Drifting(NamedTuple):
    """Server state.

    Attributes:
        weights: `W`, the model.
        drift: `W`, `-h / alpha`, the mean of all clients' drifts.
    """

    weights: Weights
    drift: Weights


class OwnDrift(NamedTuple):
    """Client state.

    Attributes:
        drift: `W`, `-h_i / alpha`, the sum of the client's changes.
        own: The client state of FedAvg.
    """

    drift: Weights
    own: Any


@ALGORITHMS.register("feddyn")
@takes(num_clients=whole(1), alpha=above(0))
def feddyn(
    model: Model,
    local: LocalTraining,
    *,
    num_clients: int,
    alpha: float = 0.01,
    personalized: str = "global",
) -> Algorithm:
    """Builds the FedDyn algorithm.

    Args:
        model: The model, of weights `W`.
        local: The local training; its learning rate times `alpha` should be below 1.
        num_clients: `N`, the number of clients of the federation; ids are below it.
        alpha: The strength of the regularization; PGFed's grid is 0.001, 0.01, 0.1.
        personalized: The model that is evaluated as the client's own: "global", or "local", the
            client's model at the end of its last training.
    """
    base = fedavg(model, local, personalized=personalized)
    (exchange,) = base.exchanges

    def server_init(seed):
        weights = model.init(seed)
        return Drifting(weights, trees.zeros_like(weights))

    def client_init(client_id, seed):
        return OwnDrift(trees.zeros_like(model.init(seed)), base.client_init(client_id, seed))

    def client_work(weights, state, examples, context):
        def objective(received):
            centre = trees.subtract(received, state.drift)  # h_i is -alpha times the drift
            return {"reg": lambda theta: trees.scale(trees.subtract(theta, centre), alpha)}

        corrected = fedavg(model, local, objective, personalized=personalized)
        output = corrected.exchanges[0].client_work(weights, state.own, examples, context)
        change = output.upload
        return ClientOutput(
            state=OwnDrift(trees.add(state.drift, change), output.state),
            upload=Counted(change),
            metrics=output.metrics,
        )

    def finalize(server, mean, round_num):
        share = mean["number"] / num_clients
        change = without_statistics(mean["value"])
        drift = trees.add(server.drift, trees.scale(change, share))
        weights = trees.add(trees.add(server.weights, mean["value"]), drift)
        return Drifting(weights, drift), collections.OrderedDict()

    def personalize(weights, state, examples, context):
        return base.personalize.client_work(weights, state.own, examples, context)

    corrected_exchange = dataclasses.replace(
        exchange, client_work=client_work, aggregator=CountedFactory(), finalize=finalize
    )
    return dataclasses.replace(
        base,
        server_init=server_init,
        client_init=client_init,
        exchanges=[corrected_exchange],
        personalize=dataclasses.replace(base.personalize, client_work=personalize),
        made_for=Federation(num_clients),
    )
