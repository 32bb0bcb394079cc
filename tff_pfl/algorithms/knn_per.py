"""kNN-Per: FedAvg whose clients look up neighbours among the features of their own examples.

Marfoq et al., "Personalized federated learning through local memorization", ICML 2022. Rounds are
those of FedAvg. A client mixes the prediction of the global model `w` with the labels of the `k`
nearest of its own training examples, by the distance of features `f_w`, inputs of the last layer:

    p_i(y | x) = lambda q_i(y | x) + (1 - lambda) p_w(y | x)
    q_i(y | x) ~ sum over the k nearest examples (x_j, y_j) of client i with y_j = y
                     of exp(-||f_w(x) - f_w(x_j)|| / sigma)

Features are those of the current global model, so that a client keeps nothing. A client without
examples predicts by the global model. Outputs are log p_i. A client's evaluated model contains the
features of its examples, and so does a model that is exported.

The paper chooses lambda for each client on validation data; here it is one constant for all. The
authors' code has `exp(-||.||^2 / (d sigma))` for features of d numbers (`distance="squared"`).

lambda = 0: FedAvg.
"""

import collections
import dataclasses

import tensorflow as tf

from tff_pfl.algorithms.fedavg import fedavg
from tff_pfl.algorithms.registry import ALGORITHMS
from tff_pfl.arguments.extension import extends
from tff_pfl.arguments.names import check_names
from tff_pfl.arguments.ranges import above, between, takes, whole
from tff_pfl.local import Examples, LocalTraining, scan_batches
from tff_pfl.models import Model, Weights, check_ids, linear, linear_head_shape
from tff_pfl.numerics.distances import squared_distances
from tff_pfl.templates import Algorithm, Personalization, averaging

DISTANCES = ("euclidean", "squared")
_LAYER = "neighbors"  # of the evaluated model
_FAR = 1e30  # the distance of a free place of the memory
_TINY = 1e-30  # the probability of a class for which nothing speaks


@ALGORITHMS.register("knn_per")
@extends(averaging)
@takes(share=between(0, 1), num_neighbors=whole(1), scale=above(0), capacity=whole(1))
def knn_per(
    model: Model,
    local: LocalTraining,
    *,
    share: float = 0.5,
    num_neighbors: int = 10,
    distance: str = "euclidean",
    scale: float = 1.0,
    capacity: int = 500,
    **options,
) -> Algorithm:
    """Makes kNN-Per.

    Args:
        model: The model, whose last layer is a linear head.
        local: The local training.
        share: `lambda`, the share of the neighbours in a prediction.
        num_neighbors: `k`.
        distance: The distance of features: "euclidean", or "squared", its square over the number of
            features.
        scale: `sigma`, the distance at which a neighbour's vote is divided by e.
        capacity: The most examples among which a client looks; of more, it draws these.
        **options: Options of `averaging`.

    Raises:
        ValueError: The model has no features (see `Model`), or only one logit.
    """
    check_names("distance", [distance], DISTANCES)
    shape = (capacity, *linear_head_shape(model, "knn_per"))
    algorithm = fedavg(model, local, **options)

    def personalize(weights, state, examples, context):
        memory = memorized(model, weights, examples, context.seed, shape)
        return collections.OrderedDict([*weights.items(), (_LAYER, memory)])

    mixture = with_neighbors(model, shape, share, num_neighbors, distance, scale)
    return dataclasses.replace(
        algorithm,
        personalize=Personalization(
            distribute=lambda server: server.weights, client_work=personalize
        ),
        evaluated_model=mixture,
        global_model=model,
    )


def memorized(
    model: Model, weights: Weights, examples: Examples, seed: tf.Tensor, shape: tuple[int, int, int]
) -> Weights:
    """Memorizes the features and the labels of a client's examples.

    Args:
        model: A model with features.
        weights: `w`.
        examples: The client's examples.
        seed: The seed of the draw, if there are more than the memory has places.
        shape: The places of the memory, the number of features and the number of classes.

    Returns:
        `features`, float32 `[places, d]`, and `votes`, float32 `[places, c]`, which are the weight
        of an example in the column of its label, and 0 elsewhere.
    """
    capacity, dim, num_classes = shape

    def step(carry, batch):
        taken, features, votes = carry
        check_ids(batch.labels, 1)
        is_example = batch.weight > 0.0
        found = model.features(weights, batch.x, training=False, seed=batch.seed)
        found = tf.where(is_example[:, tf.newaxis], found, 0.0)
        vote = tf.one_hot(batch.labels, num_classes) * model.example_weight(batch)[:, tf.newaxis]
        place = taken + tf.cumsum(tf.cast(is_example, tf.int32)) - 1
        at_place = tf.one_hot(tf.where(is_example, place, capacity), capacity)  # none if all taken
        return (
            taken + tf.math.count_nonzero(is_example, dtype=tf.int32),
            features + tf.matmul(at_place, found, transpose_a=True),
            votes + tf.matmul(at_place, vote, transpose_a=True),
        )

    start = (tf.constant(0), tf.zeros([capacity, dim]), tf.zeros([capacity, num_classes]))
    options = {"epochs": 1, "batch_size": 200, "seed": seed}
    _, features, votes = scan_batches(step, start, examples, **options)
    return collections.OrderedDict(features=features, votes=votes)


def with_neighbors(
    model: Model,
    shape: tuple[int, int, int],
    share: float,
    num_neighbors: int,
    distance: str,
    scale: float,
) -> Model:
    """Returns the model that mixes its predictions with those of neighbours in a memory.

    Args:
        model: A model with features.
        shape: See `memorized`.
        share: See `knn_per`.
        num_neighbors: See `knn_per`.
        distance: See `knn_per`.
        scale: See `knn_per`.
    """
    capacity, dim, num_classes = shape

    def init(seed):
        memory = collections.OrderedDict(
            features=tf.zeros([capacity, dim]), votes=tf.zeros([capacity, num_classes])
        )
        return collections.OrderedDict([*model.init(seed).items(), (_LAYER, memory)])

    def apply(weights, x, *, training=False, seed=None):
        memory = weights[_LAYER]
        features = model.features(weights, x, training=training, seed=seed)
        logits = linear(weights[model.layers[-1]], features)
        squares = squared_distances(features, memory["features"])
        distances = squares / dim if distance == "squared" else tf.sqrt(squares)
        is_taken = tf.reduce_any(memory["votes"] > 0.0, axis=1)
        nearness = tf.where(is_taken, -distances / scale, -_FAR)
        nearest, places = tf.math.top_k(nearness, min(num_neighbors, capacity))
        weight = tf.exp(nearest - nearest[:, :1])[:, :, tf.newaxis]
        votes = tf.reduce_sum(weight * tf.gather(memory["votes"], places), axis=1)
        total = tf.reduce_sum(votes, axis=1, keepdims=True)
        own_share = tf.where(total > 0.0, share, 0.0)
        mixed = own_share * tf.math.divide_no_nan(votes, total)
        return tf.math.log(mixed + (1.0 - own_share) * tf.nn.softmax(logits) + _TINY)

    return model.evaluated_as(f"{model.name}_with_neighbors", init, apply)
