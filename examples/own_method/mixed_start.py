"""A method: each client starts a round from a mixture of the global model and its own.

    down    w
    client  v_i <- LocalSGD((1 - own_share) w + own_share v_i)
    up      v_i - where it started
    server  w <- w + the weighted mean

`own_share = 0` is FedAvg, `own_share = 1` local training. A client's own model is the mixture.
"""

from typing import NamedTuple

import tff_pfl
from tff_pfl import ranges, trees


class OwnModel(NamedTuple):
    """What a client keeps between rounds: its model."""

    model: tff_pfl.Weights


@tff_pfl.ALGORITHMS.register("mixed_start")
@tff_pfl.extends(tff_pfl.averaging)
@tff_pfl.takes(own_share=ranges.between(0, 1))
def mixed_start(model, local, *, own_share: float = 0.5, **options):
    """`config.algorithm` has `own_share` from here, and the options of `averaging`."""

    def mix(weights, state, examples=None, context=None):
        change = trees.subtract(state.model, weights)
        return trees.add(weights, trees.scale(change, own_share))

    def client_work(weights, state, examples, context):
        start = mix(weights, state)
        trained = local.train(model, start, examples, context)
        return tff_pfl.ClientOutput(
            state=OwnModel(trained.weights),
            upload=trees.subtract(trained.weights, start),
            metrics=trained.totals,
        )

    return tff_pfl.averaging(
        server_init=model.init,
        client_work=client_work,
        personalize=mix,
        client_init=lambda client_id, seed: OwnModel(model.init(seed)),
        global_weights=lambda weights: weights,
        **options,
    )
