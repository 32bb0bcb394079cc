"""FedCP: a policy divides the features of each example between a global and a personal head.

Zhang et al., "FedCP: Separating feature information for personalized federated learning via
conditional policy", KDD 2023.

Clients share a body `f`, a head `G` and a policy `P`, a small network; each client has a head `H_i`
of its own. The policy gives the personal head a share `s` of each feature of an example, and the
global head the rest. With `h = f(x)`:

    a, b   = ReLU(LayerNorm(Dense(h * v_i)))
    s      = e^a / (e^a + e^b)
    logits = H_i(s * h) + G((1 - s) * h)

The vector `v_i` tells the policy about the client: it is the sum of the kernel of `H_i` over
classes, scaled to norm 1. A round, with `p_i = n_i / sum n_j` over the cohort (or uniform):

    down    f, P, G
    client  (f_i, P_i, H_i) <- LocalTraining(f, P, H_i), with G and v_i fixed and the loss
                CE(logits, y) + lambda MMD(f_i(x), f(x))
    up      f_i - f,  P_i - P,  (H_i + G) / 2 - G
    server  f, P, G <- f, P, G + sum_i p_i (f_i - f, P_i - P, (H_i + G) / 2 - G)

MMD, the maximum mean discrepancy of a batch, is a mean over all pairs `x, z` of its examples:

    MMD     = mean k(f_i(x), f_i(z)) + k(f(x), f(z)) - 2 k(f_i(x), f(z))
    k(a, b) = sum over w of exp(-||a - b||^2 / 2w),    w = 10, 15, 20, 50 as in the authors' code

The personal model is the client's `H_i`, with its `v_i`, beside the current `f`, `P` and `G`, for
every client, whether it took part or not. Heads start from a common initial value. There is no
global model.

Gradients of a softmax cross-entropy add up to 0 over classes. With SGD, `v_i` therefore stays what
it is for the initial head, and is the same for all clients.

The authors' code adds Gumbel noise to `a` and `b`, in evaluations, too, and draws the first `v_i`
at random.

For heads without bias and lambda = 0: s = 1 is FedPer; s = 0 trains the bodies of FedBABU.
"""

import collections
import dataclasses

import tensorflow as tf

from tff_pfl.algorithms.fedper import OwnHead
from tff_pfl.algorithms.registry import ALGORITHMS
from tff_pfl.arguments.extension import extends
from tff_pfl.arguments.ranges import at_least, takes
from tff_pfl.local import LocalTraining, trees
from tff_pfl.models import Model, Weights, distinct_seeds, layer_parts, linear, on_features
from tff_pfl.numerics.distances import squared_distances
from tff_pfl.templates import Algorithm, ClientOutput, averaging

BANDWIDTHS = (10.0, 15.0, 20.0, 50.0)  # `w`
_POLICY, _GLOBAL_HEAD, _CONDITION = "policy", "global_head", "condition"  # layers beside the model


@ALGORITHMS.register("fedcp")
@extends(averaging)
@takes(lambda_=at_least(0))
def fedcp(model: Model, local: LocalTraining, *, lambda_: float = 5.0, **options) -> Algorithm:
    """Makes FedCP.

    Args:
        model: The model, whose last layer is a linear head.
        local: The local training of body, policy and personal head.
        lambda_: The weight of the discrepancy; 5 is that of the authors' code for a small
            convolutional network.
        **options: Options of `averaging`.

    Raises:
        ValueError: The model has no features (see `Model`).
    """
    model.check_features("fedcp")
    last = model.layers[-1]
    heads, separating = layer_parts(model), separating_model(model)
    parts = layer_parts(separating, personal=[_GLOBAL_HEAD, _CONDITION])  # fixed in training

    def server_init(seed):
        return parts.split(separating.init(seed))[0]

    def client_init(client_id, seed):
        weights = server_init(seed)
        return OwnHead(heads.split(weights)[1], local.optimizer_state(weights))

    def fixed(shared, state):
        return collections.OrderedDict(
            [(_GLOBAL_HEAD, shared[last]), (_CONDITION, condition(state.head[last]))]
        )

    def client_work(shared, state, examples, context):
        trained = local.train(
            parts.shared_model(separating, fixed(shared, state)),
            shared | state.head,
            examples,
            context,
            term=alignment(model, shared, lambda_),
            optimizer_state=state.optimizer,
        )
        change = trees.subtract(trained.weights, shared)
        return ClientOutput(
            state=OwnHead(heads.split(trained.weights)[1], trained.optimizer_state),
            upload=change | {last: trees.scale(change[last], 0.5)},  # (H_i + G) / 2 - G
            metrics=trained.totals,
        )

    def personalize(shared, state, examples, context):
        return parts.merge(shared | state.head, fixed(shared, state))

    return averaging(
        server_init,
        client_work,
        personalize,
        client_init,
        evaluated_model=dataclasses.replace(separating, features=None, forward=None),
        **options,
    )


