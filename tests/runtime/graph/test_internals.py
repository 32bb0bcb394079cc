"""Tests of what the graph executor has of TensorFlow that is not public."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.runtime import create_graph_context
from tff_pfl.runtime.graph import internals


@tff.tensorflow.computation(np.float32)
def double(x):
    return 2 * x


@pytest.fixture
def options_of_calls(monkeypatch):
    """What Grappler is told by each call of a graph."""
    told = []
    execute = internals._execute.execute_with_cancellation

    def watched(name, *, attrs, **call):
        config = dict(zip(attrs[::2], attrs[1::2], strict=True))["config_proto"]
        told.append(tf.compat.v1.ConfigProto.FromString(config).graph_options.rewrite_options)
        return execute(name, attrs=attrs, **call)

    monkeypatch.setattr(internals._execute, "execute_with_cancellation", watched)
    return told


def test_graphs_are_optimized_once_and_else_as_a_program_says(options_of_calls):
    def run():
        with tff.framework.get_context_stack().install(create_graph_context()):
            assert double(2.0) == 4
        return options_of_calls[-1]

    default = run()
    tf.config.optimizer.set_experimental_options({"remapping": False})
    try:
        changed = run()
    finally:
        tf.config.optimizer.set_experimental_options({"remapping": True})
    assert default.meta_optimizer_iterations == changed.meta_optimizer_iterations == default.ONE
    assert (default.remapping, changed.remapping) == (default.DEFAULT, default.OFF)
