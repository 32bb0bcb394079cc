"""FedTGP: FedProto whose server trains the prototypes, to keep classes apart.

Zhang et al., "FedTGP: Trainable global prototypes with adaptive-margin-enhanced contrastive
learning for data and model heterogeneity in federated learning", AAAI 2024.

The server has a vector `v_y` for each class and a network `F` of two dense layers; the prototypes
are `c_y = F(v_y)`. The server trains both to classify what clients send, the means of their
features by class. With `f_i(x)`, the inputs of the last layer of a client's own model `w_i`, a
round is

    down    prototypes c_y
    client  w_i <- LocalTraining(w_i), with the loss
                       CE + lambda / d ||f_i(x) - c_y||^2,    of features of d numbers
            c_iy = mean f_i(x) of its examples of class y
    up      c_iy
    server  q_y   = mean c_iy over the cohort's clients that have class y
            delta = min(threshold, max_yz ||q_y - q_z||),    the margin
            v, F <- server_epochs of SGD over all c_iy, with the cross-entropy of the logits
                        -||c_iy - c_z|| of all classes z, minus delta for z = y

Clients train and predict as in FedProto. A class has a prototype as soon as a client has sent a
mean of it; in the authors' code, all classes have one after the first round. For the margin, that
code takes the distance of each `q_y` to the nearest other one, and the largest of these
(`margin="nearest"`).

server_epochs = 0: the prototypes are what the initial `F` makes of random vectors, not FedProto's.
lambda = 0 and predict="head": Local.
"""

import collections
import dataclasses
from typing import NamedTuple

import tensorflow as tf

from tff_pfl.aggregators import StackFactory
from tff_pfl.algorithms.fedgh import OwnMeans, examples_of
from tff_pfl.algorithms.fedproto import ClassSums, Prototypes, fedproto, moved, unknown
from tff_pfl.algorithms.registry import ALGORITHMS
from tff_pfl.arguments.names import check_names
from tff_pfl.arguments.ranges import at_least, takes, whole
from tff_pfl.local import OPTIMIZERS, ClientContext, LocalTraining
from tff_pfl.local.seeds import client_seed, run_seed
from tff_pfl.models import TASKS, Model, Weights, from_keras, linear_head_shape
from tff_pfl.templates import Algorithm

MARGINS = ("farthest", "nearest")
_NEARLY_ZERO = 1e-12  # a squared distance; the root has no gradient at 0


class TrainedPrototypes(NamedTuple):
    """Server state.

    Attributes:
        network: The weights of `F`, and `v_y`.
        known: float32 `[c]`, 1 for a class of which a client has sent a mean, else 0.
        seed: int32 `[2]`, from which the server draws the order of means.
    """

    network: Weights
    known: tf.Tensor
    seed: tf.Tensor