def separating_model(model: Model) -> Model:
    """Returns the model with a policy and a global head; its last layer is the personal head.

    Its `features` are those of the model, before they are divided.
    """
    last = model.layers[-1]

    def init(seed):
        weights = model.init(seed)
        others = {
            _POLICY: conditional_layer(model.num_features, seed),
            _GLOBAL_HEAD: weights[last],
            _CONDITION: condition(weights[last]),
        }
        return collections.OrderedDict([*weights.items(), *others.items()])

    def outputs(weights, features):
        share = own_share(weights[_POLICY], features * weights[_CONDITION]["vector"])
        own = linear(weights[last], share * features)
        return own + linear(weights[_GLOBAL_HEAD], (1.0 - share) * features)

    return on_features(model, init, outputs, "separating")


def condition(head: Weights) -> Weights:
    """Returns `v_i` of a head, as a layer."""
    return collections.OrderedDict(
        vector=tf.nn.l2_normalize(tf.reduce_sum(head["kernel"], axis=-1))
    )


def own_share(policy: Weights, conditioned: tf.Tensor) -> tf.Tensor:
    """Returns `s`, `[batch, d]`, of features that are multiplied by `v_i`."""
    hidden = layer_norm(linear(policy, conditioned), policy["scale"], policy["shift"])
    own, shared = tf.split(tf.nn.relu(hidden), 2, axis=-1)
    return tf.sigmoid(own - shared)


def alignment(model: Model, received: Weights, lambda_: float):
    """Returns the term `lambda MMD` of `LocalTraining.train`.

    Args:
        model: A model with features.
        received: The weights of the body `f`.
        lambda_: 0 or more.
    """

    def term(forward, batch):
        own = forward.features
        other = model.features(received, batch.x, training=False, seed=batch.seed)
        pairs = _kernel(own, own) + _kernel(other, other) - 2.0 * _kernel(own, other)
        weight = model.example_weight(batch)
        share = tf.math.divide_no_nan(weight, tf.reduce_sum(weight))
        return lambda_ * tf.linalg.matvec(pairs, share)

    return term


def _kernel(one, other):
    """Returns `k` of all pairs of rows, `[batch, batch]`."""
    distances = squared_distances(one, other)[..., tf.newaxis]
    return tf.reduce_sum(tf.exp(-distances / (2.0 * tf.constant(BANDWIDTHS))), axis=-1)


def conditional_layer(dim: int, seed: int) -> Weights:
    """Returns the initial weights of a dense layer from `d` to `2d` numbers with a normalisation.

    The dense layer is drawn as PyTorch draws it, and with another seed than the model.
    """
    limit = dim**-0.5
    drawn = tf.random.stateless_uniform(
        [dim + 1, 2 * dim], [distinct_seeds(seed, 2)[1], 0], -limit, limit
    )
    return collections.OrderedDict(
        kernel=drawn[:-1], bias=drawn[-1], scale=tf.ones([2 * dim]), shift=tf.zeros([2 * dim])
    )


def layer_norm(rows: tf.Tensor, scale: tf.Tensor, shift: tf.Tensor) -> tf.Tensor:
    """Normalises each row, then scales and shifts its numbers."""
    mean, variance = tf.nn.moments(rows, axes=[-1], keepdims=True)
    return tf.nn.batch_normalization(rows, mean, variance, shift, scale, 1e-5)
