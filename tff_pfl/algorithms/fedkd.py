"""FedKD: a large model of each client and a small shared one learn from each other.

Wu et al., "Communication-efficient federated learning via knowledge distillation", Nature
Communications 2022. A client keeps a mentor `v_i`, and trains it beside its copy of the mentee `w`,
whose changes are sent with a low rank. Let `p(x; v)` be the softmax of the outputs of `v`, and
`h(x; v)` its features, the inputs of the last layer. The client also keeps a matrix `M_i`. A round
`t`, from 0, with `p_i = n_i / sum n_j` (or uniform), is

    down    w
    client  w_i = w;  for each mini-batch b of (x, y), in all epochs,
            with S = CE(v_i) + CE(w_i)  and  H = MSE(h(x; v_i), M_i h(x; w_i)):
                v_i, M_i <- a step along grad CE(v_i) + (KL(p(x; w_i) || p(x; v_i)) + H) / S
                w_i      <- a step along grad CE(w_i) + (KL(p(x; v_i) || p(x; w_i)) + H) / S
    up      L_t(w_i - w)
    server  w <- w + L_t(sum_i p_i L_t(w_i - w))

Both gradients are taken before the steps, and each is clipped separately. The other model's pass is
constant in them; the own CE in `S` is not. `L_t` keeps the largest singular values of each matrix:
the fewest whose squares exceed a share of the sum of all squares, `start_energy + (end_energy -
start_energy) (t + 1) / energy_rounds`, and `end_energy` in the end. A convolution's kernel is a
matrix with a column for each filter.

Messages are counted in full: a change is sent as the product of its factors, because messages have
fixed shapes, and `w` as it is, because clients may have missed rounds. The metric `factored_share`
is the share of the numbers of `w` that the factors of a client's change have, or at the server
those of its step.

The personal model is `v_i`, the global one is `w`. All `v_i` start from common weights. If `w` has
the same network, it starts from them, too, and a client that never took part has `w`; with another
network, it has the initial `v_i`.

The paper also aligns the attention of transformers, which is left out here. In the authors' code
and PFLlib's, both models follow the sum of both losses, with a KL that is also divided by the
number of classes. Both codes drop a matrix that needs all its singular values, and PFLlib's factors
weights instead of changes.

distillation = alignment = 0: `v_i` is Local; with energies of 1, `w` is FedAvg.
"""

import collections
import dataclasses
import math

import tensorflow as tf

from tff_pfl.algorithms.fml import Pair, divergence, train_together
from tff_pfl.algorithms.registry import ALGORITHMS
from tff_pfl.arguments.extension import extends
from tff_pfl.arguments.ranges import at_least, between, takes, whole
from tff_pfl.local import LocalTraining, trees
from tff_pfl.models import Mean, Model, Weights, beside, merged, prefixed
from tff_pfl.templates import Algorithm, ClientOutput, OwnModel, averaging

_PROJECTION = "mentee_to_mentor"  # the layer with M_i


@ALGORITHMS.register("fedkd")
@extends(averaging)
@takes(
    distillation=at_least(0),
    alignment=at_least(0),
    start_energy=between(0, 1),
    end_energy=between(0, 1),
    energy_rounds=whole(1),
)
def fedkd(
    model: Model,
    local: LocalTraining,
    *,
    distillation: float = 1.0,
    alignment: float = 1.0,
    start_energy: float = 0.95,
    end_energy: float = 0.98,
    energy_rounds: int = 100,
    network: str | Model = "",
    **options,
) -> Algorithm:
    """Makes FedKD.

    Args:
        model: The mentor, whose last layer is a linear head.
        local: The local training of mentor and mentee.
        distillation: The factor of the divergence of outputs.
        alignment: The factor of the distance of features.
        start_energy: The share of the squares of singular values that is kept before the first
            round; 1 keeps all.
        end_energy: The share in the end.
        energy_rounds: The number of rounds after which the share stays at `end_energy`, usually
            `config.rounds`.
        network: The mentee: "", the network of the mentor; a key of `MODELS`; or a `Model` for the
            same inputs and task.
        **options: Options of `averaging`.

    Raises:
        ValueError: The task has no class labels, mentor or mentee have no features (see `Model`),
            or `network` cannot be built; see `models.beside`.
    """
    model.check_class_logits("fedkd")
    mentee = beside(model, network)
    for it in (model, mentee):
        it.check_features("fedkd")
    mentor = model.in_terms_of(
        lambda seed: _with_projection(model, mentee, seed), _without_projection
    )
    models = Pair(mentor, mentee)
    terms = _terms(models, distillation, alignment)

    def client_init(client_id, seed):
        weights = mentor.init(seed)
        optimizer = local.optimizer_state(Pair(weights, mentee.init(seed)))
        return OwnModel(weights, tf.constant(0), optimizer)

    def factored(change, round_num):
        if start_energy == end_energy == 1:
            return change, tf.constant(1.0)
        grown = tf.minimum(tf.cast(round_num + 1, tf.float32) / energy_rounds, 1.0)
        return low_rank(change, start_energy + (end_energy - start_energy) * grown)

    def client_work(received, state, examples, context):
        trained = train_together(
            models,
            local,
            Pair(state.model, received),
            examples,
            context,
            terms=terms,
            optimizer_state=state.optimizer,
        )
        own, shared = trained.weights
        change, share = factored(trees.subtract(shared, received), context.round_num)
        return ClientOutput(
            state=OwnModel(own, state.participations + 1, trained.optimizer_state),
            upload=change,
            metrics=merged(
                trained.totals,
                prefixed("personal", trained.carry),
                {"factored_share": Mean(share, tf.constant(1.0))},
            ),
        )

    def personalize(received, state, examples, context):
        own = _without_projection(state.model)
        return own if network else trees.select(state.participations > 0, own, received)

    algorithm = averaging(
        mentee.init,
        client_work,
        personalize,
        client_init,
        global_weights=lambda weights: weights,
        global_model=mentee if network else None,
        **options,
    )
    (exchange,) = algorithm.exchanges

    def finalize(server, change, round_num):
        change, share = factored(change, round_num)
        server, metrics = exchange.finalize(server, change, round_num)
        return server, {**metrics, "factored_share": share}

    return algorithm.with_exchanges(lambda it: dataclasses.replace(it, finalize=finalize))


