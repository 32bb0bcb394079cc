"""Initial weights that are given."""

import collections
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tff_pfl.tracing.frozen import array_of


@dataclasses.dataclass(frozen=True)
class Start:
    """A function `(seed) -> W` that returns given weights, and draws those of other layers.

    Attributes:
        weights: The given weights by layer: arrays, or `Frozen` ones in files.
        layers: The names of all layers, in the order of `W`.
        draw: `(seed) -> W`, the initial weights where they are not given.
    """

    weights: Mapping[str, Mapping[str, Any]]
    layers: tuple[str, ...]
    draw: Callable[[int], Any]

    def __call__(self, seed: int) -> Any:
        """Returns the weights, in graphs as constants."""
        return self.of(self.layers, seed)

    def of(self, layers: Sequence[str], seed: int) -> Any:
        """Returns the weights of some layers, without constants of the others."""
        return self._of(layers, seed, lambda leaf: tf.constant(array_of(leaf)))

    def zeros(self) -> Any:
        """Returns zeros like the weights, of which only shapes and types matter."""
        return self._of(self.layers, 0, lambda leaf: tf.zeros(leaf.shape, leaf.dtype))

    def _of(self, layers, seed, made):
        drawn = initial(self.draw, [name for name in layers if name not in self.weights], seed)
        return collections.OrderedDict(
            (name, tf.nest.map_structure(made, self.weights[name]))
            if name in self.weights
            else (name, drawn[name])
            for name in layers
        )


def initial(init: Callable[[int], Any], layers: Sequence[str], seed: int) -> Any:
    """Returns the initial weights of some layers, whatever the kind of the model's `init`."""
    if isinstance(init, Start):
        return init.of(layers, seed)
    drawn = init(seed) if layers else {}
    return collections.OrderedDict((name, drawn[name]) for name in layers)
