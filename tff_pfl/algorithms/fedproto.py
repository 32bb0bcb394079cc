"""FedProto: Tan et al., AAAI 2022.

The paper is "FedProto: Federated prototype learning across heterogeneous clients".

Clients share the means of their features by class, the prototypes, and no weights. With `f_i(x)`,
the inputs of the last layer of a client's own model `w_i`, and `n_iy`, its number of examples of
class `y`, a round is

    down    prototypes c_y
    client  w_i <- LocalTraining(w_i), with the loss
                       CE + lambda / d ||f_i(x) - c_y||^2,    of features of d numbers
            c_iy = mean f_i(x) of its examples of class y
    up      n_iy c_iy, n_iy
    server  c_y <- sum_i n_iy c_iy / sum_i n_iy,  for the classes of the cohort

Features of a class without a prototype are not pulled; in the first round, no class has one. A
client predicts the class whose prototype is nearest to the features of an example. Its own last
layer only serves training. There is no global model.

The authors' code takes the mean of the clients' means instead (`weighting="uniform"`), and computes
features during the last pass of training, of which each batch has other weights.

lambda = 0 and predict="head": Local.
"""

import collections
from typing import NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.algorithms.local_training import LocalModel, local_training
from tff_pfl.algorithms.registry import ALGORITHMS
from tff_pfl.arguments.names import check_names
from tff_pfl.arguments.ranges import at_least, takes
from tff_pfl.local import Batch, Examples, LocalTraining, sum_over
from tff_pfl.models import Model, Weights, check_ids, linear_head_shape
from tff_pfl.templates import Algorithm, ClientOutput, Exchange, Personalization
from tff_pfl.templates.averaging import WEIGHTINGS

PREDICTIONS = ("prototypes", "head")
_LAYER = "prototypes"  # of the evaluated model


class Prototypes(NamedTuple):
    """The prototypes of all classes.

    Attributes:
        values: float32 `[c, d]`, the prototype of each class; 0 if it is unknown.
        known: float32 `[c]`, 1 for a class that has a prototype, else 0.
    """

    values: tf.Tensor
    known: tf.Tensor


class ClassSums(NamedTuple):
    """Weighted sums over examples, by class.

    Attributes:
        features: float32 `[c, d]`, the sum of the features of each class.
        counts: float32 `[c]`, the number of examples of each class, or the sum of their weights.
    """

    features: tf.Tensor
    counts: tf.Tensor


@ALGORITHMS.register("fedproto")
@takes(lambda_=at_least(0))
def fedproto(
    model: Model,
    local: LocalTraining,
    *,
    lambda_: float = 1.0,
    predict: str = "prototypes",
    weighting: str = "num_examples",
) -> Algorithm:
    """Makes FedProto.

    Args:
        model: The model, whose last layer is a linear head.
        local: The local training.
        lambda_: The pull of features towards the prototype of their class, whose squared distance
            is a mean over features, as in the authors' code.
        predict: How a client predicts: by the nearest of the "prototypes", or by its "head".
        weighting: The weights of clients' means in a prototype: their numbers of examples of the
            class ("num_examples"), or equal ones ("uniform").

    Raises:
        ValueError: The model has no features (see `Model`), or only one logit.
    """
    check_names("predict", [predict], PREDICTIONS)
    check_names("weighting", [weighting], WEIGHTINGS)
    dim, num_classes = linear_head_shape(model, "fedproto")

    def client_work(prototypes, state, examples, context):
        trained = local.train(
            model,
            state.model,
            examples,
            context,
            term=pull(prototypes, lambda_),
            optimizer_state=state.optimizer,
        )
        sums = class_sums(model, trained.weights, examples, num_classes)
        return ClientOutput(
            state=LocalModel(trained.weights, trained.optimizer_state),
            upload=sums if weighting == "num_examples" else class_means(sums),
            metrics=trained.totals,
        )

    def personalize(prototypes, state, examples, context):
        if predict == "head":
            return state.model
        return collections.OrderedDict([*state.model.items(), (_LAYER, prototypes._asdict())])

    return Algorithm(
        server_init=lambda seed: unknown(num_classes, dim),
        client_init=local_training(model, local).client_init,
        exchanges=[
            Exchange(
                client_work=client_work,
                distribute=lambda prototypes: prototypes,
                aggregator=tff.aggregators.MeanFactory(),
                finalize=lambda server, mean, _: (moved(server, mean), collections.OrderedDict()),
            )
        ],
        personalize=Personalization(client_work=personalize, distribute=lambda server: server),
        evaluated_model=model if predict == "head" else nearest(model, num_classes, dim),
    )


