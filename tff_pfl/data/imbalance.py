"""Makes the classes of a data set long-tailed: their sizes fall exponentially. Pure NumPy."""

import numpy as np

from tff_pfl.arguments.ranges import at_least, takes
from tff_pfl.data.partition import PartitionError

_ROUNDING = 1e-9  # how far below its exact integer a product of floats may be


@takes(PartitionError, factor=at_least(1))
def long_tailed_sizes(class_sizes: np.ndarray, factor: float) -> np.ndarray:
    """Computes the number of examples that each class keeps; these numbers fall exponentially.

    Class i of C classes keeps `m * factor ** (-i / (C - 1))` examples, rounded down. The first
    class is the most frequent, and the last class has 1/factor as many examples. With m the size of
    the classes, these are the long-tailed sizes of Cao et al., "Learning imbalanced datasets with
    label-distribution-aware margin loss", NeurIPS 2019. If the classes differ in size, m is the
    largest number for which every class has enough examples.

    Args:
        class_sizes: int `[C]`, examples of each class, at least 1.
        factor: The factor of imbalance, at least 1. With 1, all classes keep m examples.

    Returns:
        int64 `[C]`, the examples that each class keeps.

    Raises:
        PartitionError: The factor is out of range, or leaves a class without an example.
    """
    class_sizes = np.asarray(class_sizes)
    places = np.linspace(0, 1, len(class_sizes))
    largest = (class_sizes[:-1] ** (1 / (1 - places[:-1]))).min(initial=np.inf)
    if factor > largest:
        raise PartitionError(
            f"An imbalance of {factor:g} leaves the last of {len(class_sizes)} classes without an "
            f"example; the smallest class has {class_sizes.min()} examples. Choose an imbalance of "
            f"at most {np.floor(10 * largest) / 10:.1f}."
        )
    shares = (1 / factor) ** places
    most = (class_sizes / shares).min(initial=np.inf)
    return np.floor(most * shares + _ROUNDING).astype(np.int64)


def long_tailed(labels: np.ndarray, factor: float, rng: np.random.Generator) -> np.ndarray:
    """Draws the examples that a pool keeps when its classes are made long-tailed.

    Args:
        labels: int `[n]` class labels of the pool; lower labels are more frequent classes.
        factor: See `long_tailed_sizes`.
        rng: Source of all randomness.

    Returns:
        int64 row numbers of the examples kept, in ascending order.

    Raises:
        PartitionError: See `long_tailed_sizes`.
    """
    classes, class_sizes = np.unique(labels, return_counts=True)
    rows = [
        rng.permutation(np.flatnonzero(labels == label))[:size]
        for label, size in zip(classes, long_tailed_sizes(class_sizes, factor), strict=True)
    ]
    return np.sort(np.concatenate([np.empty(0, np.int64), *rows]))
