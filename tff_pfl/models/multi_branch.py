"""Models whose linear layers have several branches, mixed by convex combinations."""

import collections
import dataclasses
from collections.abc import Callable, Iterable

import numpy as np
import tensorflow as tf

from tff_pfl.models.model import Model, Weights
from tff_pfl.models.partition import partition
from tff_pfl.ranges import above, takes, whole

# A layer that has one of these weights, and besides at most a bias, is linear in them.
_LINEAR = ("kernel", "depthwise_kernel", "embeddings")


@dataclasses.dataclass(frozen=True)
class MultiBranch:
    """A model, some layers of which are convex combinations of `B` branches.

    The weights of all branches are a structure like the model's, where each tensor of a branched
    layer has a leading axis of `B`; other layers are as they were. Mixing coefficients `alpha` are
    float32 `[L, B]`, a row for each of the `L` branched layers, or `[1, B]`, one row for all.

    Since a layer is linear in its weights, to mix weights gives what to mix the outputs of the
    branches would give, and a forward pass costs that of one ordinary layer.

    Attributes:
        model: The model of one branch.
        branches: `B`.
        layers: Names of the branched layers, in the model's order.
        init_scale: Factor of the initial weights of branches; `sqrt(B)` compensates for the mean of
            `B` independent branches being shorter than each.
    """

    model: Model
    branches: int
    layers: tuple[str, ...]
    init_scale: float = 1.0

    def init(self, seed: int) -> Weights:
        """The weights of all branches: the model's initial ones for different seeds.

        Layers without branches are those of `model.init(seed)`, and the first branch of others is
        `init_scale` times these.
        """
        drawn = [self.model.init(s) for s in distinct_seeds(seed, self.branches)]
        weights = collections.OrderedDict(drawn[0])
        for layer in self.layers:
            stacked = tf.nest.map_structure(lambda *b: tf.stack(b), *[w[layer] for w in drawn])
            weights[layer] = tf.nest.map_structure(lambda leaf: self.init_scale * leaf, stacked)
        return weights

    def uniform(self) -> tf.Tensor:
        """Returns the `alpha` that weighs all branches equally, one row for all layers."""
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
        """Returns the row of `alpha`, `[B]`, of each branched layer."""
        alpha = tf.broadcast_to(alpha, [len(self.layers), self.branches])
        return dict(zip(self.layers, tf.unstack(alpha), strict=True))

    def weights_model(self, alpha: tf.Tensor) -> Model:
        """Returns the model as a function of all branches' weights; `alpha` is constant."""
        return self.model.in_terms_of(self.init, lambda weights: self.mix(weights, alpha))

    def alpha_model(
        self, weights: Weights, alpha: Callable[[tf.Tensor], tf.Tensor] = tf.identity
    ) -> Model:
        """Returns the model as a function of coefficients of `alpha`; branches are constant."""
        return self.model.in_terms_of(
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
        branches: How many, 1 or more.
        layers: Names of the layers that have branches, or one name. Default: all that are linear in
            their weights, a kernel (or table of embeddings) and perhaps a bias: dense and
            convolutional layers, but not layers of normalisation.
        init_scale: See `MultiBranch`.

    Raises:
        ValueError: If the model has no such layer; for unknown names, see `partition`.
    """
    if layers is None:
        layers = [name for name, layer in model.init(0).items() if _is_linear(set(layer))]
    ordered = partition(model, personal=layers).personal
    if not ordered:
        raise ValueError(
            f"{model.name!r} has no layer of a kernel and a bias; name some in layers."
        )
    return MultiBranch(model, branches, ordered, init_scale)


def distinct_seeds(seed: int, number: int) -> list[int]:
    """Returns `number` seeds, the first of which is `seed`, for models that start differently."""
    others = np.random.SeedSequence(seed).generate_state(max(number - 1, 0))
    return [seed, *(int(other >> 1) for other in others)]


def _is_linear(names):
    return len(names - {"bias"}) == 1 and not names.isdisjoint(_LINEAR)
