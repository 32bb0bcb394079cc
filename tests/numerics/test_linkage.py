"""Tests `tff_pfl.numerics.linkage` against SciPy, and against all bipartitions."""

import functools
import itertools

import numpy as np
import pytest
import scipy.cluster.hierarchy
import scipy.spatial.distance
import tensorflow as tf

from tff_pfl.numerics.linkage import LINKAGES, bipartition

SETS = np.array([0, 2, 0, -1, 2, 0, 1, 0, 2, 0, 3, 0, 2, 3, 2, 2])
SPECS = [tf.TensorSpec([None, None], tf.float64), tf.TensorSpec([None], tf.int32)]
SPLITS = {
    linkage: tf.function(functools.partial(bipartition, linkage=linkage), SPECS, autograph=False)
    for linkage in LINKAGES
}


def split(similarity, sets, linkage):
    return SPLITS[linkage](similarity, np.int32(sets)).numpy()


def cosines(seed, dim=3):
    vectors = np.random.default_rng(seed).normal(size=(len(SETS), dim))
    return 1 - scipy.spatial.distance.squareform(scipy.spatial.distance.pdist(vectors, "cosine"))


def parts_of(similarity, linkage):
    """Returns which items are in the second part, by SciPy's dendrogram."""
    distances = scipy.spatial.distance.squareform(1 - similarity, checks=False)
    tree = scipy.cluster.hierarchy.linkage(distances, linkage)
    labels = scipy.cluster.hierarchy.cut_tree(tree, n_clusters=2)[:, 0]
    return labels != labels[0]


@pytest.mark.parametrize("linkage", LINKAGES)
def test_parts_agree_with_scipy(linkage):
    """Sets have six, one, six and two items, and one item is in none."""
    for seed in range(10):
        similarity = cosines(seed)
        found = split(similarity, SETS, linkage)
        for number in (0, 2, 3):
            items = np.flatnonzero(number == SETS)
            expected = parts_of(similarity[np.ix_(items, items)], linkage)
            np.testing.assert_array_equal(found[items], expected)
        assert not np.any(found[(SETS == 1) | (SETS < 0)])


def test_parts_of_single_linkage_are_the_least_similar():
    def most(similarity, is_second):
        return np.max(similarity[is_second][:, ~is_second])

    for seed in range(5):
        similarity = cosines(seed)[:6, :6]
        found = split(similarity, np.zeros(6), "single")
        others = itertools.product([False, True], repeat=5)
        candidates = [np.array([False, *other]) for other in others if any(other)]
        least = min(most(similarity, candidate) for candidate in candidates)
        assert most(similarity, found) == pytest.approx(least)


def test_equal_pairs_and_nothing_are_split():
    found = [split(np.ones([k, k]), np.zeros(k), "complete").tolist() for k in range(4)]
    assert found == [[], [False], [False, True], [False, False, True]]
