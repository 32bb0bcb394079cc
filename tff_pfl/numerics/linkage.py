"""Splits sets of items in two by the similarity of pairs, by agglomerative clustering.

Each item starts as a group of its own. The two groups of a set that are most similar merge, until
two are left. The similarity of groups is that of their most similar pair of items ("single"
linkage), or of their least similar pair ("complete" linkage).

Single linkage is optimal: no other two parts of a set have a lower similarity of their most similar
pair of items.
"""

import tensorflow as tf

LINKAGES = {"single": tf.maximum, "complete": tf.minimum}


def bipartition(similarity: tf.Tensor, sets: tf.Tensor, linkage: str) -> tf.Tensor:
    """Returns which items are in the second part of their set, bool `[k]`.

    The first part has the first item of the set. Among equally similar pairs, the first one merges.

    Args:
        similarity: `[k, k]`, symmetric and finite. `k` may be 0.
        sets: int32 `[k]`, the set of each item; negative for an item of none, which is in no part.
        linkage: "single" or "complete".
    """
    of_merged, least = LINKAGES[linkage], tf.constant(-float("inf"), similarity.dtype)
    numbers = tf.range(tf.size(sets))
    in_set = tf.equal(sets, sets[:, tf.newaxis]) & (sets >= 0)

    def mergeable(similarity, groups):
        """Returns the similarity of groups in sets of more than two, and otherwise `least`."""
        is_group = tf.equal(groups, numbers)
        num_groups = tf.reduce_sum(tf.cast(in_set & is_group, tf.int32), axis=1)
        return tf.where(num_groups[:, tf.newaxis] > 2, similarity, least)

    def merge(similarity, groups):
        """Merges the most similar groups; each has the number of its first item."""
        pair = tf.argmax(tf.reshape(mergeable(similarity, groups), [-1]), output_type=tf.int32)
        i, j = pair // tf.size(sets), pair % tf.size(sets)
        is_i, is_j = tf.equal(numbers, i), tf.equal(numbers, j)
        row = tf.where(is_i | is_j, least, of_merged(similarity[i], similarity[j]))
        similarity = tf.where(is_j | is_j[:, tf.newaxis], least, similarity)
        similarity = tf.where(is_i, row[:, tf.newaxis], similarity)
        similarity = tf.where(is_i[:, tf.newaxis], row, similarity)
        return similarity, tf.where(tf.equal(groups, j), i, groups)

    is_pair = in_set & tf.not_equal(numbers, numbers[:, tf.newaxis])
    _, groups = tf.while_loop(
        lambda *state: tf.reduce_any(mergeable(*state) > least),
        merge,
        (tf.where(is_pair, similarity, least), numbers),
    )
    first = tf.reduce_min(tf.where(in_set, numbers, tf.int32.max), axis=1)
    return (sets >= 0) & tf.not_equal(groups, first)
