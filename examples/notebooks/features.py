# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Methods of features: MOON and FedProto
#
# Two published methods, written from nothing. Both look at *features*, the inputs of a network's
# last layer: MOON contrasts them with those of other models, FedProto shares their means. The
# library has both, so that the last test of each is that the numbers are the same.

# %%
import tff_pfl  # before TensorFlow, which is then silent

import collections
from typing import NamedTuple

import numpy as np
import seaborn as sns
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl import testing, trees

tff_pfl.set_graph_context()
sns.set_theme(style="whitegrid", palette="colorblind")

# %% [markdown]
# ## MOON: a term of the loss
#
# Li et al., "Model-contrastive federated learning", CVPR 2021. A client trains the model that it
# received, and adds to the loss of each example a contrast: its features should be near those of
# the received model, and unlike those of the client's own model of its last round.
#
#     CE - mu log( e^(cos(f, near) / tau) / (e^(cos(f, near) / tau) + e^(cos(f, far) / tau)) )
#
# `local.train` takes such an addition as `term`, a function of a forward pass and its batch that
# returns a number for each row. The rest is FedAvg; a client keeps its model.


# %%
class OwnModel(NamedTuple):
    """The state of a client: its last model, and in how many rounds it took part."""

    model: tff_pfl.Weights
    participations: tf.Tensor


def contrastive(model, local, *, mu: float = 1.0, temperature: float = 0.5):
    """Makes MOON; with `mu=0`, it is FedAvg."""

    def cosine(one, other):
        return tf.reduce_sum(
            tf.nn.l2_normalize(one, -1) * tf.nn.l2_normalize(other, -1), axis=-1
        )

    def client_work(weights, state, examples, context):
        last = trees.select(state.participations > 0, state.model, weights)

        def term(forward, batch):
            near, far = (
                cosine(
                    forward.features,
                    model.features(w, batch.x, training=False, seed=batch.seed),
                )
                for w in (weights, last)
            )
            return mu * tf.nn.softplus((far - near) / temperature)

        trained = local.train(model, weights, examples, context, term=term)
        return tff_pfl.ClientOutput(
            state=OwnModel(trained.weights, state.participations + 1),
            upload=trees.subtract(trained.weights, weights),
            metrics=trained.totals,
        )

    return tff_pfl.averaging(
        model.init,
        client_work,
        personalize=lambda weights, state, examples, context: weights,
        client_init=lambda client_id, seed: OwnModel(
            model.init(seed), tf.constant(0)
        ),
        global_weights=lambda weights: weights,
    )


# %% [markdown]
# `softplus(far - near)` is the logarithm above, written so that it cannot overflow. The term leaves
# everything else of the loss as it is: weights of examples, Keras' regularizers, batch
# normalisation.
#
# ## FedProto: sums instead of weights
#
# Tan et al., "FedProto: Federated prototype learning across heterogeneous clients", AAAI 2022. No
# weights are sent. Each client has a model of its own, and sends the sum of its features and the
# number of its examples of each class. The server divides the one by the other: the prototypes, to
# which clients pull their features in the next round. A client predicts the class whose prototype
# is nearest.
#
# This server does not average models, so the method is an `Algorithm` with an `Exchange`.


# %%
class Prototypes(NamedTuple):
    """The server's state: the mean features of each class, and whether the class has some."""

    values: tf.Tensor
    known: tf.Tensor


class ClassSums(NamedTuple):
    """An upload: the sum of the features of each class, and how many there are."""

    features: tf.Tensor
    counts: tf.Tensor


