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

import collections
import dataclasses
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.aggregators import StackFactory
from tff_pfl.algorithms.registry import ALGORITHMS, idle_where
from tff_pfl.arguments.names import check_names
from tff_pfl.arguments.ranges import above_or_infinite, at_least, takes, up_to, whole
from tff_pfl.local import LocalTraining, sharpness, trees
from tff_pfl.local.optimizers import sgd
from tff_pfl.models import Hypernetwork, Model, Weights, partition
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
    parts = partition(model, personal=personal_layers)
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
                distribute=server.shown_to_new_clients,
                init=lambda message, seed: Joining(
                    message.embedding, parts.split(model.init(seed))[1]
                ),
                weights=lambda message, own: parts.merge(
                    server.generated(message.phi, own.embedding), own.layers
                ),
            ),
        ),
        made_for=Federation(num_clients),
    )


pfedhn_pc = ALGORITHMS.variant("pfedhn_pc", pfedhn, personal_layers=None)
plgu_ghn = ALGORITHMS.variant("plgu_ghn", pfedhn, hidden_layers=3, rho=0.05)


class HypernetworkState(NamedTuple):
    """Server state.

    Attributes:
        phi: The weights of the hypernetwork.
        embeddings: `v`, float32 `[num_clients, e]`.
        optimizer: The optimizer state of `phi`.
        velocities: float32 `[num_clients, e]`, the velocities of the embeddings; `()` without
            momentum.
    """

    phi: Weights
    embeddings: tf.Tensor
    optimizer: Any
    velocities: tf.Tensor | tuple = ()


class NewClientMessage(NamedTuple):
    """The message to a client that joins after training.

    Attributes:
        phi: The weights of the hypernetwork.
        embedding: The mean of the embeddings, float32 `[e]`.
    """

    phi: Weights
    embedding: tf.Tensor


class Joining(NamedTuple):
    """The parameters that a client fits when it joins.

    Attributes:
        embedding: float32 `[e]`.
        layers: The weights of the client's personal layers.
    """

    embedding: tf.Tensor
    layers: Weights


class OwnChange(NamedTuple):
    """The upload of a client.

    Attributes:
        client_id: int32 scalar.
        change: The change of the received weights in training.
    """

    client_id: tf.Tensor
    change: Weights


