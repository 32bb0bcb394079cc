"""FedRoD: Chen and Chao, "On bridging generic and personalized federated learning for image
classification", ICLR 2022 (federated robust decoupling).

One body `phi` has two heads: a generic one, `G`, which is shared as the body is and trained as if
classes were balanced, and a client's own, `H_i`, whose logits are added to make its personal model.
With `pi_i` the shares of the classes among the client's examples, and `p_i = n_i / sum n_j` over
the cohort (or uniform), a round is

    down    phi, G
    client  phi_i, G_i = phi, G;  for each mini-batch b of (x, y), in all epochs, with z = phi_i(x):
                phi_i, G_i <- a step along grad CE(G_i(z) + log pi_i, y)     (balanced softmax)
                H_i        <- a step along grad CE(G_i(z) + H_i(z), y), with G_i and z constant
    up      phi_i - phi,  G_i - G
    server  phi, G <- phi, G + sum_i p_i (phi_i - phi, G_i - G)

Both gradients are those before the step, and each is clipped by itself. The reported loss is the
balanced one, beside it `personal_loss` is that of the sum of the logits. The global model is `G` on
`phi`, without the priors. The personal model has the logits `G(z) + H_i(z)`, with the current phi
and G ("global") or those that the client had at the end of its last training ("local"; the current
ones, if it never took part).

The personal head is "linear", which the client keeps; or "hyper", `H_i = h(pi_i; nu)`, made by a
hypernetwork, whose weights `nu` are sent and averaged with phi and G. As in FL-bench and flgo, a
ReLU stands behind each of its hidden layers, one by default. It also gives a personal model to
clients that never took part.

The heads are the model's last layer, which must be a dense layer without activation: the sum of
what two of them make is then what the sum of their weights makes, and a personal model is again a
model of the same weights, with `G + H_i` in the place of `G`. The loss must be one of logits.

All `pi_i` uniform: phi and G are FedAvg's. `H_i` = 0: the personal model is the global one.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from tff_pfl.algorithms.registry import ALGORITHMS, idle_where
from tff_pfl.local import Examples, LocalTraining, trees
from tff_pfl.models import (
    Hypernetwork,
    Model,
    Partition,
    Weights,
    linear_head_shape,
    merged,
    partition,
    prefixed,
)
from tff_pfl.names import check_names
from tff_pfl.ranges import each, takes, whole
from tff_pfl.templates import Algorithm, ClientOutput, averaging, extends, last_own_model

SMALLEST_SHARE = 1e-12  # of a class in a prior: of one that a client lacks, there is no logarithm


class Shared(NamedTuple):
    """What is shared.

    Attributes:
        model: `W`, body and generic head.
        hypernetwork: `nu`; `()` where personal heads are linear.
    """

    model: Weights
    hypernetwork: Weights | tuple


class OwnHead(NamedTuple):
    """Client state.

    Attributes:
        head: `H_i`, the weights of the last layer; `()` where the hypernetwork makes them.
        optimizer: What persists of the client's optimizer.
        model: With pm_body="local" the `Shared` that the client trained last; else `()`.
        participations: With pm_body="local" an int32 scalar, rounds the client took part in; else
            `()`.
    """

    head: Weights | tuple
    optimizer: tuple
    model: Shared | tuple = ()
    participations: tf.Tensor | tuple = ()


@ALGORITHMS.register("fedrod")
@extends(averaging)
@idle_where("personal_init", personal_head="hyper")
@idle_where("hypernetwork_hidden", personal_head="linear")
@takes(hypernetwork_hidden=each(whole(1)))
def fedrod(
    model: Model,
    local: LocalTraining,
    *,
    personal_head: str = "linear",
    personal_init: str = "zeros",
    hypernetwork_hidden: Sequence[int] = (16,),
    pm_body: str = "global",
    **options,
) -> Algorithm:
    """FedRoD.

    Args:
        model: The model, of weights `W`, whose last layer is dense without activation.
        local: The local training of body and both heads.
        personal_head: "linear" or "hyper".
        personal_init: How linear heads start: as "zeros", with which a new client has the global
            model, or as a "copy" of the initial generic head, as in PGFed's code.
        hypernetwork_hidden: The widths of the hypernetwork's hidden layers, which have a ReLU each;
            without any, heads are an affine function of the prior.
        pm_body: Of whose body and generic head the personal model is made: "global" or "local".
        **options: Those of `averaging`.

    Raises:
        ValueError: If the model has no features (see `Model`), for example because its last layer
            has an activation; or if it has a single logit.
    """
    check_names("personal_head", [personal_head], ("linear", "hyper"))
    check_names("personal_init", [personal_init], ("zeros", "copy"))
    check_names("pm_body", [pm_body], ("global", "local"))
    is_hyper, keeps_model = personal_head == "hyper", pm_body == "local"
    heads = PersonalHeads(model, hypernetwork_hidden if is_hyper else None)
    unclipped = dataclasses.replace(local, clip_norm=None)

    def server_init(seed):
        return Shared(model.init(seed), heads.hypernetwork.init(seed) if is_hyper else ())

    def client_init(client_id, seed):
        shared = server_init(seed)
        _, head = heads.parts.split(shared.model)
        own = trees.zeros_like(head) if personal_init == "zeros" else head
        optimizer = local.optimizer_state((shared.model, shared.hypernetwork or own))
        own_model = (shared, tf.constant(0)) if keeps_model else ()
        return OwnHead(() if is_hyper else own, optimizer, *own_model)

    def client_work(shared, state, examples, context):
        prior = class_shares(examples, heads.num_classes)
        balanced = balanced_model(model, prior)

        def gradient(trained, batch, personal_totals):
            weights, own = trained
            direction, totals = balanced.gradient(weights, batch)
            personal = heads.personal_model(weights, prior)
            own_direction, own_totals = personal.gradient(own, batch)
            directions = direction, own_direction
            if local.clip_norm is not None:
                directions = tuple(trees.clip(d, local.clip_norm) for d in directions)
            return directions, totals, trees.add(personal_totals, own_totals)

        trained = unclipped.train(
            model,
            (shared.model, shared.hypernetwork if is_hyper else state.head),
            examples,
            context,
            optimizer_state=state.optimizer,
            gradient=gradient,
            carry=model.zero_totals(),
        )
        weights, own = trained.weights
        new, head = (Shared(weights, own), ()) if is_hyper else (Shared(weights, ()), own)
        own_model = (new, state.participations + 1) if keeps_model else ()
        metrics = merged(trained.totals, prefixed("personal", trained.carry))
        return ClientOutput(
            state=OwnHead(head, trained.optimizer_state, *own_model),
            upload=trees.subtract(new, shared),
            metrics=metrics,
        )

    def personalize(shared, state, examples, context):
        if keeps_model:
            shared = last_own_model(shared, state, examples, context)
        own = shared.hypernetwork if is_hyper else state.head
        return heads.add(shared.model, own, class_shares(examples, heads.num_classes))

    return averaging(
        server_init,
        client_work,
        personalize,
        client_init,
        global_weights=lambda shared: shared.model,
        **options,
    )


@dataclasses.dataclass(frozen=True)
class PersonalHeads:
    """The model with personal heads `H`, of the structure of its last layer.

    They are made of what a client trains, `own`: that is `H` itself, or the weights `nu` of a
    hypernetwork, `H = h(pi; nu)`.

    Attributes:
        model: The model, of weights `W`, whose last layer is dense without activation, and has a
            logit for each class.
        hidden: The widths of the hypernetwork's hidden layers; `None` without one.
    """

    model: Model
    hidden: Sequence[int] | None = None

    def __post_init__(self):
        _ = self.num_classes  # refuses a model without a linear head

    @functools.cached_property
    def parts(self) -> Partition:
        """The body, and the head."""
        return partition(self.model)

    @functools.cached_property
    def num_classes(self) -> int:
        """The number of outputs of a head."""
        return linear_head_shape(self.model, "fedrod")[1]

    @functools.cached_property
    def hypernetwork(self) -> Hypernetwork | None:
        """From `pi` to a head."""
        if self.hidden is None:
            return None
        target = self.parts.personal_model(self.model, {})
        return Hypernetwork(target, self.num_classes, tuple(self.hidden), relu_features=True)

    def add(self, weights: Weights, own: Weights, prior: tf.Tensor) -> Weights:
        """`W` with the head `G + H`.

        Args:
            weights: `W`, of body and generic head `G`.
            own: What `H` is made of.
            prior: float32 `[classes]`, `pi`.
        """
        body, head = self.parts.split(weights)
        if self.hypernetwork is not None:
            own = trees.row(self.hypernetwork.generate(own, prior[tf.newaxis]), 0)
        return self.parts.merge(body, trees.add(head, own))

    def personal_model(self, weights: Weights, prior: tf.Tensor) -> Model:
        """The model with the head `G + H` as a function of `own`, all the rest being constant."""
        return dataclasses.replace(
            self.model,
            apply=lambda own, x, **options: self.model.apply(
                self.add(weights, own, prior), x, **options
            ),
            made_of=self.model.made_of or self.model,
        )


def class_shares(examples: Examples, num_classes: int) -> tf.Tensor:
    """`pi`, the share of each class among a client's examples, float32 `[num_classes]`."""
    is_example = tf.range(tf.shape(examples.y)[0]) < examples.size
    rows = tf.where(is_example[:, tf.newaxis], tf.one_hot(examples.y, num_classes), 0.0)
    return tf.reduce_sum(rows, axis=0) / tf.maximum(tf.cast(examples.size, tf.float32), 1.0)


def balanced_model(model: Model, prior: tf.Tensor) -> Model:
    """The model with the loss of balanced softmax, which is that of `logits + log pi`."""
    log_prior = tf.math.log(tf.maximum(prior, SMALLEST_SHARE))
    return dataclasses.replace(
        model,
        example_loss=lambda y, logits: model.example_loss(y, logits + log_prior),
        made_of=model.made_of or model,
    )
