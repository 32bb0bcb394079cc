"""FedGH: clients keep the body of the model, and the server trains the head on mean features.

Yi et al., "FedGH: Heterogeneous federated learning with generalized global header", ACM MM 2023.

The model is a head, its last layer, on a body. With `f_i(x)`, the features that a client's own body
gives, a round is

    down    theta, the server's head, and whether it was trained
    client  head_i <- theta, if it was trained
            (body_i, head_i) <- LocalTraining(body_i, head_i)          jointly
            r_iy = mean f_i(x) of its examples of class y
    up      r_iy, and whether it has examples of class y
    server  for each r_iy, of one client after the other:
                theta <- theta - eta_s grad CE(theta(r_iy), y)

Clients and classes are in the order of their numbers. The personal model is the client's own at the
end of its last training. There is no global model.

The authors' published code leaves theta as it was drawn, because its optimizer has the weights of a
client. PFLlib shuffles the means and makes steps of several (`server_batch_size`), and evaluates
clients with the server's head (`personalized="global"`).

server_epochs = 0: Local.
"""

import collections
import dataclasses
from typing import NamedTuple

import tensorflow as tf

from tff_pfl.aggregators import StackFactory
from tff_pfl.algorithms.fedavg import PERSONALIZED
from tff_pfl.algorithms.fedproto import ClassSums, class_means, class_sums
from tff_pfl.algorithms.local_training import LocalModel, local_training
from tff_pfl.algorithms.registry import ALGORITHMS, idle_where
from tff_pfl.arguments.names import check_names
from tff_pfl.arguments.ranges import above, takes, whole
from tff_pfl.local import Examples, LocalTraining, scan_batches, trees
from tff_pfl.models import LayerParts, Model, Weights, layer_parts, linear, linear_head_shape
from tff_pfl.templates import Algorithm, ClientOutput, Exchange, Personalization


class Header(NamedTuple):
    """Server state.

    Attributes:
        weights: `theta`, the weights of the last layer.
        is_trained: bool scalar, whether they were trained.
    """

    weights: Weights
    is_trained: tf.Tensor


class OwnMeans(NamedTuple):
    """The upload of a client.

    Attributes:
        client_id: int32 scalar.
        means: The mean features of each class, `r_iy`, as sums over one example for each class
            that the client has.
    """

    client_id: tf.Tensor
    means: ClassSums


@ALGORITHMS.register("fedgh")
@idle_where("server_learning_rate", "server_batch_size", server_epochs=0)
@takes(server_learning_rate=above(0), server_epochs=whole(0), server_batch_size=whole(1))
def fedgh(
    model: Model,
    local: LocalTraining,
    *,
    server_learning_rate: float = 0.01,
    server_epochs: int = 1,
    server_batch_size: int = 1,
    personalized: str = "local",
) -> Algorithm:
    """Makes FedGH.

    Args:
        model: The model, whose last layer is a linear head.
        local: The local training.
        server_learning_rate: `eta_s`; 0.01 in the authors' code, 1 in PFLlib.
        server_epochs: The server's passes over the means of a round.
        server_batch_size: The number of means in a step of the server.
        personalized: The personal model's head: the client's own ("local") or `theta` ("global").

    Raises:
        ValueError: The model has no features (see `Model`), or only one logit.
    """
    check_names("personalized", [personalized], PERSONALIZED)
    _, num_classes = linear_head_shape(model, "fedgh")
    parts = layer_parts(model)
    head = head_model(model, parts)

    def with_header(header, state):
        body, own = parts.split(state.model)
        return parts.merge(body, trees.select(header.is_trained, header.weights, own))

    def client_work(header, state, examples, context):
        trained = local.train(
            model,
            with_header(header, state),
            examples,
            context,
            optimizer_state=state.optimizer,
        )
        means = class_means(class_sums(model, trained.weights, examples, num_classes))
        return ClientOutput(
            state=LocalModel(trained.weights, trained.optimizer_state),
            upload=OwnMeans(context.client_id, means),
            metrics=trained.totals,
        )

    def step(weights, batch):
        gradient, _ = head.gradient(weights, batch)
        return trees.subtract(weights, trees.scale(gradient, server_learning_rate))

    def finalize(header, stack, round_num):
        means = examples_of(stack.accepted(stack.value.client_id).means)
        weights = scan_batches(
            step,
            header.weights,
            means,
            epochs=server_epochs,
            batch_size=server_batch_size,
            seed=None,
        )
        is_trained = header.is_trained | (server_epochs * means.size > 0)
        return Header(weights, is_trained), collections.OrderedDict()

    def personalize(header, state, examples, context):
        return with_header(header, state) if personalized == "global" else state.model

    return Algorithm(
        server_init=lambda seed: Header(head.init(seed), tf.constant(False)),
        client_init=local_training(model, local).client_init,
        exchanges=[
            Exchange(
                client_work=client_work,
                distribute=lambda header: header,
                aggregator=StackFactory(),
                finalize=finalize,
            )
        ],
        personalize=Personalization(client_work=personalize, distribute=lambda header: header),
    )


def head_model(model: Model, parts: LayerParts) -> Model:
    """Returns the model of the last layer alone, whose inputs are features."""
    (layer,) = parts.personal

    def penalty(weights):
        body, _ = parts.split(model.init(0))
        return model.penalty(parts.merge(trees.zeros_like(body), weights))

    return dataclasses.replace(
        model,
        init=lambda seed: parts.split(model.init(seed))[1],
        apply=lambda weights, features, **options: linear(weights[layer], features),
        name=f"{model.name}_head",
        features=None,
        made_of=None,
        training_pass=None,
        forward=None,
        penalty=model.penalty and penalty,
        inputs=None,
    )


def examples_of(means: ClassSums) -> Examples:
    """Returns the means that clients have as examples, of one client after the other.

    Args:
        means: The means of clients, stacked along a leading axis.
    """
    rows = tf.where(means.counts > 0.0)
    features = tf.gather_nd(means.features, rows)
    return Examples(features, tf.cast(rows[:, 1], tf.int32), tf.shape(rows)[0])
