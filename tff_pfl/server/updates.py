"""Finalizers that several algorithms share."""

import collections

from tff_pfl.local import trees


def mean_update(learning_rate: float = 1.0):
    """A finalizer `w <- w + learning_rate * mean`, for uploads that are changes of `w`.

    With rate 1 and uploads `w_i - w` it is the weighted average of the `w_i`.
    """

    def finalize(weights, mean_change, round_num):
        del round_num
        step = trees.scale(mean_change, learning_rate) if learning_rate != 1.0 else mean_change
        return trees.add(weights, step), collections.OrderedDict()

    return finalize
