"""Defines a method whose clients start a round from a mixture of the global model and their own.

    down    w
    client  v_i <- LocalTraining((1 - own_share) w + own_share v_i)
    up      v_i - its start
    server  w <- w + the weighted mean

A client that takes part for the first time starts from the global model. `own_share = 0` is FedAvg;
`own_share = 1` is local training. The mixture is evaluated as the client's own model.
"""

from typing import NamedTuple

import tensorflow as tf

import tff_pfl
from tff_pfl import trees
from tff_pfl.arguments import ranges


class OwnModel(NamedTuple):
    """The state of a client: its model, and in how many rounds it took part."""

    model: tff_pfl.Weights
    participations: tf.Tensor


@tff_pfl.ALGORITHMS.register("mixed_start")
@tff_pfl.extends(tff_pfl.averaging)
@tff_pfl.takes(own_share=ranges.between(0, 1))
def mixed_start(model, local, *, own_share: float = 0.5, **options):
    """Makes the algorithm; `config.algorithm` has `own_share` and the options of `averaging`."""

    def mix(weights, state, examples=None, context=None):
        share = tf.where(state.participations > 0, own_share, 0.0)
        change = trees.subtract(state.model, weights)
        return trees.add(weights, trees.scale(change, share))

    def client_work(weights, state, examples, context):
        start = mix(weights, state)
        trained = local.train(model, start, examples, context)
        return tff_pfl.ClientOutput(
            state=OwnModel(trained.weights, state.participations + 1),
            upload=trees.subtract(trained.weights, start),
            metrics=trained.totals,
        )

    return tff_pfl.averaging(
        server_init=model.init,
        client_work=client_work,
        personalize=mix,
        client_init=lambda client_id, seed: OwnModel(model.init(seed), tf.constant(0)),
        global_weights=lambda weights: weights,
        **options,
    )
