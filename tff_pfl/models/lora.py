"""Adapts large models by few weights: low-rank adapters of frozen kernels, and some whole layers.

Hu et al., "LoRA: Low-rank adaptation of large language models", ICLR 2022.
"""

import collections
import dataclasses
import fnmatch
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tff_pfl.arguments.ranges import above, among, between, takes, whole
from tff_pfl.models.low_rank import LowRank, TakesLowRank, summed
from tff_pfl.models.model import Model, Weights
from tff_pfl.models.start import Start, initial
from tff_pfl.models.statistics import STATISTICS
from tff_pfl.tracing.frozen import Frozen, array_of

_eager_mode = tf.__internal__.eager_context.eager_mode
_NARROWED = ("kernel", "recurrent_kernel")  # by `frozen_type`
_KERNELS = (*_NARROWED, "embeddings")


class _Adapter(NamedTuple):
    """An adapter of a kernel.

    Attributes:
        name: The first words of the names of its parts.
        layer: The layer of the kernel.
        weight: The name of the kernel in its layer.
        shape: The kernel's shape.
        factor: The factor of the product.
    """

    name: str
    layer: str
    weight: str
    shape: tuple[int, ...]
    factor: float

    @property
    def axes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The axes that are the rows and the columns of the kernel as a matrix."""
        num_rows = _num_row_axes(self.shape)
        return self.shape[:num_rows], self.shape[num_rows:]

    def init(self, rank: int, seed: Sequence[int]) -> dict[str, tf.Tensor]:
        """Returns the initial parts by their sides."""
        rows, columns = map(math.prod, self.axes)
        down = tf.random.stateless_normal([rows, rank], seed, stddev=rows**-0.5)
        return {"down": down, "up": tf.zeros([rank, columns])}

    def added(self, kernel: tf.Tensor | LowRank, parts: Weights) -> LowRank:
        """Returns the sum of a kernel and the product of the parts."""
        rows, columns = self.axes
        down, up = (parts[f"{self.name}_{side}"][self.weight] for side in ("down", "up"))
        down = tf.reshape(down, [*rows, -1])
        up = tf.reshape(self.factor * up, [-1, *columns])
        if isinstance(kernel, LowRank):
            down, up = tf.concat([kernel.down, down], -1), tf.concat([kernel.up, up], 0)
            kernel = kernel.kernel
        return LowRank(kernel, down, up)


@takes(
    rank=whole(1),
    alpha=above(0.0),
    own_share=between(0.0, 1.0),
    frozen_type=among("float32", "bfloat16"),
)
def lora(
    model: Model,
    layers: str | Sequence[str] = ("*",),
    *,
    rank: int = 8,
    alpha: float | None = None,
    trained: str | Sequence[str] = (),
    frozen_down: bool = False,
    own_share: float | None = None,
    frozen_type: str = "float32",
) -> Model:
    """Returns a model whose weights are low-rank adapters of a frozen model, and some layers of it.

    A kernel is `K + alpha / rank * down @ up`, of which `K` is frozen. `up` starts at 0, so that
    the model starts as the frozen one. The weights of layer `NAME` are in the layers `NAME_down`,
    `[rows, rank]`, and `NAME_up`, `[rank, columns]`, whose names methods take:
    `personal_layers=["*_up"]` shares `down` alone, as FedSA-LoRA does.

    A kernel of more than two axes is a matrix of rows and columns. The last axis is the columns, as
    in convolutions. With three axes, the split whose smaller side is largest is used, as for the
    heads of attention.

    Example:
        >>> base = models.build("mlp", (8, 8, 1), 10, hidden=(16,))
        >>> model = models.lora(base, ["dense*"], rank=2, trained=["head"])
        >>> model.layers
        ('dense1_down', 'dense1_up', 'head')

    Args:
        model: The model. Weights that `starting_from` does not give are drawn: frozen ones with
            seed 0, trained ones with each seed.
        layers: The layers with adapters, by names or patterns such as `"*_attention/*"`. Layers
            without a kernel are frozen as they are.
        rank: The rank of the products.
        alpha: The scale of the products, times the rank; by default the rank.
        trained: The layers that are trained as they are, by names or patterns, or some of their
            weights: `["*/bias"]`, with no `layers`, is BitFit. They have no adapters.
        frozen_down: Whether `down` is frozen at its start, that of seed 0, as in FFA-LoRA.
        own_share: The share of a second adapter, `NAME_own_down` and `NAME_own_up`, as in FedDPA:
            the products count `1 - own_share` and `own_share`. Default: no second one.
        frozen_type: The type in which frozen kernels, but not embeddings, are kept. "bfloat16"
            takes half the memory. Use it with `compute_type="bfloat16"`, whose layers round kernels
            anyway, unless they have a `dtype`. In other models, kernels lose precision.

    Raises:
        ValueError: No layer has such a name or a kernel, or a layer of batch normalisation would
            be neither trained nor frozen.
    """
    scale = (rank if alpha is None else alpha) / rank
    shares = {"": 1.0} if own_share is None else {"": 1.0 - own_share, "_own": own_share}
    start = _start(model)
    kept = _trained(model, start, trained)
    adapters = [
        _Adapter(f"{name}{own}", name, weight, tuple(value.shape), scale * share)
        for name in model.matching(layers)
        for own, share in shares.items()
        for weight, value in start[name].items()
        if weight in _KERNELS and len(value.shape) > 1 and weight not in kept.get(name, ())
    ]
    if not (adapters or kept):
        raise ValueError(
            f"Nothing of {model.name!r} is trained: no layer of {layers} has a kernel."
        )
    parts = _Parts(model, start, kept, adapters, rank, frozen_down)
    made = model.in_terms_of(parts.init, parts.weights_of, parts.frozen(frozen_type))
    head = model.layers[-1]
    own_head = kept.get(head, set()) == start[head].keys()
    return dataclasses.replace(
        made,
        name=f"{model.name}_lora",
        starts_alike=parts.start_alike(),
        features=made.features if own_head else None,
        forward=made.forward if own_head else None,
    )


@dataclasses.dataclass(frozen=True)
class _Parts:
    """The parts, and the frozen weights, of which the weights of a model are computed.

    Attributes:
        model: The model.
        start: Its initial weights for seed 0, by layer.
        trained: The names of the weights that are trained as they are, by layer.
        adapters: The adapters of other weights.
        rank: Their rank.
        frozen_down: Whether their `down` is frozen.
    """

    model: Model
    start: Mapping[str, Mapping[str, Any]]
    trained: Mapping[str, set[str]]
    adapters: Sequence[_Adapter]
    rank: int
    frozen_down: bool

    def init(self, seed: int) -> Weights:
        """Returns the initial parts."""
        parts = self._all(seed)
        for name in self._frozen_parts():
            del parts[name]
        return parts

    def frozen(self, frozen_type: str) -> Any:
        """Returns the frozen weights of the model, by layer, and the frozen parts."""
        weights = {
            layer: {
                name: _as_type(frozen_type, value) if name in _NARROWED else value
                for name, value in self.start[layer].items()
                if name not in self.trained.get(layer, ())
            }
            for layer in self.start
        }
        names = self._frozen_parts()
        with _eager_mode():
            all_parts = self._all(0) if names else {}
        return {"weights": weights, "parts": {name: all_parts[name] for name in names}}

    def weights_of(self, parts: Weights, frozen: Any) -> Weights:
        """Returns the weights of the model."""
        parts, weights = {**parts, **frozen["parts"]}, collections.OrderedDict()
        for layer in self.start:
            own = dict(parts[layer]) if layer in self.trained else {}
            own |= {name: tf.cast(it, tf.float32) for name, it in frozen["weights"][layer].items()}
            weights[layer] = collections.OrderedDict(
                (name, own[name]) for name in self.start[layer]
            )
        for adapter in self.adapters:
            of_layer = weights[adapter.layer]
            of_layer[adapter.weight] = adapter.added(of_layer[adapter.weight], parts)
        return weights if isinstance(self.model.apply, TakesLowRank) else summed(weights)

    def start_alike(self) -> bool:
        """Returns whether all seeds give the same initial parts."""
        if self.adapters and not self.frozen_down:
            return False
        with _eager_mode():
            first, second = (tf.nest.flatten(self.init(seed)) for seed in (0, 1))
        return all(map(np.array_equal, first, second))

    def _all(self, seed):
        """Returns the initial parts, and those that are frozen."""
        drawn = initial(self.model.init, list(self.trained), seed)
        parts: dict[str, Any] = collections.OrderedDict()
        for layer in self.start:
            if layer in self.trained:
                parts[layer] = collections.OrderedDict(
                    (name, drawn[layer][name])
                    for name in self.start[layer]
                    if name in self.trained[layer]
                )
            for index, adapter in enumerate(self.adapters):
                if adapter.layer == layer:
                    for side, value in adapter.init(self.rank, [seed, index]).items():
                        part = parts.setdefault(f"{adapter.name}_{side}", collections.OrderedDict())
                        part[adapter.weight] = value
        return parts

    def _frozen_parts(self):
        return {f"{adapter.name}_down" for adapter in self.adapters if self.frozen_down}


def _as_type(frozen_type, kernel):
    """Returns a kernel in the type in which it is kept."""
    if frozen_type == "float32":
        return kernel
    return Frozen.of(array_of(kernel).astype(tf.as_dtype(frozen_type).as_numpy_dtype))


def _start(model: Model) -> Weights:
    """Returns the initial weights of a model for seed 0, large ones in files."""
    init: Any = model.init
    given: Mapping[str, Any] = init.weights if isinstance(init, Start) else {}
    with _eager_mode():
        drawn = initial(init, [name for name in model.layers if name not in given], 0)
    all_weights = {**given, **tf.nest.map_structure(Frozen.of, drawn)}
    return collections.OrderedDict((name, all_weights[name]) for name in model.layers)


def _trained(model, start, patterns) -> dict[str, set[str]]:
    """Returns the names of the weights that layers, or weights as `LAYER/WEIGHT`, match.

    Raises:
        ValueError: A layer of batch normalisation would be neither trained nor frozen.
    """
    patterns = [patterns] if isinstance(patterns, str) else patterns
    paths = {f"{layer}/{weight}" for layer in start for weight in start[layer]}
    of_layers = [pattern for pattern in patterns if not fnmatch.filter(paths, pattern)]
    of_name = model.matching(of_layers)  # an error with a similar name where nothing matches

    def is_trained(layer, weight):
        path = f"{layer}/{weight}"
        return layer in of_name or any(fnmatch.fnmatch(path, pattern) for pattern in patterns)

    found = {
        layer: {weight for weight in weights if is_trained(layer, weight)}
        for layer, weights in start.items()
    }
    for layer, weights in start.items():
        if {*STATISTICS} & weights.keys() - found[layer]:
            raise ValueError(
                f"The batch normalisation {layer!r} of model {model.name!r} would move its "
                "statistics, but not keep them. Add it to trained, or build it with "
                "trainable=False."
            )
    return {layer: weights for layer, weights in found.items() if weights}


def _num_row_axes(shape: Sequence[int]) -> int:
    """Returns how many axes of a kernel are the rows of a matrix."""
    if len(shape) != 3:
        return len(shape) - 1
    return max((2, 1), key=lambda axes: min(math.prod(shape[:axes]), math.prod(shape[axes:])))