def prototypes(model, local, *, pull: float = 1.0):
    """Makes FedProto."""
    dim, classes = model.num_features, model.num_classes

    def unknown(seed):
        return Prototypes(tf.zeros([classes, dim]), tf.zeros([classes]))

    def client_work(server, weights, examples, context):
        def term(forward, batch):
            apart = forward.features - tf.gather(server.values, batch.labels)
            known = tf.gather(server.known, batch.labels)
            return pull * known * tf.reduce_mean(tf.square(apart), axis=-1)

        trained = local.train(model, weights, examples, context, term=term)

        def sums(batch):
            # 0 for padding, whose features may be NaN
            row_weight = batch.weight[:, tf.newaxis]
            features = model.features(
                trained.weights, batch.x, training=False, seed=batch.seed
            )
            of_class = tf.one_hot(batch.labels, classes) * row_weight
            return ClassSums(
                tf.matmul(
                    of_class,
                    tf.where(row_weight > 0, features, 0.0),
                    transpose_a=True,
                ),
                tf.reduce_sum(of_class, axis=0),
            )

        return tff_pfl.ClientOutput(
            state=trained.weights,
            upload=tff_pfl.sum_over(examples, sums),
            metrics=trained.totals,
        )

    def finalize(server, mean, round_num):
        counts = mean.counts[:, tf.newaxis]
        values = tf.where(
            counts > 0,
            tf.math.divide_no_nan(mean.features, counts),
            server.values,
        )
        return Prototypes(
            values, tf.maximum(server.known, tf.sign(mean.counts))
        ), {}

    def personalize(server, weights, examples, context):
        return collections.OrderedDict(
            [*weights.items(), ("prototypes", server._asdict())]
        )

    def init_nearest(seed):
        return personalize(unknown(seed), model.init(seed), None, None)

    def apply_nearest(weights, x, *, training=False, seed=None):
        features = model.features(weights, x, training=training, seed=seed)
        apart = features[:, tf.newaxis] - weights["prototypes"]["values"]
        distance = tf.reduce_sum(tf.square(apart), axis=-1)
        return -tf.where(
            weights["prototypes"]["known"] > 0, distance, tf.float32.max
        )

    return tff_pfl.Algorithm(
        server_init=unknown,
        client_init=lambda client_id, seed: model.init(seed),
        exchanges=[
            tff_pfl.Exchange(
                distribute=lambda server: server,
                client_work=client_work,
                aggregator=tff.aggregators.MeanFactory(),
                finalize=finalize,
            )
        ],
        personalize=tff_pfl.Personalization(
            distribute=lambda server: server, client_work=personalize
        ),
        evaluated_model=model.evaluated_as(
            "nearest_prototype", init_nearest, apply_nearest
        ),
    )


# %% [markdown]
# The mean over clients of sums, divided by the mean of counts, is the mean over all examples: so
# this method can be private, compressed and summed securely, like any mean. `sum_over` goes through
# a client's examples in batches.
#
# ## Their tests
#
# Three rounds of three clients, block by block. The library's own methods must give the same:

# %%
model, local = testing.tiny_model(), testing.tiny_local()


def after_rounds(algorithm):
    """Returns the server's state after three rounds."""
    process = testing.EagerProcess(algorithm)
    clients = [
        tff_pfl.Client(
            np.int32(i),
            process.initialize_client(i),
            testing.tiny_examples(9, seed=i),
        )
        for i in range(3)
    ]
    state = process.initialize()
    for _ in range(3):
        state, states, _ = process.next(state, clients)
        clients = [
            c._replace(state=own)
            for c, own in zip(clients, states, strict=True)
        ]
    return tf.nest.flatten(state.algorithm)


for mine, name in ((contrastive, "moon"), (prototypes, "fedproto")):
    own = after_rounds(tff_pfl.make(mine, model, local))
    for one, other in zip(
        own, after_rounds(tff_pfl.make(name, model, local)), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    print(name, "agrees")

# %% [markdown]
# And the contract, which every method must pass:

# %%
for method in (contrastive, prototypes):
    subject = testing.Subject.of(method)
    for check in testing.CHECKS:
        check(subject)
    print(method.__name__, "passes", len(testing.CHECKS), "checks")

# %% [markdown]
# ## A study
#
# Twenty clients have digits of different kinds.


# %%
def clients_of(seed):
    """Spreads the digits over 20 clients, differently for each seed."""
    return tff_pfl.federate(
        tff_pfl.load("digits"),
        num_clients=20,
        partitioner="dirichlet",
        partition_args={"alpha": 0.3, "min_examples": 20},
        fractions=(0.75, 0, 0.25),
        seed=seed,
    )


# %%
model = tff_pfl.models.build("mlp", (8, 8, 1), 10, hidden=(64,))
local = tff_pfl.LocalTraining(
    tff.learning.optimizers.build_sgdm(0.1), epochs=5, batch_size=10
)
methods = {
    "Local": tff_pfl.make("local", model, local),
    "FedAvg": tff_pfl.make("fedavg", model, local),
    "MOON": tff_pfl.make(contrastive, model, local),
    "FedProto": tff_pfl.make(prototypes, model, local),
}
compared = tff_pfl.compare(
    clients_of,
    methods,
    rounds=30,
    seeds=(0, 1, 2),
    clients_per_round=10,
    folder="runs/features",
)
compared

# %%
compared.plot()

# %%
compared.plot_clients()
