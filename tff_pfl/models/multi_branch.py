"""Models whose linear layers are convex combinations of several branches."""

import collections
import dataclasses
from collections.abc import Callable, Iterable

import numpy as np
import tensorflow as tf

from tff_pfl.arguments.ranges import above, takes, whole
from tff_pfl.models.derived import derived
from tff_pfl.models.layer_parts import layer_parts
from tff_pfl.models.model import Model, Weights
from tff_pfl.models.statistics import has_statistics

# A layer is linear in its weights if these are one of the following and at most a bias.
_LINEAR = ("kernel", "depthwise_kernel", "embeddings")


@dataclasses.dataclass(frozen=True)
class MultiBranch:
    """A model with layers that are convex combinations of `B` branches.

    The weights of all branches have the structure of the model's weights, but each tensor of a
    branched layer has a leading axis of `B`. Mixing coefficients `alpha` are float32 `[L, B]`, one
    row for each of the `L` branched layers, or `[1, B]`, one row for all.

    A branched layer is linear in its weights, so mixing weights is equivalent to mixing the outputs
    of the branches. A forward pass costs as much as in the ordinary model.

    Attributes:
        model: The model of one branch.
        branches: `B`.
        layers: The names of the branched layers, in the model's order.
        init_scale: The factor of the initial weights of branches. The mean of `B` independent
            branches has a smaller norm than each branch; `sqrt(B)` compensates for this.
    """

    model: Model
    branches: int
    layers: tuple[str, ...]
    init_scale: float = 1.0

    def init(self, seed: int) -> Weights:
        """Returns the initial weights of all branches, from `model.init` with different seeds.

        Layers without branches, and first branches before `init_scale`, equal `model.init(seed)`.
        """
        drawn = [self.model.init(s) for s in distinct_seeds(seed, self.branches)]
        weights = collections.OrderedDict(drawn[0])
        for layer in self.layers:
            stacked = tf.nest.map_structure(lambda *b: tf.stack(b), *[w[layer] for w in drawn])
            weights[layer] = tf.nest.map_structure(lambda leaf: self.init_scale * leaf, stacked)
        return weights

    def uniform(self) -> tf.Tensor:
        """Returns the `alpha` that weights all branches equally, one row for all layers."""
        return tf.fill([1, self.branches], 1 / self.branches)

    def mix(self, weights: Weights, alpha: tf.Tensor) -> Weights:
        """Computes the model's weights: `W_l = sum_b alpha_lb W_lb` in branched layers."""
        mixed = collections.OrderedDict(weights)
        for layer, row in self.rows(alpha).items():
            mixed[layer] = tf.nest.map_structure(
                lambda leaf, row=row: tf.tensordot(row, leaf, axes=1), weights[layer]
            )
        return mixed

    def rows(self, alpha: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns for each branched layer its row of `alpha`, `[B]`."""
        alpha = tf.broadcast_to(alpha, [len(self.layers), self.branches])
        return dict(zip(self.layers, tf.unstack(alpha), strict=True))

    def weights_model(self, alpha: tf.Tensor) -> Model:
        """Returns the model as a function of the branches' weights, with a constant `alpha`."""
        return derived(self.model, self.init, lambda weights: self.mix(weights, alpha))

    def alpha_model(
        self, weights: Weights, alpha: Callable[[tf.Tensor], tf.Tensor] = tf.identity
    ) -> Model:
        """Returns the model as a function of coefficients, with constant branches.

        Args:
            weights: The weights of all branches.
            alpha: A function that maps the coefficients to `alpha`. Default: the identity.
        """
        return derived(
            self.model,
            lambda seed: self.uniform(),
            lambda coefficients: self.mix(weights, alpha(coefficients)),
        )


@takes(branches=whole(1), init_scale=above(0))
def multi_branch(
    model: Model, branches: int, *, layers: Iterable[str] | None = None, init_scale: float = 1.0
) -> MultiBranch:
    """Gives layers of a model several branches.

    Args:
        model: Any model.
        branches: The number of branches, 1 or more.
        layers: The names of the layers that have branches, or one name. Default: all layers that
            are linear in their weights, which are a kernel (or an embedding table) and possibly a
            bias. Dense and convolutional layers are linear, normalisation layers are not.
        init_scale: See `MultiBranch`.

    Raises:
        ValueError: No layer is linear in its weights, `layers` is empty, a name is unknown, or all
            branches would start from the same weights (see `Model.starting_from`).
    """
    if branches > 1:
        model.check_seeded_start("multi_branch")
    if layers is None:
        layers = [name for name, layer in model.init(0).items() if _is_linear(set(layer))]
    ordered = layer_parts(model, personal=layers).personal
    weights = {} if model.training_pass is None else model.init(0)
    if has_statistics([weights.get(layer) for layer in ordered]):
        model.check_no_batch_normalization("A layer of several branches")
    if not ordered:
        raise ValueError(
            f"{model.name!r} has no layer of a kernel and a bias. Name the layers in `layers`."
        )
    return MultiBranch(model, branches, ordered, init_scale)


def distinct_seeds(seed: int, number: int) -> list[int]:
    """Returns `number` distinct seeds for initial weights, the first of them `seed`."""
    others = np.random.SeedSequence(seed).generate_state(max(number - 1, 0))
    return [seed, *(int(other >> 1) for other in others)]


def _is_linear(names):
    return len(names - {"bias"}) == 1 and not names.isdisjoint(_LINEAR)
