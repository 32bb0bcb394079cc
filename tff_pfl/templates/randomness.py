"""Random numbers that no seed of a round controls, found in the graph of a block."""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tff_pfl.generators import shared_generators
from tff_pfl.models.randomness import described, unseeded_operations
from tff_pfl.templates import errors


def seeded_only(what: str, fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn`, which fails where it is traced if it draws numbers that differ from run to run.

    Args:
        what: Names the block in errors.
        fn: A function that is traced into the default graph.

    Raises:
        RandomnessError: When it is called; it names the operation.
    """

    @functools.wraps(fn)
    def traced(*args, **kwargs):
        before = shared_generators()
        result = fn(*args, **kwargs)
        if shared_generators() != before:
            raise errors.RandomnessError(
                f"{what} draws random numbers of NumPy's, or Python's, own generator: they are "
                "drawn once, where it is traced, and a run that is resumed or repeated would have "
                "others.\nTip: take tf.random.stateless_* with a seed, in client work that of the "
                "context."
            )
        for name, kind in unseeded_operations(tf.compat.v1.get_default_graph()):
            raise errors.RandomnessError(
                f"{what}: operation {name!r} of type {kind!r} {described(kind)}: a run that is "
                "resumed or repeated would have others.\n"
                "Tip: take tf.random.stateless_* with a seed, in client work that of the context; "
                "shuffle a data set with a seed; have TensorFlow compute what Python would."
            )
        return result

    return traced
