"""FedDyn: Acar et al., "Federated learning based on dynamic regularization", ICLR 2021.

FedAvg whose clients minimise a loss that a linear term corrects, so that what is best for all of
them is best for each. A round, with `S` the cohort and `N` the number of all clients:

    down    w
    client  theta_i = LocalTraining(w) with the gradient
                          grad loss(theta; b) - h_i + alpha (theta - w)
            h_i <- h_i - alpha (theta_i - w)
    up      theta_i - w
    server  h <- h - alpha / N sum_{i in S} (theta_i - w)
            w <- 1 / |S| sum_{i in S} theta_i - h / alpha

`h` is the mean of all `h_i` at all times, where the server keeps the plain mean of what clients
send: clients keep their `h_i` also in a round whose mean it does not take, and where an aggregator,
noise or compression changes the mean, `h` is off by that from then on. Under privacy the mean is
over the clients that are expected, so that `h / alpha` weighs more in a round of fewer, and moves
`w` by itself in one of nobody. What is kept is
`-h_i / alpha` and `-h / alpha`, the sum of the client's changes, and the mean of these sums. All
clients weigh the same, as in the paper: with other weights `h` were no mean. Where local problems
are solved exactly, `h_i` is the gradient of the client's loss at `theta_i`, and `w` nears the
minimiser of the mean loss over all clients, however these differ and whoever takes part.

What is evaluated as the personal model is FedAvg's choice: `personalized`.

alpha towards 0 is not FedAvg, as the correction of `w` stays; a small one is unstable, against
which weight decay and clipping in `local` help. The authors' code has alpha = 0.01, weight decay
0.001 and clipping at 10. It always scales alpha by the mean number of examples over the client's
own number; this is left out here.
"""

import collections
import dataclasses
from typing import Any, NamedTuple

from tff_pfl.aggregators import Counted, CountedFactory
from tff_pfl.algorithms.fedavg import fedavg
from tff_pfl.algorithms.registry import ALGORITHMS
from tff_pfl.local import LocalTraining, trees
from tff_pfl.models import Model, Weights
from tff_pfl.ranges import above, takes, whole
from tff_pfl.templates import Algorithm, ClientOutput, Federation


class Drifting(NamedTuple):
    """Server state: the model `weights`, `W`; and `drift`, `W`, the mean of all clients' drifts."""

    weights: Weights
    drift: Weights


class OwnDrift(NamedTuple):
    """Client state: `drift`, `W`, the sum of the client's changes; `own`, what FedAvg's keeps."""

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
    """FedDyn.

    Args:
        model: The model, of weights `W`.
        local: The local training; its learning rate times `alpha` should be below 1.
        num_clients: `N`; ids are below it.
        alpha: Strength of the regularization; PGFed's grid is 0.001, 0.01, 0.1.
        personalized: Which model is evaluated as the client's own; see `fedavg`.
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
        drift = trees.add(server.drift, trees.scale(mean["value"], share))
        weights = trees.add(trees.add(server.weights, mean["value"]), drift)
        return Drifting(weights, drift), collections.OrderedDict()

    def personalize(weights, state, examples, context):
        return base.personalize.client_work(weights, state.own, examples, context)

    drifting = dataclasses.replace(
        exchange, client_work=client_work, aggregator=CountedFactory(), finalize=finalize
    )
    return dataclasses.replace(
        base,
        server_init=server_init,
        client_init=client_init,
        exchanges=[drifting],
        personalize=dataclasses.replace(base.personalize, client_work=personalize),
        made_for=Federation(num_clients),
    )
