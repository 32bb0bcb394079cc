"""FedGen: FedAvg whose clients also train the last layer on features that a generator draws.

Zhu et al., "Data-free knowledge distillation for heterogeneous federated learning", ICML 2021.

The generator `G`, a network of two dense layers, maps noise and a label to features, the inputs of
the last layer. The server trains it so that the clients' last layers recognise the label. With `h`,
the last layer, `pi_i`, the shares of the classes among a client's examples, and
`p_i = n_i / sum n_j` over the cohort (or uniform), a round is

    down    w, G, q
    client  w_i = LocalTraining(w), with the loss of each example
                      CE(w_i(x), y) + weight CE(h_i(G(y')), y'),    for a label y' drawn from q
    up      w_i - w,  pi_i
    server  w <- w + sum_i p_i (w_i - w)
            q <- sum_i p_i pi_i
            G <- generator_steps of Adam with the loss, for labels y drawn from q,
                     CE(sum_i p_i h_i(G(y)), y)                             (ensemble="logits")
                  or sum_i p_i pi_iy / q_y CE(h_i(G(y)), y)                 (ensemble="losses")

Before the first round, `q` is uniform. As `h` is linear, the mean of the clients' logits is the
logits of their mean last layer, so that the server needs only means. It needs the last layers one
by one for the mean of losses, which the authors' code has. That code also adds a loss that keeps
the features of a batch apart, and one that pulls predictions of examples towards those of generated
features; normalises the inner layer of `G` by batches; has weight 10, less in each round; and
generates no features in the first round.

weight = 0: FedAvg. A cohort of one client: both ensembles are the same.
"""

import collections
import dataclasses
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.aggregators import StackFactory, aggregated
from tff_pfl.algorithms.fedavg import fedavg
from tff_pfl.algorithms.fedrod import class_shares
from tff_pfl.algorithms.registry import ALGORITHMS, idle_where
from tff_pfl.arguments.extension import extends
from tff_pfl.arguments.names import check_names
from tff_pfl.arguments.ranges import at_least, takes, whole
from tff_pfl.local import OPTIMIZERS, LocalTraining, trees
from tff_pfl.local.seeds import client_seed, run_seed
from tff_pfl.models import Model, Weights, from_keras, linear, linear_head_shape
from tff_pfl.templates import Algorithm

ENSEMBLES = ("logits", "losses")
_GENERATED = -1  # folded into a batch's seed; layers and augmentation fold in numbers from 0 on
_SERVER = -1  # no client has this id
_MEAN = tff.aggregators.MeanFactory()


class Generating(NamedTuple):
    """Server state: the `SharedPart` of `averaging` and the generator.

    Attributes:
        weights: `W`, the model.
        optimizer: The state of the server's optimizer; `()` without one.
        generator: The weights of `G`.
        adam: The state of the optimizer of `G`.
        labels: float32 `[c]`, `q`.
        seed: int32 `[2]`, from which the server draws labels and noise.
    """

    weights: Weights
    optimizer: Any
    generator: Weights
    adam: Any
    labels: tf.Tensor
    seed: tf.Tensor


class Received(NamedTuple):
    """The message to a client; see `Generating`."""

    weights: Weights
    generator: Weights
    labels: tf.Tensor


class Upload(NamedTuple):
    """The upload of a client.

    Attributes:
        weights: `W`, the change of the model.
        labels: float32 `[c]`, `pi_i`.
    """

    weights: Weights
    labels: tf.Tensor


