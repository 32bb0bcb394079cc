"""Joins the arrays of clients to the arrays of a data set."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import tree

from tff_pfl.data.checks import ExamplesError, alike, arrays_of, checked_weights
from tff_pfl.data.class_labels import as_classes
from tff_pfl.data.partition_file import Partition


def joined_arrays(
    clients: Iterable[tuple] | Mapping[int | str, tuple], num_classes: int | None
) -> tuple[Any, Any, Partition, np.ndarray | None, np.ndarray | None]:
    """Returns `(x, y, partition, names of classes, weights)`, see `from_client_arrays`."""
    names = list(clients) if isinstance(clients, Mapping) else None
    given = list(clients.values() if isinstance(clients, Mapping) else clients)
    if not given:
        raise ExamplesError("There are no clients: pass at least one tuple of arrays.")
    inputs: list[Any] = []
    labels: list[Any] = []
    weights: list[Any] = []
    for i, arrays in enumerate(given):
        if len(arrays) not in (4, 6):
            raise ExamplesError(
                f"client {i} must be (x_train, y_train, x_test, y_test), found {len(arrays)} "
                "values; a weight may follow each y. To have validation examples, make a Partition "
                "instead."
            )
        if len(arrays) != len(given[0]):
            raise ExamplesError(
                f"client {i} has {len(arrays)} arrays, but client 0 has {len(given[0])}. Give "
                "the examples of all clients weights, or none."
            )
        of_split = len(arrays) // 2
        inputs += [arrays_of(rows, f"client {i}") for rows in arrays[0::of_split]]
        labels += arrays[1::of_split]
        weights += arrays[2::of_split] if of_split == 3 else []
    labels, class_names = as_classes(labels, num_classes)
    pairs = alike(list(zip(inputs, labels, strict=True)), num_classes)
    sizes = [len(tree.flatten(x)[0]) for x, _ in pairs]
    rows = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    none = tuple(np.empty(0, np.int64) for _ in given)
    partition = Partition(tuple(rows[0::2]), none, tuple(rows[1::2]), names=names)
    x, y = tree.map_structure(lambda *arrays: np.concatenate(arrays), *pairs)
    if not weights:
        return x, y, partition, class_names, None
    checked = [
        checked_weights(rows, size, f"client {i // 2}, {'test' if i % 2 else 'train'}")
        for i, (rows, size) in enumerate(zip(weights, sizes, strict=True))
    ]
    return x, y, partition, class_names, np.concatenate(checked)