def unknown(num_classes: int, dim: int) -> Prototypes:
    """Returns the prototypes before the first round."""
    return Prototypes(tf.zeros([num_classes, dim]), tf.zeros([num_classes]))


def pull(prototypes: Prototypes, strength: float):
    """Returns the term `strength / d ||f(x) - c_y||^2` of `LocalTraining.train`."""

    def term(forward, batch):
        apart = forward.features - tf.gather(prototypes.values, batch.labels)
        distance = tf.reduce_mean(tf.square(apart), axis=-1)
        return strength * tf.gather(prototypes.known, batch.labels) * distance

    return term


def class_sums(model: Model, weights: Weights, examples: Examples, num_classes: int) -> ClassSums:
    """Adds up a client's features by class, without training behaviour."""
    return sum_over(
        examples,
        lambda batch: class_sums_of_batch(model, weights, batch, num_classes)[0],
        start=ClassSums(tf.zeros([num_classes, model.num_features]), tf.zeros([num_classes])),
    )


def class_sums_of_batch(
    model: Model, weights: Weights, batch: Batch, num_classes: int
) -> tuple[ClassSums, tf.Tensor]:
    """Returns the sums of a batch, and the features of its rows, which are 0 for padding."""
    assert model.features is not None  # see `linear_head_shape`
    check_ids(batch.labels, 1)
    weight = model.example_weight(batch)
    features = model.features(weights, batch.x, training=False, seed=batch.seed)
    features = tf.where(weight[:, tf.newaxis] > 0.0, features, 0.0)
    return ClassSums(*sums_by_class(features, batch.labels, weight, num_classes)), features


def sums_by_class(
    values: tf.Tensor, labels: tf.Tensor, weight: tf.Tensor, num_classes: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Computes weighted sums of rows by class, and the sums of their weights.

    Args:
        values: float32 `[batch, d]`, finite.
        labels: `[batch]`, the class of each row.
        weight: float32 `[batch]`.
        num_classes: `c`.

    Returns:
        float32 `[c, d]` and `[c]`.
    """
    of_class = tf.one_hot(labels, num_classes) * weight[:, tf.newaxis]
    return tf.matmul(of_class, values, transpose_a=True), tf.reduce_sum(of_class, axis=0)


def class_means(sums: ClassSums) -> ClassSums:
    """Returns sums over one example for each class that a client has, the mean of its features."""
    counts = sums.counts[:, tf.newaxis]
    return ClassSums(tf.math.divide_no_nan(sums.features, counts), tf.sign(sums.counts))


def moved(prototypes: Prototypes, sums: ClassSums) -> Prototypes:
    """Moves the prototypes of the classes that have examples, to the mean of their features.

    Args:
        prototypes: The prototypes before.
        sums: The sums of the cohort's clients, or their means over clients.
    """
    counts = sums.counts[:, tf.newaxis]
    means = tf.math.divide_no_nan(sums.features, counts)
    return Prototypes(
        tf.where(counts > 0.0, means, prototypes.values),
        tf.maximum(prototypes.known, tf.sign(sums.counts)),
    )


def nearest(model: Model, num_classes: int, dim: int) -> Model:
    """Returns the model with a layer of prototypes, whose logits are negative squared distances.

    A class without a prototype is farther than all others, by 1.
    """

    def init(seed):
        layer = unknown(num_classes, dim)._asdict()
        return collections.OrderedDict([*model.init(seed).items(), (_LAYER, layer)])

    def apply(weights, x, *, training=False, seed=None):
        features = model.features(weights, x, training=training, seed=seed)
        values, known = weights[_LAYER]["values"], weights[_LAYER]["known"] > 0.0
        apart = features[:, tf.newaxis] - values
        distance = tf.reduce_sum(tf.square(apart), axis=-1)
        farthest = tf.reduce_max(tf.where(known, distance, 0.0), axis=-1, keepdims=True)
        return -tf.where(known, distance, farthest + 1.0)

    return model.evaluated_as(f"{model.name}_prototypes", init, apply)
