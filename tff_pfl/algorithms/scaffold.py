"""SCAFFOLD: FedAvg whose clients correct each step by control variates.

Karimireddy et al., "SCAFFOLD: Stochastic controlled averaging for federated learning", ICML 2020.

The control variates estimate the client's own gradient, `c_i`, and the gradient of all clients,
`c`. A round, with `S` the cohort, `N` the number of all clients, `K` the client's steps and `eta`
their rate:

    down    w, c
    client  w_i = LocalTraining(w) with the gradient  grad loss(w_i; b) - c_i + c
            c_i' = grad f_i(w), exact, over all examples                         (option I)
                or c_i - c + (w - w_i) / (K eta)                                 (option II)
    up      w_i - w,  c_i' - c_i;      c_i <- c_i'
    server  w <- w + eta_g / |S| sum_{i in S} (w_i - w)
            c <- c + 1 / N sum_{i in S} (c_i' - c_i)

All `c_i` start at 0. `c` is always the mean of all `c_i`, provided that the server applies the
plain mean of the uploads. Clients update `c_i` even in a round whose mean the server rejects. If an
aggregator, noise or compression changes the mean, `c` is off by that difference from then on.

With plain SGD, option II is the mean of the gradients along the client's path, at no extra cost; at
the rate 0 it keeps `c_i`. With momentum or another optimizer, use option I. Option I diverges if
`K eta` is large: on `configs/digits.py` it does with 150 steps of 0.1, but not with 30 of 0.05,
where both options are equally good. `eta_g` is the rate of the server's optimizer, SGD; 1 without
one. All clients weigh the same, as in the paper.

The option `personalized` chooses the personal model, as in FedAvg.

All control variates 0, as in the first round: FedAvg with uniform weights. If all clients take part
in each round, `w` approaches the minimiser of the mean loss, whereas FedAvg's `w` does not.
"""

import dataclasses
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.aggregators import Counted, CountedFactory
from tff_pfl.algorithms.fedavg import fedavg
from tff_pfl.algorithms.registry import ALGORITHMS
from tff_pfl.arguments.names import check_names
from tff_pfl.arguments.ranges import takes, whole
from tff_pfl.local import LocalTraining, exact_gradient, trees
from tff_pfl.models import Model, Weights
from tff_pfl.models.statistics import without_statistics
from tff_pfl.templates import Algorithm, ClientOutput, Federation


class Controlled(NamedTuple):
    """Server state: the `SharedPart` of `averaging` and `c`.

    Attributes:
        weights: `W`, the model.
        optimizer: The state of the server's optimizer; `()` without one.
        control: `W`, `c`.
    """

    weights: Weights
    optimizer: Any
    control: Weights


class OwnControl(NamedTuple):
    """Client state.

    Attributes:
        control: `W`, the client's `c_i`.
        own: The client state of FedAvg.
    """

    control: Weights
    own: Any


class Pair(NamedTuple):
    """The message to a client, or its upload.

    Attributes:
        weights: `W`, the model or its change.
        control: `W`, `c` or the change of `c_i`.
    """

    weights: Weights
    control: Weights


@ALGORITHMS.register("scaffold")
@takes(num_clients=whole(1))
def scaffold(
    model: Model,
    local: LocalTraining,
    *,
    num_clients: int,
    control: str = "path",
    personalized: str = "global",
    server_optimizer: tff.learning.optimizers.Optimizer | None = None,
) -> Algorithm:
    """Builds the SCAFFOLD algorithm.

    Args:
        model: The model, of weights `W`.
        local: The local training.
        num_clients: `N`, the number of clients of the federation; ids are below it.
        control: The new `c_i`: "gradient" (option I) or "path" (option II).
        personalized: The model that is evaluated as the client's own: "global", or "local", the
            client's model at the end of its last training.
        server_optimizer: The server's optimizer of the model; by default the mean change is the
            step.
    """
    check_names("control", [control], ("gradient", "path"))
    base = fedavg(model, local, personalized=personalized, server_optimizer=server_optimizer)
    (exchange,) = base.exchanges

    def server_init(seed):
        shared = base.server_init(seed)
        return Controlled(*shared, control=trees.zeros_like(shared.weights))

    def client_init(client_id, seed):
        return OwnControl(trees.zeros_like(model.init(seed)), base.client_init(client_id, seed))

    def client_work(message, state, examples, context):
        correction = trees.subtract(message.control, state.control)
        corrected = fedavg(
            model, local, lambda received: {"reg": lambda w: correction}, personalized=personalized
        )
        output = corrected.exchanges[0].client_work(message.weights, state.own, examples, context)
        if control == "gradient":
            new = exact_gradient(model, message.weights, examples).gradient
        else:
            steps = tf.cast(local.num_steps(examples), tf.float32)
            length = steps * local.learning_rate(context.round_num)
            path_mean = trees.subtract(trees.scale(output.upload, -1.0 / length), correction)
            new = trees.select(length > 0.0, without_statistics(path_mean), state.control)
        return ClientOutput(
            state=OwnControl(new, output.state),
            upload=Counted(Pair(output.upload, trees.subtract(new, state.control))),
            metrics=output.metrics,
        )

    def finalize(server, mean, round_num):
        change = mean["value"]
        server, metrics = exchange.finalize(server, change.weights, round_num)
        control_change = trees.scale(change.control, mean["number"] / num_clients)
        return server._replace(control=trees.add(server.control, control_change)), metrics

    def personalize(weights, state, examples, context):
        return base.personalize.client_work(weights, state.own, examples, context)

    def model_and_control(server):
        return Pair(server.weights, server.control)

    controlled = dataclasses.replace(
        exchange,
        distribute=model_and_control,
        client_work=client_work,
        aggregator=CountedFactory(),
        finalize=finalize,
        averaged=model_and_control,
    )
    return dataclasses.replace(
        base,
        server_init=server_init,
        client_init=client_init,
        exchanges=[controlled],
        personalize=dataclasses.replace(base.personalize, client_work=personalize),
        made_for=Federation(num_clients),
    )
