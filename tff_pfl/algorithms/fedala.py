"""FedALA: clients start from a learnt mixture of the global model and their own.

Zhang et al., "FedALA: Adaptive local aggregation for personalized federated learning", AAAI 2023.

FedAvg whose clients start from a mixture of the global model and the model they trained last. The
lower layers are the global ones; in the `p` upper layers each single weight has a learnt share in
[0, 1]. A round, with `p_i = n_i / sum n_j` over the cohort (or uniform):

    down    theta
    client  W = W_i;  for each mini-batch b of a random part of the examples:
                start  = theta below, theta_i + (theta - theta_i) * W above
                W     <- clip(W - eta_W (theta - theta_i) * grad_start loss(start; b), 0, 1)
            W_i <- W;  start as above
            theta_i <- LocalTraining(start)
    up      theta_i - theta
    server  theta <- theta + sum_i p_i (theta_i - theta)

`*` is element-wise, and all `W_i` start from 1. In a client's first round there is nothing to mix:
it starts from `theta`. In its second round `W` is learnt until the loss settles: until the mean
losses of the last 10 passes have a standard deviation below `threshold`, or after `max_passes`.
(The authors' code looks at the loss of each pass's last batch, takes at least 11 passes, and has no
limit.) Later rounds have one pass each, as in the paper. All passes of a round use the same part of
the examples, which is drawn anew in each round.

The personal model is the paper's output: `start` computed from the current `theta`, as if a round
began at the evaluation (personalized="initialized"). With "last" it is `theta_i` of the last round
the client took part in. A client that never took part has the current `theta` in both cases.

num_mixed_layers = 0 or mixing_learning_rate = 0: FedAvg.
"""

from typing import NamedTuple

import tensorflow as tf

from tff_pfl.algorithms.registry import ALGORITHMS
from tff_pfl.arguments.extension import extends
from tff_pfl.arguments.names import check_names
from tff_pfl.arguments.ranges import at_least, between, takes, whole
from tff_pfl.local import LocalTraining, sample_examples, scan_batches, trees
from tff_pfl.models import Model, Weights, layer_parts
from tff_pfl.templates import Algorithm, ClientOutput, averaging, last_own_model

_WINDOW = 10  # the number of passes whose losses are compared


class OwnMixing(NamedTuple):
    """Client state.

    Attributes:
        model: `W`, the client's `theta_i` at the end of its last participation.
        mixing: `W_i`, a share for each weight of the upper layers.
        participations: int32 scalar, the number of rounds the client took part in.
        optimizer: The client's optimizer state; `()` unless it persists.
    """

    model: Weights
    mixing: Weights
    participations: tf.Tensor
    optimizer: tuple


@ALGORITHMS.register("fedala")
@extends(averaging)
@takes(
    num_mixed_layers=whole(0),
    sample_share=between(0, 1),
    mixing_learning_rate=at_least(0),
    threshold=at_least(0),
    max_passes=whole(1),
)
def fedala(
    model: Model,
    local: LocalTraining,
    *,
    num_mixed_layers: int = 1,
    sample_share: float = 0.8,
    mixing_learning_rate: float = 1.0,
    threshold: float = 0.1,
    max_passes: int = 20,
    personalized: str = "initialized",
    **options,
) -> Algorithm:
    """Builds the FedALA algorithm.

    Args:
        model: The model, of weights `W`.
        local: The local training; learning `W_i` uses its batch size, too.
        num_mixed_layers: The number of upper layers that are mixed, `p`; normalisation layers
            count. The authors' code counts tensors: its `-p 2`, a kernel and a bias, is 1 here.
        sample_share: The share of a client's examples from which `W_i` is learnt, rounded down to
            one example or more; the paper's `s`, 80 %.
        mixing_learning_rate: The learning rate of `W_i`, `eta_W`; 1 in the paper, an option of the
            authors' code.
        threshold: The standard deviation of losses below which they have settled; 0.1 in the
            authors' code.
        max_passes: The largest number of passes in a client's second round, which the paper leaves
            open; if it is below 10, every second round has this many passes.
        personalized: The model that is evaluated as the client's own: "initialized" or "last".
        **options: Options of `averaging`.
    """
    check_names("personalized", [personalized], ("initialized", "last"))
    most = len(model.layers)
    if num_mixed_layers > most:
        raise ValueError(f"num_mixed_layers must be in 0 to {most}, got {num_mixed_layers}.")
    parts = layer_parts(model, personal=model.layers[most - num_mixed_layers :])

    def client_init(client_id, seed):
        weights = model.init(seed)
        mixing = tf.nest.map_structure(tf.ones_like, parts.split(weights)[1])
        return OwnMixing(weights, mixing, tf.constant(0), local.optimizer_state(weights))

    def initialize(weights, state, examples, context):
        """Returns `(start, W_i)`."""
        (lower, upper), (_, own) = parts.split(weights), parts.split(state.model)
        if not upper:
            return weights, state.mixing
        difference = trees.subtract(upper, own)
        upper_model = parts.personal_model(model, lower)
        # -1 keeps the sample apart from the batches of the local training.
        seed = tf.random.experimental.stateless_fold_in(context.seed, -1)
        sampled = sample_examples(examples, sample_share, seed=seed)

        def mix(mixing):
            return tf.nest.map_structure(  # exactly theta if W is 1
                lambda w, new, old: w * new + (1.0 - w) * old, mixing, upper, own
            )

        def moved(w, gradient, difference):
            return tf.clip_by_value(w - mixing_learning_rate * gradient * difference, 0.0, 1.0)

        def step(carry, batch):
            mixing, totals = carry
            gradient, batch_totals = upper_model.gradient(mix(mixing), batch)
            mixing = tf.nest.map_structure(moved, mixing, gradient, difference)
            return mixing, trees.add(totals, batch_totals)

        def run_pass(number, mixing, losses):
            mixing, totals = scan_batches(
                step,
                (mixing, model.zero_totals()),
                sampled,
                epochs=1,
                batch_size=local.batch_size,
                seed=tf.random.experimental.stateless_fold_in(seed, number),
            )
            return number + 1, mixing, tf.concat([losses[1:], [totals["loss"].mean]], axis=0)

        def is_to_run(number, mixing, losses):
            is_settled = (number >= _WINDOW) & (tf.math.reduce_std(losses) < threshold)
            continues = tf.equal(state.participations, 1) & tf.logical_not(is_settled)
            return number < tf.where(continues, max_passes, tf.minimum(state.participations, 1))

        start = (tf.constant(0), state.mixing, tf.zeros([_WINDOW]))
        _, mixing, _ = tf.while_loop(is_to_run, run_pass, start)
        return parts.merge(lower, mix(mixing)), mixing

    def client_work(weights, state, examples, context):
        start, mixing = initialize(weights, state, examples, context)
        trained = local.train(model, start, examples, context, optimizer_state=state.optimizer)
        new = OwnMixing(trained.weights, mixing, state.participations + 1, trained.optimizer_state)
        return ClientOutput(new, trees.subtract(trained.weights, weights), metrics=trained.totals)

    def initialized_model(weights, state, examples, context):
        return initialize(weights, state, examples, context)[0]

    return averaging(
        model.init,
        client_work,
        last_own_model if personalized == "last" else initialized_model,
        client_init,
        global_weights=lambda weights: weights,
        **options,
    )
