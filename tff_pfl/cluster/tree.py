"""Merges values of parts in one order, in any process."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

Nodes = Mapping[tuple[int, int], Any]
"""Values of ranges of parts, by the number of parts and the first one."""


def folded(
    nodes: Nodes, active: Collection[int], num_parts: int, merge: Callable[[Any, Any], Any]
) -> dict[tuple[int, int], Any]:
    """Merges values of neighbours in a binary tree as far as all values of a branch are there.

    The tree is the same for any division of parts among processes, and so are rounding errors.

    Args:
        nodes: The values; a single part has the key `(1, part)`.
        active: The parts that have a value somewhere.
        num_parts: The number of all parts.
        merge: Merges two values, in order.

    Returns:
        The values that are left; only that of the whole, `(size, 0)`, if all values are there.
    """
    left, size = dict(nodes), 1
    while size < num_parts:
        for first in range(0, num_parts, 2 * size):
            branches = [(size, first), (size, first + size)]
            if all(it in left or not _has(active, it) for it in branches):
                values = [left.pop(it) for it in branches if it in left]
                if values:
                    left[2 * size, first] = values[0] if len(values) == 1 else merge(*values)
        size *= 2
    return left


def _has(active, branch):
    size, first = branch
    return any(first <= part < first + size for part in active)
