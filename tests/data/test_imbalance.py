"""Tests long-tailed classes, and their partitions among clients."""

import numpy as np
import pytest

from tests.marks import together
from tff_pfl.data import SPLITS, LabelledImages, PartitionError, federate
from tff_pfl.data.imbalance import long_tailed, long_tailed_sizes

NUM_CLASSES, NUM_TRAIN, NUM_TEST = 5, 1000, 250
LABELS = np.arange(NUM_TRAIN + NUM_TEST, dtype=np.int32) % NUM_CLASSES
WRITER = np.arange(len(LABELS), dtype=np.int32) % 7
IMAGES = LabelledImages(
    "toy", np.zeros((len(LABELS), 2, 2, 1), np.uint8), LABELS, NUM_CLASSES, NUM_TRAIN, WRITER
)
FACTOR = 16.0
# A class has 200 training and 50 test examples; it keeps 16 ** (-i / 4) = 2 ** -i of them.
TAIL_OF_TRAIN, TAIL_OF_TEST = [200, 100, 50, 25, 12], [50, 25, 12, 6, 3]
TAIL_OF_POOL = [250, 125, 62, 31, 15]
HOW = {
    "dirichlet": {"num_clients": 4, "partition_args": {"alpha": 0.5, "min_examples": 3}},
    "classes_per_client": {"num_clients": 5, "partition_args": {"classes": 2}},
    "iid": {"num_clients": 6},
    "natural": {},
}


def made(partitioner, *, seed=1, imbalance=FACTOR, **options):
    how = HOW[partitioner] | options
    return federate(IMAGES, partitioner=partitioner, seed=seed, imbalance=imbalance, **how)


def counts(dataset, split):
    return dataset.class_counts(split).sum(axis=0).tolist()


def test_sizes_equal_long_tailed_cifar_of_the_paper():
    """Cao et al., factor 100: 12,406 images of CIFAR-10, 10,847 of CIFAR-100."""
    sizes = long_tailed_sizes(np.full(10, 5000), 100)
    assert sizes.tolist() == [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
    assert long_tailed_sizes(np.full(100, 500), 100).sum() == 10_847


@together("factor", [1, 2.5, 40])
def test_sizes_fall_exponentially_for_unequal_classes(factor):
    original = np.random.default_rng(3).integers(90, 400, 8)
    sizes = long_tailed_sizes(original, factor)
    assert (sizes <= original).all()
    assert (np.diff(sizes) <= 0).all()
    # Sizes are as large as possible: one class is left whole, up to rounding.
    assert (original - sizes).min() <= 1
    ideal = sizes[0] * factor ** (-np.arange(8) / 7)
    assert (abs(sizes - ideal) <= 1).all()


def test_error_names_the_largest_possible_factor():
    sizes = np.array([400, 30, 350, 90])  # 30 ** (3 / 2) = 164.3
    with pytest.raises(PartitionError, match="of 170 leaves the last of 4 .* 30 .* at most 164.3."):
        long_tailed_sizes(sizes, 170)
    with pytest.raises(PartitionError, match="at most 14.6."):  # 14.697
        long_tailed_sizes(np.array([100, 6, 100, 100]), 15)
    assert long_tailed_sizes(np.array([100, 6, 100, 100]), 14.6)[-1] == 1
    assert long_tailed_sizes(sizes, 164).tolist() == [164, 30, 5, 1]


def test_long_tailed_draws_rows_of_each_class():
    rng = np.random.default_rng
    rows = long_tailed(LABELS, FACTOR, rng(0))
    assert np.bincount(LABELS[rows]).tolist() == TAIL_OF_POOL
    assert (np.diff(rows) > 0).all()
    np.testing.assert_array_equal(rows, long_tailed(LABELS, FACTOR, rng(0)))
    assert not np.array_equal(rows, long_tailed(LABELS, FACTOR, rng(1)))
    np.testing.assert_array_equal(long_tailed(LABELS, 1, rng(0)), np.arange(len(LABELS)))
    assert long_tailed(LABELS[:0], FACTOR, rng(0)).size == 0
    assert long_tailed(LABELS[::NUM_CLASSES], FACTOR, rng(0)).size == 250  # a single class


@pytest.mark.parametrize("partitioner", ["classes_per_client", "natural"])
def test_merged_splits_are_long_tailed_together(partitioner):
    dataset = made(partitioner, fractions=(3, 1, 1))
    of_all = sum(np.array(counts(dataset, split)) for split in SPLITS)
    assert of_all.tolist() == TAIL_OF_POOL
    rows = np.concatenate([part for split in SPLITS for part in getattr(dataset.partition, split)])
    assert len(np.unique(rows)) == len(rows)
    again, other = (made(partitioner, fractions=(3, 1, 1), seed=seed) for seed in (1, 2))
    assert again.fingerprint == dataset.fingerprint != other.fingerprint


@together(
    ("partitioner", "imbalanced_test"),
    [("dirichlet", True), ("iid", False), ("natural", True), ("natural", False)],
)
def test_test_split_is_long_tailed_or_whole(partitioner, imbalanced_test):
    dataset = made(partitioner, merge=False, num_validation=40, imbalanced_test=imbalanced_test)
    trained = np.array(counts(dataset, "train")) + counts(dataset, "validation")
    assert trained.tolist() == TAIL_OF_TRAIN
    assert sum(counts(dataset, "validation")) == 40
    assert counts(dataset, "test") == (TAIL_OF_TEST if imbalanced_test else [50] * NUM_CLASSES)
    test = np.concatenate(dataset.partition.test)
    assert (test >= NUM_TRAIN).all()
    # A client with test examples of a class also trains on it, except natural clients.
    if partitioner != "natural":
        assert not dataset.class_counts("test")[dataset.class_counts("train") == 0].any()


@pytest.mark.parametrize("merge", [True, False])
def test_without_imbalance_nothing_changes(merge):
    plain = federate(IMAGES, partitioner="iid", seed=1, merge=merge, num_clients=6)
    for imbalanced_test in (True, False):
        options = {"imbalance": 1.0, "imbalanced_test": imbalanced_test, "merge": merge}
        assert made("iid", **options).fingerprint == plain.fingerprint


def test_impossible_imbalances_are_refused():
    with pytest.raises(ValueError, match="imbalance=16 and merge=True, .* merge=False"):
        made("iid", imbalanced_test=False)
    message = "num_validation=387 must be fewer than the 387 .* imbalance=16"
    with pytest.raises(PartitionError, match=message):
        made("iid", imbalanced_test=False, merge=False, num_validation=387)