@ALGORITHMS.register("fedtgp")
@takes(
    lambda_=at_least(0),
    threshold=at_least(0),
    server_epochs=whole(0),
    server_batch_size=whole(1),
    server_learning_rate=at_least(0),
)
def fedtgp(
    model: Model,
    local: LocalTraining,
    *,
    lambda_: float = 10.0,
    predict: str = "prototypes",
    margin: str = "farthest",
    threshold: float = 100.0,
    server_epochs: int = 100,
    server_batch_size: int = 10,
    server_learning_rate: float = 0.01,
) -> Algorithm:
    """Makes FedTGP.

    The server's metrics are the margin, and the mean loss of its steps. The defaults of numbers are
    those of the authors' script.

    Args:
        model: The model, whose last layer is a linear head.
        local: The local training.
        lambda_: The pull of features towards the prototype of their class, as in `fedproto`.
        predict: How a client predicts: by the nearest of the "prototypes", or by its "head".
        margin: The distance that is the margin: of the two classes that are "farthest" apart, or
            the largest one of a class to the "nearest" other class, as in the authors' code.
        threshold: The largest margin.
        server_epochs: The server's passes over the means of a round.
        server_batch_size: The number of means in a step of the server.
        server_learning_rate: The learning rate of the server.

    Raises:
        ValueError: The model has no features (see `Model`), or only one logit.
    """
    check_names("margin", [margin], MARGINS)
    dim, num_classes = linear_head_shape(model, "fedtgp")
    network = prototype_network(num_classes, dim)
    classifier = nearest_prototype(network, num_classes)
    training = LocalTraining(
        OPTIMIZERS["sgd"](server_learning_rate), server_epochs, server_batch_size
    )
    base = fedproto(model, local, lambda_=lambda_, predict=predict, weighting="uniform")
    (exchange,) = base.exchanges

    def server_init(seed):
        return TrainedPrototypes(network.init(seed), tf.zeros([num_classes]), run_seed(seed, 0))

    def prototypes(server):
        values = network.apply(server.network, tf.range(num_classes))
        return Prototypes(values * server.known[:, tf.newaxis], server.known)

    def client_work(message, state, examples, context):
        output = exchange.client_work(message, state, examples, context)
        return output._replace(upload=OwnMeans(context.client_id, output.upload))

    def finalize(server, stack, round_num):
        means = stack.accepted(stack.value.client_id).means
        sums = ClassSums(*(tf.reduce_sum(it, axis=0) for it in means))
        centres = moved(unknown(num_classes, dim), sums)
        delta = tf.minimum(distance_of_classes(centres, margin), threshold)
        server_id = tf.constant(-1)  # no client's
        seed = client_seed(server.seed, round_num, server_id)
        trained = training.train(
            with_margin(classifier, delta),
            server.network,
            examples_of(means),
            ClientContext(round_num, server_id, seed),
        )
        metrics = collections.OrderedDict(margin=delta, loss=trained.totals["loss"].mean)
        known = tf.maximum(server.known, centres.known)
        return TrainedPrototypes(trained.weights, known, server.seed), metrics

    trained_exchange = dataclasses.replace(
        exchange,
        distribute=prototypes,
        client_work=client_work,
        aggregator=StackFactory(),
        finalize=finalize,
    )
    return dataclasses.replace(
        base,
        server_init=server_init,
        exchanges=[trained_exchange],
        personalize=dataclasses.replace(base.personalize, distribute=prototypes),
    )


def prototype_network(num_classes: int, dim: int) -> Model:
    """Makes the server's network from a class to its prototype, with the vectors of classes."""

    def network():
        normal = tf.keras.initializers.RandomNormal(stddev=1.0)
        return tf.keras.Sequential(
            [
                tf.keras.Input((), dtype=tf.int32),
                tf.keras.layers.Embedding(num_classes, dim, normal, name="vectors"),
                tf.keras.layers.Dense(dim, "relu", name="hidden"),
                tf.keras.layers.Dense(dim, name="prototypes"),
            ]
        )

    return from_keras(network, input_shape=(), input_dtype=tf.int32, task="regression")


def nearest_prototype(network: Model, num_classes: int) -> Model:
    """Returns the classifier of features whose logits are negative distances from prototypes."""

    def apply(weights, x, *, training=False, seed=None):
        del training, seed
        return -distances(x, network.apply(weights, tf.range(num_classes)))

    return Model(network.init, apply, TASKS["classification"](), name="prototypes")


def with_margin(model: Model, margin: tf.Tensor) -> Model:
    """Returns the model with the loss of its logits minus `margin` for the true class."""

    def loss(y, logits):
        behind = margin * tf.one_hot(y, logits.shape[-1])
        return model.task.example_loss(y, logits - behind)

    return dataclasses.replace(model, task=model.task.with_loss(loss), made_of=model)


def distance_of_classes(centres: Prototypes, margin: str) -> tf.Tensor:
    """Computes the margin without a threshold; 0 if fewer than two classes have a centre.

    Args:
        centres: The centres `q_y`.
        margin: One of `MARGINS`.
    """
    is_known = centres.known > 0.0
    is_pair = is_known[:, tf.newaxis] & is_known & ~tf.eye(is_known.shape[0], dtype=tf.bool)
    apart = distances(centres.values, centres.values)
    if margin == "nearest":
        apart = tf.reduce_min(tf.where(is_pair, apart, apart.dtype.max), axis=1)
        is_pair = tf.reduce_any(is_pair, axis=1)
    return tf.reduce_max(tf.where(is_pair, apart, 0.0))


def distances(rows: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
    """Computes the Euclidean distances between rows `[n, d]` and `[m, d]`, `[n, m]`."""
    squares = tf.reduce_sum(tf.square(rows[:, tf.newaxis] - others), axis=-1)
    return tf.sqrt(tf.maximum(squares, _NEARLY_ZERO))
