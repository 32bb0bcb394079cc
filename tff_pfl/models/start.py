"""Initial weights that are given."""

import dataclasses
from typing import Any

import tensorflow as tf

from tff_pfl.tracing.frozen import array_of


@dataclasses.dataclass(frozen=True)
class Start:
    """A function `(seed) -> W` that returns the same weights for every seed.

    Attributes:
        weights: The weights: arrays, or `Frozen` ones in files.
    """

    weights: Any

    def __call__(self, seed: int) -> Any:
        """Returns the weights, in graphs as constants."""
        return tf.nest.map_structure(lambda leaf: tf.constant(array_of(leaf)), self.weights)

    def zeros(self) -> Any:
        """Returns zeros like the weights, of which only shapes and types matter."""
        return tf.nest.map_structure(lambda leaf: tf.zeros(leaf.shape, leaf.dtype), self.weights)
