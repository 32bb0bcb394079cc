"""The server of pFedHN and PLGU-GHN: a hypernetwork, and an embedding of each client."""

import collections
import dataclasses
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.local import sharpness, trees
from tff_pfl.models import Hypernetwork, Weights


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
