"""Marks the named tuples of a client's examples, whose rows a runtime may pad."""

from typing import TypeVar

_T = TypeVar("_T")
_containers: set[type] = set()


def may_be_padded(container: type[_T]) -> type[_T]:
    """Marks a class of named tuples whose tensors may have more rows than there are examples."""
    _containers.add(container)
    return container


def is_padded(container: type | None) -> bool:
    """Returns whether a class is marked."""
    return container in _containers
