"""Measures rounds of algorithms beside FedAvg's: their seconds and their multiplications."""

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import gen_math_ops

from benchmarks.contenders import Round, tff_pfl_algorithm, within
from benchmarks.timing import in_turns, ratio, spread
from benchmarks.unequal import unequal_data
from benchmarks.workloads import Workload
from tff_pfl.tracing import randomness

_BASELINE = "fedavg"


def measure(
    workload: Workload, algorithms: Sequence[str], rounds: int, warmup: int = 2
) -> Iterator[dict[str, Any]]:
    """Yields a record of each algorithm, whose rounds take turns with those of FedAvg.

    Args:
        workload: The model and the training. Clients are of unequal sizes, whose mean is
            `examples_per_client`, and all of them take part in all rounds.
        algorithms: The names of the algorithms, which have their default options.
        rounds: The number of measured rounds.
        warmup: The number of rounds before these, as first rounds may do other work.
    """
    data = unequal_data(workload)
    baseline = _rounds(_BASELINE, workload, data, "graph_compiled")
    counted = functools.partial(multiplications, workload, data, warmup + 1)
    baseline_count = counted(_BASELINE)
    for name in algorithms:
        runs = {"baseline": baseline, name: _rounds(name, workload, data, "graph_compiled")}
        seconds = in_turns(name, runs, rounds=rounds, warmup=warmup)
        found, expected = spread(seconds[name]), spread(seconds["baseline"])
        yield {
            "algorithm": name,
            "seconds_per_round": found,
            "times_fedavg": ratio(found, expected),
            "multiplications_times_fedavg": round(counted(name) / baseline_count, 3),
        }


def multiplications(workload: Workload, data, rounds: int, name: str) -> int:
    """Returns the multiplications of matrix products in the last of some rounds."""
    counts = [0]
    with _counting(counts):
        run = _rounds(name, workload, data, "graph_loop")
        for _ in range(rounds):
            before = counts[0]
            run()
    return counts[0] - before


def _rounds(name, workload, data, runtime) -> Round:
    return within(runtime, functools.partial(tff_pfl_algorithm, name))(workload, *data)


@contextlib.contextmanager
def _counting(counts: list[int]) -> Iterator[None]:
    """Adds the multiplications of all products of matrices to `counts[0]`, also in graphs."""
    mat_mul, batch_mat_mul = gen_math_ops.mat_mul, gen_math_ops.batch_mat_mul_v2

    def add(product, inner):
        counts[0] += product.size * int(inner)
        return np.float32(1)

    def counted(product, inner):
        # Stateless, so that TensorFlow still leaves out products that nothing needs.
        one = tf.numpy_function(add, [product, inner], tf.float32, stateful=False)
        return product * tf.cast(tf.stop_gradient(tf.ensure_shape(one, [])), product.dtype)

    def product(a, b, transpose_a=False, *args, **kwargs):
        inner = tf.shape(a)[0 if transpose_a else 1]
        return counted(mat_mul(a, b, transpose_a, *args, **kwargs), inner)

    def batch_product(x, y, adj_x=False, *args, **kwargs):
        inner = tf.shape(x)[-2 if adj_x else -1]
        return counted(batch_mat_mul(x, y, adj_x, *args, **kwargs), inner)

    with (
        mock.patch.multiple(gen_math_ops, mat_mul=product, batch_mat_mul_v2=batch_product),
        mock.patch.object(randomness, "_UNSEEDED", ()),  # which refuses Python in models
    ):
        yield
