"""FedPHP: FedAvg whose clients learn from models that they inherit from their own past.

Li et al., "FedPHP: Federated personalization with inherited private models", ECML PKDD 2021.

A client keeps a private model `v_i`, a moving average of the models that it trained. It teaches the
model that the client trains next. A round, with `z_i` the number of the client's rounds before and
`p_i = n_i / sum n_j` over the cohort (or uniform):

    down    w
    client  w_i = LocalTraining(w), with the loss  (1 - lambda) loss(w_i; b) + lambda R(w_i, v_i; b)
            mu_i = mu min(z_i / Z, 1)
            v_i <- mu_i v_i + (1 - mu_i) w_i
    up      w_i - w
    server  w <- w + sum_i p_i (w_i - w)

`R` transfers knowledge in one of two ways, with `v_i` constant:

    "mmd"   the squared maximum mean discrepancy of the features of both models in a batch, which
            are the inputs of the last layer
    "kd"    the cross-entropy of the predictions of `w_i` with those of `v_i` at temperature 4

The kernel of MMD is a sum of five Gaussians, `sum_k exp(-||f - g||^2 / (2^k s))` for k = -2 to 2,
where `s`, a constant of gradients, is the mean squared distance in the batch of features of either
model. A batch with a single example has no such `R`. The personal model is `v_i`, which starts from
the common `w_0`; a client that never took part is evaluated with the current `w`.

This follows the authors' code, whose mean leaves out the distance of a feature from itself, and
which has an `R` for single examples, too; its gradient has no bound. PFLlib's kernels have widths
that do not depend on the batch, its `mu_i` grows with the round's number, and it evaluates `w_i`.

lambda = 0: `w` is FedAvg. mu = 0: `v_i` is `w_i` of the client's last round.
"""

import tensorflow as tf

from tff_pfl.algorithms.registry import ALGORITHMS
from tff_pfl.arguments.extension import extends
from tff_pfl.arguments.names import check_names
from tff_pfl.arguments.ranges import between, takes, whole
from tff_pfl.local import Batch, LocalTraining, trees
from tff_pfl.models import Forward, Model, Weights
from tff_pfl.numerics.distances import squared_distances
from tff_pfl.templates import Algorithm, ClientOutput, OwnModel, averaging, last_own_model

_TEMPERATURE = 4.0
_KERNELS = (0.25, 0.5, 1.0, 2.0, 4.0)  # factors of the mean squared distance
_SPREAD_OFFSET = 1e-8


@ALGORITHMS.register("fedphp")
@extends(averaging)
@takes(lambda_=between(0, 1), mu=between(0, 1), mu_rounds=whole(1))
def fedphp(
    model: Model,
    local: LocalTraining,
    *,
    lambda_: float = 0.1,
    mu: float = 0.9,
    mu_rounds: int = 100,
    transfer: str = "mmd",
    **options,
) -> Algorithm:
    """Makes FedPHP.

    Args:
        model: The model, of weights `W`. For "mmd", its last layer is a linear head.
        local: The local training.
        lambda_: The share of the transfer in the loss, 0.05 or 0.1 in the authors' code.
        mu: The largest share of the old private model in the new one.
        mu_rounds: `Z`, the number of a client's rounds until that share is `mu`. In the authors'
            code it is the expected number in a run: 100 for a tenth of the clients in 1000 rounds.
        transfer: How the private model teaches: by its features ("mmd") or predictions ("kd").
        **options: Options of `averaging`.

    Raises:
        ValueError: The model has no features (see `Model`), or with "kd" no class logits.
    """
    check_names("transfer", [transfer], ("mmd", "kd"))
    if transfer == "mmd":
        model.check_features("fedphp")
    else:
        model.check_class_logits("fedphp")
    knowledge = {"mmd": discrepancy, "kd": distillation}[transfer]

    def client_init(client_id, seed):
        weights = model.init(seed)
        return OwnModel(weights, tf.constant(0), local.optimizer_state(weights))

    def client_work(weights, state, examples, context):
        def term(forward, batch):
            loss = model.task.example_loss(batch.labels, forward.outputs)
            return lambda_ * (knowledge(model, state.model, forward, batch) - loss)

        trained = local.train(
            model, weights, examples, context, term=term, optimizer_state=state.optimizer
        )
        share = mu * tf.minimum(tf.cast(state.participations, tf.float32) / mu_rounds, 1.0)
        private = trees.add(
            trees.scale(state.model, share), trees.scale(trained.weights, 1.0 - share)
        )
        return ClientOutput(
            state=OwnModel(private, state.participations + 1, trained.optimizer_state),
            upload=trees.subtract(trained.weights, weights),
            metrics=trained.totals,
        )

    return averaging(
        model.init,
        client_work,
        last_own_model,
        client_init,
        global_weights=lambda weights: weights,
        **options,
    )


def distillation(model: Model, private: Weights, forward: Forward, batch: Batch) -> tf.Tensor:
    """Returns the cross-entropy of each row with the predictions of the private model."""
    teacher = model.apply(private, batch.x, training=False, seed=batch.seed)
    return tf.nn.softmax_cross_entropy_with_logits(
        tf.nn.softmax(teacher / _TEMPERATURE), forward.outputs
    )


def discrepancy(model: Model, private: Weights, forward: Forward, batch: Batch) -> tf.Tensor:
    """Returns a number for each row; their weighted mean is the squared MMD of the features."""
    assert model.features is not None  # see `check_features`
    inherited = model.features(private, batch.x, training=False, seed=batch.seed)
    both = tf.concat([forward.features, inherited], axis=0)
    distances = squared_distances(both, both)
    weight = model.example_weight(batch)
    share = tf.math.divide_no_nan(weight, tf.reduce_sum(weight))
    halves = tf.concat([share, share], axis=0) / 2.0
    spread = tf.reduce_sum(halves * tf.linalg.matvec(distances, halves))
    spread = tf.stop_gradient(spread) + _SPREAD_OFFSET
    kernels = tf.add_n([tf.exp(-distances / (factor * spread)) for factor in _KERNELS])
    difference = tf.linalg.matvec(kernels, tf.concat([share, -share], axis=0))
    of_own, of_inherited = tf.split(difference, 2)
    # The kernels of a single example narrow as the models agree: its gradient has no bound.
    return tf.where(tf.reduce_max(share) < 1.0, of_own - of_inherited, 0.0)
