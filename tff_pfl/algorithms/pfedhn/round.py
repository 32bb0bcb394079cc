"""pFedHN and PLGU-GHN: a hypernetwork at the server generates each client's weights.

pFedHN: Shamsian et al., "Personalized federated learning using hypernetworks", ICML 2021. PLGU-GHN,
with a sharpness-aware hypernetwork: scheme II of Qu et al., "How to prevent the poor performance
clients for personalized federated learning?", CVPR 2023.

The server has an embedding `v_i` of each client, and a hypernetwork `h` that generates the client's
weights from it. A round:

    down    theta_i = h(v_i; phi)
    client  LocalTraining(theta_i)
    up      Delta_i, the change of theta_i
    server  gradient steps of phi and of each v_i, with -Delta_i as the gradient of theta_i
                                                                         (`HypernetworkServer`)

`phi` steps along the mean over the cohort, each embedding along its own client's gradient. PLGU-GHN
computes the gradient of `phi` twice from the same `Delta_i`: at `phi`, and at `phi` perturbed along
the first gradient. The personal model is `h(v_i; phi)`, for every client, whether it took part or
not. There is no global model.

A client that joins after training fits an embedding of its own by stochastic gradient descent of
its loss `F(h(v; phi))`, with `phi` fixed, as novel clients do in pFedHN. It starts with the mean of
all embeddings, a choice that the paper leaves open. Each batch makes a step, which is that of a
round with one local step, at the rate of fine-tuning; the weight decay of embeddings is left out.

With personal layers (pFedHN-PC), each client keeps these layers and trains them together with the
generated ones.

PLGU-GHN with rho = 0: pFedHN. Embeddings "one_hot" that are kept, a linear hypernetwork and step 1:
Local; "constant": FedAvg with uniform weights.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

import tensorflow as tf

from tff_pfl.aggregators import StackFactory
from tff_pfl.algorithms.pfedhn.server import HypernetworkServer, OwnChange
from tff_pfl.algorithms.registry import ALGORITHMS, idle_where
from tff_pfl.arguments.names import check_names
from tff_pfl.arguments.ranges import above_or_infinite, at_least, takes, up_to, whole
from tff_pfl.local import LocalTraining, trees
from tff_pfl.local.optimizers import sgd
from tff_pfl.models import Hypernetwork, Model, Weights, layer_parts
from tff_pfl.models.statistics import has_statistics
from tff_pfl.templates import (
    Algorithm,
    ClientOutput,
    Exchange,
    Federation,
    NewClientModel,
    Personalization,
)


class OwnLayers(NamedTuple):
    """Client state.

    Attributes:
        layers: The weights of the client's personal layers.
        optimizer: The client's optimizer state, of all layers; `()` unless it persists.
    """

    layers: Weights
    optimizer: tuple


class Joining(NamedTuple):
    """The parameters that a client fits when it joins.

    Attributes:
        embedding: float32 `[e]`.
        layers: The weights of the client's personal layers.
    """

    embedding: tf.Tensor
    layers: Weights


@ALGORITHMS.register("pfedhn")
@idle_where("layer_wise", rho=0)
@takes(
    num_clients=whole(1),
    hidden_width=whole(1),
    hidden_layers=whole(0),
    embedding_dim=whole(1),
    server_learning_rate=at_least(0),
    server_momentum=up_to(0, 1),
    server_weight_decay=at_least(0),
    server_clip_norm=above_or_infinite(0),
    embedding_learning_rate=at_least(0),
    embedding_momentum=up_to(0, 1),
    rho=at_least(0),
)
def pfedhn(
    model: Model,
    local: LocalTraining,
    *,
    num_clients: int,
    personal_layers: Iterable[str] | None = (),
    hidden_width: int = 100,
    hidden_layers: int = 4,
    bias: bool = True,
    embeddings: str = "normal",
    embedding_dim: int | None = None,
    server_learning_rate: float = 0.01,
    server_momentum: float = 0.9,
    server_weight_decay: float = 0.001,
    server_clip_norm: float | None = 50.0,
    embedding_learning_rate: float | None = None,
    embedding_momentum: float = 0.0,
    clip_jointly: bool = False,
    rho: float = 0.0,
    layer_wise: bool = False,
) -> Algorithm:
    """Builds the algorithm pFedHN or, with `rho` above 0, PLGU-GHN.

    The authors of pFedHN have one client in a round and train 50 steps (`config.local.steps`) with
    gradients clipped to 50, momentum 0.9 and weight decay 5e-5. The defaults of the server's part
    are theirs, with two exceptions: their trainer has `embedding_momentum=0.9` and
    `clip_jointly=True`. PLGU has 3 dense layers: `hidden_layers=3`.

    Args:
        model: The model, of weights `W`.
        local: The local training.
        num_clients: The number of clients of the federation; ids are below it.
        personal_layers: The names of the layers that clients keep and that are not generated;
            `None` is the model's last layer.
        hidden_width: The width of the hypernetwork's hidden layers; the hypernetwork has that many
            weights for each weight that it generates.
        hidden_layers: The number of dense layers before the layers that generate.
        bias: Whether the hypernetwork's layers have a bias. Without it, generated weights start
            with mean 0, which networks with normalisation cannot use.
        embeddings: The initial embeddings: "normal", "one_hot" or "constant" (all 1).
        embedding_dim: The length of an embedding; default 1 + num_clients // 4, or num_clients for
            "one_hot".
        server_learning_rate: The learning rate of the hypernetwork.
        server_momentum: The momentum of the hypernetwork.
        server_weight_decay: The weight decay of the hypernetwork and of the embeddings that move.
        server_clip_norm: The largest norm of the hypernetwork's gradient and of each embedding's;
            `None` is no limit.
        embedding_learning_rate: The learning rate of the embeddings; default that of the
            hypernetwork; 0 keeps the embeddings.
        embedding_momentum: The momentum of the embeddings, in [0, 1). If it is above 0, embeddings
            of absent clients move too, along their velocity and by weight decay; if it is 0, only
            those of the cohort move.
        clip_jointly: Whether `server_clip_norm` limits the gradients of the hypernetwork and of the
            embeddings as one vector.
        rho: The radius of PLGU-GHN's perturbation; 0 is pFedHN.
        layer_wise: Whether the perturbation weighs the hypernetwork's layers as LWSAM does.
    """
    check_names("embeddings", [embeddings], ("normal", "one_hot", "constant"))
    if embedding_dim is None:
        embedding_dim = num_clients if embeddings == "one_hot" else 1 + num_clients // 4
    elif embeddings == "one_hot" and embedding_dim != num_clients:
        raise ValueError(
            f"embedding_dim must be {num_clients}, the number of clients, with one-hot embeddings; "
            f"got {embedding_dim}."
        )
    if embedding_learning_rate is None:
        embedding_learning_rate = server_learning_rate
    parts = layer_parts(model, personal=personal_layers)
    if not parts.shared:
        raise ValueError(
            f"personal_layers has all layers of {model.name!r}. Leave out the layers that the "
            "server should generate."
        )
    if model.training_pass is not None and has_statistics(parts.split(model.init(0))[0]):
        model.check_no_batch_normalization("The hypernetwork of pfedhn, pfedhn_pc or plgu_ghn")
    server = HypernetworkServer(
        Hypernetwork(
            parts.shared_model(model, personal={}),
            embedding_dim,
            hidden=(hidden_width,) * hidden_layers,
            bias=bias,
        ),
        sgd(server_learning_rate, momentum=server_momentum),
        embedding_learning_rate,
        weight_decay=server_weight_decay,
        clip_norm=None if server_clip_norm == math.inf else server_clip_norm,
        rho=rho,
        layer_wise=layer_wise,
        clip_jointly=clip_jointly,
        embedding_momentum=embedding_momentum,
    )

    def initial_embeddings(seed):
        if embeddings == "one_hot":
            return tf.eye(num_clients)
        if embeddings == "constant":
            return tf.ones([num_clients, embedding_dim])
        return tf.random.stateless_normal([num_clients, embedding_dim], [seed, 0])

    def client_init(client_id, seed):
        weights = model.init(seed)
        return OwnLayers(parts.split(weights)[1], local.optimizer_state(weights))

    def client_work(message, state, examples, context):
        generated = message.own
        trained = local.train(
            model,
            parts.merge(generated, state.layers),
            examples,
            context,
            optimizer_state=state.optimizer,
        )
        shared, personal = parts.split(trained.weights)
        return ClientOutput(
            state=OwnLayers(personal, trained.optimizer_state),
            upload=OwnChange(context.client_id, trees.subtract(shared, generated)),
            metrics=trained.totals,
        )

    return Algorithm(
        server_init=lambda seed: server.init(initial_embeddings(seed), seed),
        client_init=client_init,
        exchanges=[
            Exchange(
                select=server.own,
                client_work=client_work,
                aggregator=StackFactory(),
                finalize=server.finalize,
            )
        ],
        personalize=Personalization(
            select=server.own,
            client_work=lambda message, state, examples, context: parts.merge(
                message.own, state.layers
            ),
            new_clients=NewClientModel(
                distribute=lambda state: (state.phi, tf.reduce_mean(state.embeddings, axis=0)),
                init=lambda message, seed: Joining(message[1], parts.split(model.init(seed))[1]),
                weights=lambda message, own: parts.merge(
                    server.generated(message[0], own.embedding), own.layers
                ),
            ),
        ),
        made_for=Federation(num_clients),
    )


pfedhn_pc = ALGORITHMS.variant("pfedhn_pc", pfedhn, personal_layers=None)
plgu_ghn = ALGORITHMS.variant("plgu_ghn", pfedhn, hidden_layers=3, rho=0.05)
