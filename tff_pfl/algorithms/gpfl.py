"""GPFL: clients share embeddings of classes, and a valve between global and personal features.

Zhang et al., "GPFL: Simultaneously learning global and personalized feature information for
personalized federated learning", ICCV 2023.

Clients share a body `f`, an embedding `E_y` of each class `y` (the paper's GCE) and a valve `V`
(CoV), two small networks; each client has a head `H_i` of its own. Embeddings are as long as the
features `h = f(x)`. Under a condition `c`, which is as long, too, the valve turns features into

    V(h, c) = ReLU((gamma + 1) * h + beta),    gamma, beta = LayerNorm(ReLU(Dense(c)))

with a dense layer and a normalisation for each of `gamma` and `beta`. The global condition `g` is
the mean of the embeddings of all classes, a client's own condition `c_i` their mean over its
examples. A round, with `p_i = n_i / sum n_j` over the cohort (or uniform):

    down    f, V, E
    client  (f_i, V_i, E_i, H_i) <- LocalTraining(f, V, E, H_i), with the loss, where h = f_i(x),
                CE(H_i(V_i(h, c_i)), y)
                - angle log softmax_y cos(V_i(h, g), E_i)
                + lambda ||V_i(h, g) - E_y||                            E, g and c_i are fixed
                + mu / 2 (||V_i||^2 + ||E_i||^2)
    up      f_i - f,  V_i - V,  E_i - E
    server  f, V, E <- f, V, E + sum_i p_i (f_i - f, V_i - V, E_i - E)

The personal model is the client's head on the features `V(h, c_i)` of the current `f`, `V` and `E`,
for every client, whether it took part or not. Heads start from a common initial value. There is no
global model.

In the authors' code, the norm with the factor `lambda` is that of a whole batch, and `g` and `c_i`
are means of the embeddings that the client trained last; in its first round, they are 0.

angle = lambda = 0 and a valve that changes no feature: FedPer.
"""

import collections
import dataclasses

import tensorflow as tf

from tff_pfl.algorithms.fedcp import conditional_layer, layer_norm
from tff_pfl.algorithms.fedper import OwnHead
from tff_pfl.algorithms.fedrod import class_shares
from tff_pfl.algorithms.registry import ALGORITHMS
from tff_pfl.arguments.extension import extends
from tff_pfl.arguments.ranges import at_least, takes
from tff_pfl.local import LocalTraining, trees
from tff_pfl.models import (
    LayerParts,
    Model,
    Weights,
    distinct_seeds,
    linear,
    linear_head_shape,
    on_features,
)
from tff_pfl.templates import Algorithm, ClientOutput, averaging

_VALVE, _EMBEDDINGS = "valve", "embeddings"  # layers that clients share beside the body
_ROUTE = "route"  # the layer of the evaluated model that stands for the valve