def _with_projection(model, mentee, seed):
    """Returns the initial weights of the mentor, and of `M_i` as a layer, by Glorot and Bengio."""
    shape = (mentee.num_features, model.num_features)
    limit = math.sqrt(6 / sum(shape))
    kernel = tf.random.stateless_uniform(shape, [seed, 0], -limit, limit)
    return collections.OrderedDict(
        [*model.init(seed).items(), (_PROJECTION, collections.OrderedDict(kernel=kernel))]
    )


def _without_projection(weights):
    return collections.OrderedDict(
        (name, it) for name, it in weights.items() if name != _PROJECTION
    )


def _terms(models, distillation, alignment):
    """Returns the terms of `train_together`, `(KL + H) / S` for each model."""

    def adapted(apart, mentor, mentee, batch):
        losses = [
            model.task.example_loss(batch.labels, it.outputs)
            for model, it in zip(models, (mentor, mentee), strict=True)
        ]
        weight = models.own.example_weight(batch)
        total = Mean(tf.reduce_sum(weight * tf.add_n(losses)), tf.reduce_sum(weight)).mean
        features = tf.matmul(mentee.features, mentor.weights[_PROJECTION]["kernel"])
        distance = tf.reduce_mean(tf.square(mentor.features - features), axis=-1)
        return tf.math.divide_no_nan(distillation * apart + alignment * distance, total)

    def of_mentor(mentee):
        return lambda mentor, batch: adapted(
            divergence(mentee.outputs, mentor.outputs), mentor, mentee, batch
        )

    def of_mentee(mentor):
        return lambda mentee, batch: adapted(
            divergence(mentor.outputs, mentee.outputs), mentor, mentee, batch
        )

    return Pair(of_mentor, of_mentee)


def low_rank(change: Weights, energy: tf.Tensor) -> tuple[Weights, tf.Tensor]:
    """Lowers the ranks of matrices, and counts the numbers of their factors.

    Args:
        change: Weights; those with two axes or more are matrices of all axes but the last by the
            last.
        energy: float32 scalar, the share of the sum of squared singular values to exceed.

    Returns:
        The nearest matrices of the lowest ranks that exceed it, and the share of the numbers of
        `change` that is sent: a matrix, or its factors if these have fewer.
    """
    leaves = tf.nest.flatten(change)
    found, numbers = zip(*(_truncated(leaf, energy) for leaf in leaves), strict=True)
    share = tf.add_n(numbers) / sum(leaf.shape.num_elements() for leaf in leaves)
    return tf.nest.pack_sequence_as(change, found), share


def _truncated(leaf, energy):
    """Returns a tensor of low rank, and how many numbers are sent of it."""
    size = tf.cast(leaf.shape.num_elements(), tf.float32)
    if leaf.shape.rank < 2:
        return leaf, size
    matrix = tf.reshape(leaf, [-1, leaf.shape[-1]])
    rows, columns = matrix.shape
    is_wide = rows < columns
    # The squares of singular values are the eigenvalues of the smaller Gram matrix.
    gram = tf.matmul(matrix, matrix, transpose_a=not is_wide, transpose_b=is_wide)
    gram = tf.where(tf.reduce_all(tf.math.is_finite(gram)), gram, 0.0)
    squares, vectors = tf.linalg.eigh(gram)  # in ascending order
    squares = tf.maximum(squares, 0.0)
    # Kept as long as the larger ones do not exceed the energy.
    of_larger = tf.cumsum(squares, exclusive=True, reverse=True)
    is_kept = tf.cast(of_larger <= energy * tf.reduce_sum(squares), tf.float32)
    projection = tf.matmul(vectors * is_kept, vectors, transpose_b=True)
    product = tf.matmul(projection, matrix) if is_wide else tf.matmul(matrix, projection)
    numbers = tf.reduce_sum(is_kept) * (rows + columns + 1)
    return tf.reshape(product, leaf.shape), tf.minimum(numbers, size)