@dataclasses.dataclass(frozen=True)
class HypernetworkServer:
    """A server that generates weights, and learns from the changes that clients make to them.

    With `h(v; phi)` the weights generated for an embedding, `J` its Jacobians and `Delta_i` the
    changes of a cohort `S`:

        g    = -(1/|S|) sum_i J_phi h(v_i; phi)^T Delta_i
        eps  = rho xi g / ||g||                                   (`sharpness.perturbation`)
        g~   = the same as g, at phi + eps
        phi <- a step of the optimizer along  clip(g~) + weight_decay phi
        v_i <- v_i - eta_v (clip(-J_v h(v_i; phi + eps)^T Delta_i) + weight_decay v_i),  i in S

    An embedding moves only when its client takes part. With `embedding_momentum`, as in the
    authors' trainer, all embeddings move by `- eta_v` times their velocity

        u_i <- embedding_momentum u_i + (the gradient above, 0 if i is absent) + weight_decay v_i

    Attributes:
        hypernetwork: `h`.
        optimizer: The optimizer of `phi`.
        embedding_learning_rate: `eta_v`; 0 keeps the embeddings, even with weight decay.
        weight_decay: The weight decay of `phi` and of the embeddings that move.
        clip_norm: The largest norm of the gradient of `phi` and of each embedding's; `None` is no
            limit.
        clip_jointly: Whether `clip_norm` limits the gradients of `phi` and of the cohort's
            embeddings as one vector, as in the authors' trainer.
        embedding_momentum: The momentum of the embeddings; 0 switches it off.
        rho: The radius of the perturbation; 0 is pFedHN.
        layer_wise: Whether `xi` are the scores of the hypernetwork's layers by `g`, instead of 1.
    """

    hypernetwork: Hypernetwork
    optimizer: tff.learning.optimizers.Optimizer
    embedding_learning_rate: float
    weight_decay: float = 0.0
    clip_norm: float | None = None
    rho: float = 0.0
    layer_wise: bool = False
    clip_jointly: bool = False
    embedding_momentum: float = 0.0

    def init(self, embeddings: tf.Tensor, seed: int) -> HypernetworkState:
        """Returns the state before the first round, from the initial embeddings."""
        phi = self.hypernetwork.init(seed)
        optimizer = self.optimizer.initialize(trees.specs(phi))
        velocities = tf.zeros_like(embeddings) if self.embedding_momentum else ()
        return HypernetworkState(phi, embeddings, optimizer, velocities)

    def own(self, server: HypernetworkState, client_id: tf.Tensor):
        """Generates the weights for a client."""
        return self.generated(server.phi, tf.gather(server.embeddings, client_id))

    def shown_to_new_clients(self, server: HypernetworkState) -> NewClientMessage:
        """Returns the hypernetwork and the mean of all embeddings."""
        return NewClientMessage(server.phi, tf.reduce_mean(server.embeddings, axis=0))

    def generated(self, phi: Weights, embedding: tf.Tensor) -> Weights:
        """Generates the weights of one embedding `[e]`."""
        return trees.row(self.hypernetwork.generate(phi, embedding[tf.newaxis]), 0)

    def finalize(self, server: HypernetworkState, uploads: Any, round_num: tf.Tensor):
        """Returns the state after a round, and metrics.

        Args:
            server: The state before the round.
            uploads: A `Stack` of `OwnChange`.
            round_num: Not used.
        """
        del round_num
        ids, changes = uploads.accepted(uploads.value.client_id)
        embeddings = tf.gather(server.embeddings, ids)
        gradients = self._gradients(server.phi, embeddings, changes)
        metrics = collections.OrderedDict(gradient_norm=trees.norm(gradients[0]))
        if self.rho:
            ascent = gradients[0]
            scores = sharpness.layer_scores(ascent) if self.layer_wise else None
            eps = sharpness.perturbation(ascent, self.rho, scores)
            gradients = self._gradients(trees.add(server.phi, eps), embeddings, changes)
            metrics["perturbed_gradient_norm"] = trees.norm(gradients[0])
        gradient, embedding_gradients = gradients
        if self.clip_norm is not None and self.clip_jointly:
            both = trees.clip((gradient, embedding_gradients), self.clip_norm)
            gradient, embedding_gradients = both
        elif self.clip_norm is not None:
            gradient = trees.clip(gradient, self.clip_norm)
            embedding_gradients = tf.clip_by_norm(embedding_gradients, self.clip_norm, axes=[1])
        if self.weight_decay:
            gradient = trees.add(gradient, trees.scale(server.phi, self.weight_decay))
        optimizer, phi = self.optimizer.next(server.optimizer, server.phi, gradient)
        table, velocities = self._moved(server, ids, embedding_gradients)
        return HypernetworkState(phi, table, optimizer, velocities), metrics

    def _moved(self, server, ids, gradients):
        """Returns all embeddings after a step, and their velocities."""
        if self.embedding_momentum:
            velocities = self.embedding_momentum * server.velocities
            velocities += self.weight_decay * server.embeddings
            velocities = tf.tensor_scatter_nd_add(velocities, ids[:, tf.newaxis], gradients)
            return server.embeddings - self.embedding_learning_rate * velocities, velocities
        embeddings = tf.gather(server.embeddings, ids)
        if self.weight_decay:
            gradients += self.weight_decay * embeddings
        moved = embeddings - self.embedding_learning_rate * gradients
        return trees.put_rows(server.embeddings, ids, moved), ()

    def _gradients(self, phi, embeddings, changes):
        """Computes `g` at `phi`, and the gradient of each embedding."""
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch((phi, embeddings))
            inner_product = trees.dot(self.hypernetwork.generate(phi, embeddings), changes)
        ascent, embedding_ascents = tape.gradient(inner_product, (phi, embeddings))
        num_clients = tf.maximum(tf.shape(embeddings)[0], 1)
        return trees.scale(ascent, -1 / num_clients), -embedding_ascents