@ALGORITHMS.register("gpfl")
@extends(averaging)
@takes(angle=at_least(0), lambda_=at_least(0), mu=at_least(0))
def gpfl(
    model: Model,
    local: LocalTraining,
    *,
    angle: float = 1.0,
    lambda_: float = 0.01,
    mu: float = 0.1,
    **options,
) -> Algorithm:
    """Makes GPFL.

    Args:
        model: The model, whose last layer is a linear head.
        local: The local training of body, valve, embeddings and head.
        angle: The weight of the angles between global features and embeddings; 1 in the paper.
        lambda_: The weight of the distance of global features from the embedding of their class.
            The authors' code has 0.01, and 0.0001 for ResNet-18.
        mu: The weight decay of valve and embeddings. The authors' code has 0.1, for ResNet-18 0.
        **options: Options of `averaging`.

    Raises:
        ValueError: The model has no features (see `Model`), or only one logit.
    """
    dim, num_classes = linear_head_shape(model, "gpfl")
    last = model.layers[-1]
    layers = (*model.layers, _VALVE, _EMBEDDINGS)
    parts = LayerParts(tuple(name for name in layers if name != last), (last,), layers)
    routed = routed_model(model)

    def init(seed):
        drawn = tf.random.stateless_normal([num_classes, dim], [distinct_seeds(seed, 2)[1], 1])
        others = {
            _VALVE: conditional_layer(dim, seed),
            _EMBEDDINGS: collections.OrderedDict(table=drawn),
        }
        return collections.OrderedDict([*model.init(seed).items(), *others.items()])

    def client_init(client_id, seed):
        weights = init(seed)
        return OwnHead(parts.split(weights)[1], local.optimizer_state(weights))

    def own_condition(shared, examples):
        shares = class_shares(examples, num_classes)
        return tf.linalg.matvec(shared[_EMBEDDINGS]["table"], shares, transpose_a=True)

    def with_route(weights, condition):
        own = [(name, weights[name]) for name in model.layers]
        return collections.OrderedDict([*own, (_ROUTE, route(weights[_VALVE], condition))])

    def decay(weights):
        return collections.OrderedDict(
            (name, trees.scale(layer, mu if name in (_VALVE, _EMBEDDINGS) else 0.0))
            for name, layer in weights.items()
        )

    def client_work(shared, state, examples, context):
        condition = own_condition(shared, examples)
        trained = local.train(
            routed.in_terms_of(init, lambda weights: with_route(weights, condition)),
            parts.merge(shared, state.head),
            examples,
            context,
            term=guidance(shared[_EMBEDDINGS]["table"], angle, lambda_),
            reg=decay,
            optimizer_state=state.optimizer,
        )
        new, head = parts.split(trained.weights)
        return ClientOutput(
            state=OwnHead(head, trained.optimizer_state),
            upload=trees.subtract(new, shared),
            metrics=trained.totals,
        )

    def personalize(shared, state, examples, context):
        return with_route(parts.merge(shared, state.head), own_condition(shared, examples))

    return averaging(
        lambda seed: parts.split(init(seed))[0],
        client_work,
        personalize,
        client_init,
        evaluated_model=dataclasses.replace(routed, features=None, forward=None),
        **options,
    )


def routed_model(model: Model) -> Model:
    """Returns the model with a `route` between features and head.

    Its `features` are those of the model, before the route.
    """
    last = model.layers[-1]

    def init(seed):
        same = collections.OrderedDict(
            scale=tf.ones([model.num_features]), shift=tf.zeros([model.num_features])
        )
        return collections.OrderedDict([*model.init(seed).items(), (_ROUTE, same)])

    def outputs(weights, features):
        return linear(weights[last], along(weights[_ROUTE], features))

    return on_features(model, init, outputs, "routed")


def route(valve: Weights, condition: tf.Tensor) -> Weights:
    """Returns `gamma + 1` and `beta` of a valve under a condition, as a layer."""
    hidden = tf.nn.relu(linear(valve, condition[tf.newaxis]))
    rows, scale, shift = (
        tf.reshape(tensor, [2, -1]) for tensor in (hidden, valve["scale"], valve["shift"])
    )
    gamma, beta = tf.unstack(layer_norm(rows, scale, shift))
    return collections.OrderedDict(scale=gamma + 1.0, shift=beta)


def along(path: Weights, features: tf.Tensor) -> tf.Tensor:
    """Returns the features at the end of a route."""
    return tf.nn.relu(path["scale"] * features + path["shift"])


def guidance(received: tf.Tensor, angle: float, lambda_: float):
    """Returns the term of `LocalTraining.train` that guides the global features.

    Args:
        received: float32 `[c, d]`, the embeddings `E`.
        angle: The weight of angles, 0 or more.
        lambda_: The weight of distances, 0 or more.
    """
    received = tf.stop_gradient(received)
    condition = tf.reduce_mean(received, axis=0)

    def term(forward, batch):
        embeddings = forward.weights[_EMBEDDINGS]["table"]
        features = along(route(forward.weights[_VALVE], condition), forward.features)
        cosines = tf.matmul(
            tf.nn.l2_normalize(features, axis=-1),
            tf.nn.l2_normalize(embeddings, axis=-1),
            transpose_b=True,
        )
        angles = tf.nn.sparse_softmax_cross_entropy_with_logits(batch.labels, cosines)
        apart = tf.reduce_sum(tf.square(features - tf.gather(received, batch.labels)), axis=-1)
        distances = tf.sqrt(tf.maximum(apart, 1e-12))  # The slope of a root at 0 is infinite.
        return angle * angles + lambda_ * distances

    return term
