"""SplitGP: a model with a client exit for personalization and a server exit for generalization.

Han et al., "SplitGP: achieving both generalization and personalization in federated learning",
INFOCOM 2023.

Two exits share a body `phi`: the client exit `kappa`, which together with the body is the client's
own part `v_i = [phi_i, kappa_i]`, and the server exit `theta`. A round, of two exchanges, with
`p_i = n_i / sum n_j` over the cohort (or uniform):

    down    vbar, theta
    client  (v_i, theta_i) <- LocalTraining(v_i, theta) with the loss
                gamma CE(kappa(phi(x)), y) + (1 - gamma) CE(theta(phi(x)), y)
    up      v_i - vbar,  theta_i - theta
    server  vbar <- sum_i p_i v_i,   theta <- sum_i p_i theta_i
    down    vbar                                                          (exchange "personalize")
    client  v_i <- lambda v_i + (1 - lambda) vbar

In the next round, a client starts from its `v_i`, not from `vbar`. All `v_i` start from a common
initial value. The personal model has both exits, `v_i` and the current `theta`. The client exit
answers an example if the entropy of its softmax is at most a threshold; otherwise the server exit
answers. The global model is `vbar` and `theta`, and only its server exit answers. A client that
never took part has the global model.

Both exits have the structure of the model's last layer, as in FedPG's comparison. In the paper the
client exit is a small network on the first layers of a deep one, and `theta` is the rest. The paper
splits the model between device and server; the result is the same.

gamma = lambda = 0: FedAvg, if all clients take part in each round. gamma = lambda = 1: body and
client exit are Local. lambda = 0: `v_i` is `vbar` after a round in which the client took part.
"""

import dataclasses
from typing import NamedTuple

import tensorflow as tf

from tff_pfl.algorithms.registry import ALGORITHMS
from tff_pfl.arguments.extension import extends
from tff_pfl.arguments.names import check_names
from tff_pfl.arguments.ranges import at_least_or_infinite, between, takes
from tff_pfl.local import LocalTraining, trees
from tff_pfl.models import Model, Weights, two_exits
from tff_pfl.templates import Algorithm, ClientOutput, Exchange, averaging

STARTS = ("own", "mean")


class OwnPart(NamedTuple):
    """Client state.

    Attributes:
        part: `v_i`, the layers of body and client exit.
        participations: int32 scalar, the number of rounds the client took part in.
        optimizer: The client's optimizer state, of both exits; `()` unless it persists.
    """

    part: Weights
    participations: tf.Tensor
    optimizer: tuple


@ALGORITHMS.register("splitgp")
@extends(averaging)
@takes(gamma=between(0, 1), lambda_=between(0, 1), threshold=at_least_or_infinite(0))
def splitgp(
    model: Model,
    local: LocalTraining,
    *,
    gamma: float = 0.5,
    lambda_: float = 0.2,
    threshold: float = 0.2,
    start: str = "own",
    **options,
) -> Algorithm:
    """Builds the SplitGP algorithm.

    Args:
        model: The model of one exit, whose outputs are logits.
        local: The local training of both exits.
        gamma: The share of the client exit in the loss; the paper has 0.5, FedPG's comparison 0.2.
        lambda_: The share of its own part that a client keeps.
        threshold: The largest entropy, in nats, with which the client exit answers; the paper tries
            0.05, 0.1, 0.2, 0.4, 0.8, 1.2, 1.6 and 2.3. With `inf` it always answers.
        start: The start of a client's first round: "own", the common initial value, or "mean", the
            `vbar` it receives.
        **options: Options of `averaging`.
    """
    model.check_no_batch_normalization("splitgp")
    check_names("start", [start], STARTS)
    model.check_class_logits("splitgp")
    both = two_exits(model)
    joint, sides = both.joint_model(gamma), both.sides

    def client_init(client_id, seed):
        weights = both.init(seed)
        return OwnPart(sides.split(weights)[1], tf.constant(0), local.optimizer_state(weights))

    def client_work(received, state, examples, context):
        theta, mean = sides.split(received)
        is_first = tf.equal(state.participations, 0)
        own = trees.select(is_first, mean, state.part) if start == "mean" else state.part
        trained = local.train(
            joint,
            sides.merge(theta, own),
            examples,
            context,
            optimizer_state=state.optimizer,
        )
        part = sides.split(trained.weights)[1]
        return ClientOutput(
            state=OwnPart(part, state.participations + 1, trained.optimizer_state),
            upload=trees.subtract(trained.weights, received),
            metrics=trained.totals,
        )

    def keep_share(mean, state, examples, context):
        kept = trees.scale(trees.subtract(state.part, mean), lambda_)
        return ClientOutput(state=state._replace(part=trees.add(mean, kept)))

    def closed(weights):
        return both.gated(weights, is_open=False)

    def personalize(received, state, examples, context):
        theta, _ = sides.split(received)
        own = both.gated(sides.merge(theta, state.part), is_open=True)
        return trees.select(state.participations > 0, own, closed(received))

    algorithm = averaging(
        both.init,
        client_work,
        personalize,
        client_init,
        global_weights=closed,
        evaluated_model=both.gated_model(threshold),
        **options,
    )
    mixing = Exchange(
        distribute=lambda server: sides.split(server.weights)[1],
        client_work=keep_share,
        name="personalize",
    )
    return dataclasses.replace(algorithm, exchanges=[*algorithm.exchanges, mixing])
