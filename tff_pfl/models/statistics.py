"""Moving statistics of batch normalisation, as entries of weights that no gradient moves.

The weights `moving_mean` and `moving_variance` of a layer are its moving statistics. Their
gradients are zero; a step of training assigns them. All functions take weights `W`, or any
structure that contains layers, and return it unchanged if there are no statistics.
"""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
import tree

VARIANCE = "moving_variance"
STATISTICS = ("moving_mean", VARIANCE)

_USES: contextvars.ContextVar[set[str] | None] = contextvars.ContextVar("uses", default=None)


@contextlib.contextmanager
def recorded_uses() -> Iterator[set[str]]:
    """Yields the set of what models compute inside, which may have two entries.

    "gradient" is a gradient in training of a model with batch normalisation, whose statistics it
    does not give; "assigned" are weights with statistics after a step, of any model.
    """
    uses: set[str] = set()
    token = _USES.set(uses)
    try:
        yield uses
    finally:
        _USES.reset(token)


def record_use(use: str) -> None:
    """Adds to the set of `recorded_uses`, if there is one."""
    if (uses := _USES.get()) is not None:
        uses.add(use)


def fixed(name: str, weight: tf.Tensor) -> tf.Tensor:
    """Returns a statistic as a constant of gradients; a negative variance becomes 0."""
    weight = tf.stop_gradient(weight)
    return tf.maximum(weight, 0.0) if name == VARIANCE else weight


def with_statistics(weights: Any, assigned: Any) -> Any:
    """Returns `weights` with the statistics of `assigned`, a structure with the same paths."""
    found = {path: leaf for path, leaf in tree.flatten_with_path(assigned) if _is_statistic(path)}
    if not found:
        return weights
    return tree.map_structure_with_path(lambda path, leaf: found.get(path, leaf), weights)


def without_statistics(weights: Any) -> Any:
    """Returns `weights` with zeros instead of statistics."""
    if not has_statistics(weights):
        return weights
    return tree.map_structure_with_path(
        lambda path, leaf: tf.zeros_like(leaf) if _is_statistic(path) else leaf, weights
    )


def with_valid_variances(weights: Any) -> Any:
    """Returns `weights` with negative moving variances, which noise may cause, set to 0."""
    if not has_statistics(weights):
        return weights
    return tree.map_structure_with_path(
        lambda path, leaf: tf.maximum(leaf, 0.0) if path[-1:] == (VARIANCE,) else leaf, weights
    )


def only_statistics(weights: Any) -> dict[str, dict[str, tf.Tensor]]:
    """Returns the statistics of weights `W`, by layer and name. Without any it is empty."""
    found = {}
    for layer, own in weights.items():
        if statistics := {name: own[name] for name in STATISTICS if name in own}:
            found[layer] = statistics
    return found


def has_statistics(weights: Any) -> bool:
    """Returns whether some layer has moving statistics."""
    return any(_is_statistic(path) for path, _ in tree.flatten_with_path(weights))


def trained_leaves(weights: Any) -> list:
    """Returns all tensors that are not statistics."""
    if not has_statistics(weights):
        return tf.nest.flatten(weights)
    return [leaf for path, leaf in tree.flatten_with_path(weights) if not _is_statistic(path)]


def _is_statistic(path):
    return bool(path) and path[-1] in STATISTICS