@ALGORITHMS.register("fedgen")
@extends(fedavg)
@idle_where("aggregator", ensemble="losses")
@takes(
    weight=at_least(0),
    noise_dim=whole(1),
    generator_hidden=whole(1),
    generator_steps=whole(0),
    generator_batch_size=whole(1),
    generator_learning_rate=at_least(0),
)
def fedgen(
    model: Model,
    local: LocalTraining,
    *,
    weight: float = 1.0,
    ensemble: str = "logits",
    noise_dim: int = 32,
    generator_hidden: int = 256,
    generator_steps: int = 50,
    generator_batch_size: int = 32,
    generator_learning_rate: float = 3e-4,
    **options,
) -> Algorithm:
    """Makes FedGen.

    The server's metric is the mean loss of the generator's steps. The defaults of the generator are
    those of the authors' code for MNIST.

    Args:
        model: The model, whose last layer is a linear head.
        local: The local training.
        weight: The weight of the loss on generated features.
        ensemble: The mean of the clients' last layers by which the generator is trained: of their
            "logits", or of their "losses", in which a client counts by its examples of the label.
        noise_dim: The number of noise inputs of the generator, from a standard normal distribution.
        generator_hidden: The width of the generator's inner layer.
        generator_steps: The generator's steps in a round.
        generator_batch_size: The number of generated features in such a step.
        generator_learning_rate: The learning rate of the generator, of Adam.
        **options: Options of `fedavg`; the paper weighs clients uniformly.

    Raises:
        ValueError: The model has no features (see `Model`), or only one logit.
    """
    check_names("ensemble", [ensemble], ENSEMBLES)
    dim, num_classes = linear_head_shape(model, "fedgen")
    head = model.layers[-1]
    generator = generator_network(noise_dim + num_classes, generator_hidden, dim)
    adam = OPTIMIZERS["adam"](generator_learning_rate)
    base = fedavg(model, local, **options)
    (exchange,) = base.exchanges

    def server_init(seed):
        weights = generator.init(seed)
        return Generating(
            *base.server_init(seed),
            generator=weights,
            adam=adam.initialize(trees.specs(weights)),
            labels=tf.fill([num_classes], 1.0 / num_classes),
            seed=run_seed(seed, 0),
        )

    def client_work(message, state, examples, context):
        def term(forward, batch):
            seed = tf.random.experimental.stateless_fold_in(batch.seed, _GENERATED)
            number = batch.weight.shape[0]
            features, y = draw(generator, message.generator, message.labels, number, seed)
            return weight * model.task.example_loss(y, linear(forward.weights[head], features))

        trained = fedavg(model, local, lambda received: {"term": term}, **options)
        output = trained.exchanges[0].client_work(message.weights, state, examples, context)
        return output._replace(upload=Upload(output.upload, class_shares(examples, num_classes)))

    def ensemble_of(aggregate):
        """Returns the mean upload, changes of last layers, and their shares in a label's loss."""
        if ensemble == "logits":
            changes = trees.copies(aggregate.weights[head], 1)
            return aggregate, changes, tf.ones([1, num_classes])
        shares = aggregate.weight[:, tf.newaxis] * aggregate.value.labels
        shares = tf.math.divide_no_nan(shares, tf.reduce_sum(shares, axis=0))
        return aggregated(_MEAN, aggregate), aggregate.value.weights[head], shares

    def finalize(server, aggregate, round_num):
        mean, changes, shares = ensemble_of(aggregate)
        heads = tf.nest.map_structure(tf.add, changes, server.weights[head])
        labels = tf.nn.relu(mean.labels)  # noise may make shares negative
        labels = tf.math.divide_no_nan(labels, tf.reduce_sum(labels))
        server_seed = client_seed(server.seed, round_num, tf.constant(_SERVER))

        def step(index, weights, state, total):
            seed = tf.random.experimental.stateless_fold_in(server_seed, index)
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(weights)
                features, y = draw(generator, weights, labels, generator_batch_size, seed)
                losses = losses_of_heads(model, heads, features, y)
                loss = tf.reduce_mean(tf.reduce_sum(tf.gather(shares, y, axis=1) * losses, axis=0))
            state, weights = adam.next(state, weights, tape.gradient(loss, weights))
            return index + 1, weights, state, total + loss

        _, weights, state, total = tf.while_loop(
            lambda index, *_: index < generator_steps,
            step,
            (tf.constant(0), server.generator, server.adam, tf.constant(0.0)),
        )
        new, metrics = exchange.finalize(server, mean.weights, round_num)
        metrics = collections.OrderedDict(metrics, generator_loss=total / max(generator_steps, 1))
        return new._replace(generator=weights, adam=state, labels=labels), metrics

    generating = dataclasses.replace(
        exchange,
        distribute=lambda server: Received(server.weights, server.generator, server.labels),
        client_work=client_work,
        aggregator=exchange.aggregator if ensemble == "logits" else StackFactory(),
        finalize=finalize,
        averaged=lambda server: Upload(server.weights, server.labels),
    )
    return dataclasses.replace(base, server_init=server_init, exchanges=[generating])


def generator_network(inputs: int, hidden: int, outputs: int) -> Model:
    """Makes the generator, whose inputs are noise and a label, one-hot."""

    def network():
        return tf.keras.Sequential(
            [
                tf.keras.Input((inputs,)),
                tf.keras.layers.Dense(hidden, "relu", name="hidden"),
                tf.keras.layers.Dense(outputs, name="features"),
            ]
        )

    return from_keras(network, input_shape=(inputs,), task="regression")


def draw(
    generator: Model, weights: Weights, labels: tf.Tensor, number: int, seed: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Draws labels, and features for them.

    Args:
        generator: The generator.
        weights: Its weights.
        labels: float32 `[c]`, `q`.
        number: The number of labels.
        seed: int32 `[2]`.

    Returns:
        The features, float32 `[number, d]`, and the labels, int32 `[number]`.
    """
    seeds = [tf.random.experimental.stateless_fold_in(seed, index) for index in range(2)]
    uniform = tf.random.stateless_uniform([number, 1], seeds[0])
    y = tf.reduce_sum(tf.cast(uniform >= tf.cumsum(labels)[:-1], tf.int32), axis=1)
    num_classes = labels.shape[0]
    noise = tf.random.stateless_normal([number, generator.inputs.shape[1] - num_classes], seeds[1])
    inputs = tf.concat([noise, tf.one_hot(y, num_classes)], axis=1)
    return generator.apply(weights, inputs), y


def losses_of_heads(model: Model, heads: Any, features: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """Computes the losses of `k` last layers on `b` features, `[k, b]`.

    Args:
        model: The model.
        heads: The weights of its last layer, with a leading axis of `k` in each tensor.
        features: float32 `[b, d]`.
        y: int32 `[b]`, the labels.
    """
    logits = tf.matmul(features, heads["kernel"])
    if "bias" in heads:
        logits += heads["bias"][:, tf.newaxis]
    labels = tf.cast(tf.zeros_like(logits[..., 0]), tf.int32) + y  # [k, b]
    losses = model.task.example_loss(
        tf.reshape(labels, [-1]), tf.reshape(logits, [-1, logits.shape[-1]])
    )
    return tf.reshape(losses, [-1, *y.shape])
