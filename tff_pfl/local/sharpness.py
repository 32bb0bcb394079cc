"""Sharpness-aware minimisation (SAM), and its layer-wise form (LWSAM).

SAM: Foret et al., "Sharpness-aware minimization for efficiently improving generalization", ICLR
2021. It descends along the gradient at the worst point near the weights, to first order:
`grad loss(w + eps)`, where `eps` has norm `rho` and points in the direction in which the loss rises
fastest. LWSAM, of PLGU, scales each layer's part of `eps` by a score `xi_l` of the layer.
"""

import collections
import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tff_pfl.local import trees
from tff_pfl.models.model import Model, Weights
from tff_pfl.models.statistics import trained_leaves


def perturbation(
    gradient: Weights, rho: float, scores: tf.Tensor | None = None, *, p: float = 2.0
) -> Weights:
    """Computes the perturbation `eps` of SAM or, with scores, of LWSAM.

    With `1/p + 1/q = 1`, and for layer `l`, element by element:

        eps_l = rho xi_l sign(g_l) |g_l|^(q-1) / (sum |g|^q)^(1/p),      the sum over all layers

    This is `rho xi_l g_l / ||g||` for `p = 2`, and `rho xi_l sign(g_l)` for `p = inf`. Without
    scores, `eps` has `p`-norm `rho`, and the largest product with `g` of all such vectors. (This
    does not hold for the `p - 1` that PLGU prints instead of `1/p`.) Where `g` is 0, so is `eps`.
    For `p = 2`, `eps` is NaN if the norm of `g` overflows float32.

    Args:
        gradient: `g`, a structure by layers.
        rho: The radius.
        scores: `xi`, float32 `[L]` in the order of the layers. Default: 1 for all layers.
        p: The order of the norm, above 1, possibly infinite.
    """
    if p == 2.0:
        eps = trees.scale(gradient, rho / (trees.finite_norm(gradient) + 1e-12))
    else:
        q = 1.0 if math.isinf(p) else p / (p - 1.0)
        # Divides the gradient by its largest entry, because high powers overflow float32.
        largest = tf.reduce_max([tf.reduce_max(tf.abs(g)) for g in tf.nest.flatten(gradient)])
        shape = trees.scale(gradient, 1.0 / tf.where(largest > 0.0, largest, 1.0))
        powers = tf.nest.map_structure(lambda g: tf.sign(g) * tf.abs(g) ** (q - 1.0), shape)
        total = trees.dot(powers, shape)  # The sum of |g|^q.
        eps = trees.scale(powers, rho / (total ** (1.0 / p) + 1e-12))
    return eps if scores is None else scale_layers(eps, scores)


def layer_scores(difference: Weights, groups: Sequence[int] | None = None) -> tf.Tensor:
    """Computes LWSAM's scores of the layers: the distance that each has moved, per weight.

        xi_l = r_l / sum r,      r_l = ||difference_l||_2 / (number of weights of l)

    A group of layers counts as one layer, and its layers share its score.

    Args:
        difference: A structure by layers. Moving statistics do not count.
        groups: The number of each layer's group (see `models.layer_groups`). Default: each layer is
            its own group.

    Returns:
        float32 `[L]`, whose sum over groups is 1. If the difference is 0, all scores are equal.
    """
    members: dict[int, list] = collections.defaultdict(list)
    for layer, group in zip(difference.values(), groups or range(len(difference)), strict=True):
        members[group] += trained_leaves(layer)
    distances = tf.stack(
        [trees.norm(leaves) / float(max(_num_weights(leaves), 1)) for leaves in members.values()]
    )
    distance = tf.reduce_sum(distances)
    equal = tf.ones_like(distances) / len(members)
    # `tf.where` does not choose the `x / 0`.
    scores = tf.where(distance > 0.0, distances / distance, equal)
    return scores if groups is None else tf.gather(scores, groups)


def highest_layers(
    scores: tf.Tensor, number: int, groups: Sequence[int] | None = None
) -> tf.Tensor:
    """Marks the layers with the highest scores, bool `[L]`; ties go to layers nearer the output.

    Args:
        scores: The scores of `layer_scores` with the same groups.
        number: The number of layers to mark, or of groups.
        groups: See `layer_scores`.
    """
    if groups is not None:
        first_layers = [groups.index(group) for group in range(max(groups) + 1)]
        return tf.gather(highest_layers(tf.gather(scores, first_layers), number), groups)
    from_output = tf.math.top_k(scores[::-1], k=number).indices
    chosen = tf.reduce_any(tf.one_hot(from_output, scores.shape[0], True, False), axis=0)
    return chosen[::-1]


def scale_layers(weights: Weights, factors: tf.Tensor) -> Weights:
    """Multiplies each layer by its factor, float32 `[L]`."""
    return collections.OrderedDict(
        (name, trees.scale(layer, factors[index]))
        for index, (name, layer) in enumerate(weights.items())
    )


def select_layers(mask: tf.Tensor, a: Weights, b: Weights) -> Weights:
    """Returns the layers of `a` where the mask, bool `[L]`, is true, else those of `b`."""
    return collections.OrderedDict(
        (name, trees.select(mask[index], a[name], b[name])) for index, name in enumerate(a)
    )


def sharpness_aware_gradient(model: Model, rho: float):
    """Returns SAM's `gradient` for `LocalTraining.train`: the batch's gradient at `w + eps`.

    The totals are measured at `w`.
    """

    def gradient(weights, batch, carry: Any):
        ascent, totals = model.gradient(weights, batch)
        perturbed = trees.add(weights, perturbation(ascent, rho))
        return model.gradient(perturbed, batch)[0], totals, carry

    return gradient


def _num_weights(leaves) -> int:
    return sum(leaf.shape.num_elements() for leaf in leaves)
