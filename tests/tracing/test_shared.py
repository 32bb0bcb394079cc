"""Tests traces that graphs share."""

import gc
import weakref

import tensorflow as tf

from tff_pfl.tracing.shared import SharedTraces


def test_traces_are_kept_until_they_are_released():
    calls = []

    def twice(x):
        calls.append(x)
        return 2.0 * x

    function, spec = SharedTraces(twice), tf.TensorSpec([])
    first = function.of(spec)
    assert function.of(spec) is first and function.of(tf.TensorSpec([3])) is not first
    assert len(calls) == 2
    calls.clear()
    SharedTraces.release()
    assert first(tf.constant(3.0)) == 6.0
    graph = weakref.ref(first.graph)
    del first
    gc.collect()
    assert graph() is None
    assert function.of(spec)(tf.constant(4.0)) == 8.0 and len(calls) == 1
