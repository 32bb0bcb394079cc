"""Long-tailed classes: a data set whose classes are of exponentially falling sizes. Pure NumPy."""

import numpy as np

from tff_pfl.data.partition import PartitionError
from tff_pfl.ranges import at_least, takes

_ROUNDING = 1e-9  # what a product of floats may be below the integer that it stands for


@takes(range_error=PartitionError, factor=at_least(1))
def long_tailed_sizes(class_sizes: np.ndarray, factor: float) -> np.ndarray:
    """Computes how many examples of each class are left, so that sizes fall exponentially.

    Of C classes, class i keeps `m * factor ** (-i / (C - 1))` examples, rounded down: the first
    one is the most frequent, and the last one has 1/factor of its examples. That is the long-tailed
    imbalance of Cao et al., "Learning imbalanced datasets with label-distribution-aware margin
    loss", NeurIPS 2019, with m the size of the classes. Where these differ, m is the largest number
    for which every class has enough.

    Args:
        class_sizes: int `[C]`, examples of each class, at least 1.
        factor: The factor of imbalance, at least 1, which leaves classes of one size.

    Raises:
        PartitionError: The factor is out of range, or leaves a class without an example.
    """
    class_sizes = np.asarray(class_sizes)
    places = np.linspace(0, 1, len(class_sizes))
    largest = (class_sizes[:-1] ** (1 / (1 - places[:-1]))).min(initial=np.inf)
    if factor > largest:
        raise PartitionError(
            f"An imbalance of {factor:g} leaves the last of {len(class_sizes)} classes, which have "
            f"{class_sizes.min()} examples or more, without any. Choose at most "
            f"{np.floor(10 * largest) / 10:.1f}."
        )
    shares = (1 / factor) ** places
    most = (class_sizes / shares).min(initial=np.inf)
    return np.floor(most * shares + _ROUNDING).astype(np.int64)


def long_tailed(labels: np.ndarray, factor: float, rng: np.random.Generator) -> np.ndarray:
    """Draws the examples that are left of a pool whose classes are made long-tailed.

    Args:
        labels: int `[n]` class labels of the pool; the classes are in the order of their numbers.
        factor: See `long_tailed_sizes`.
        rng: Source of all randomness.

    Returns:
        int64 row numbers of the pool, in ascending order.

    Raises:
        PartitionError: See `long_tailed_sizes`.
    """
    classes, class_sizes = np.unique(labels, return_counts=True)
    rows = [
        rng.permutation(np.flatnonzero(labels == label))[:size]
        for label, size in zip(classes, long_tailed_sizes(class_sizes, factor), strict=True)
    ]
    return np.sort(np.concatenate([np.empty(0, np.int64), *rows]))
