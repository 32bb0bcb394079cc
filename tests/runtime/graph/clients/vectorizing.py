"""Runs computations, and applies functions to all clients together and to each client alone."""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl import runtime
from tff_pfl.runtime.graph import compilation
from tff_pfl.runtime.graph.clients import vectorization


def run(computation, *args, **options):
    """Runs a computation in a graph context with these options."""
    with tff.framework.get_context_stack().install(runtime.create_graph_context(**options)):
        return computation(*args)


def vectorize(function, *stacks, jit_compile=False):
    """Applies `function` to each row, in a graph with an unknown number of rows."""
    stacks = [tf.constant(stack) for stack in stacks]
    specs = [tf.TensorSpec(stack.shape[1:], stack.dtype) for stack in stacks]
    axis = stacks[0].shape[0] if jit_compile else None
    found, names = [], {} if jit_compile else None

    @tf.function(
        autograph=False,
        jit_compile=jit_compile,
        input_signature=[tf.TensorSpec([axis, *spec.shape], spec.dtype) for spec in specs],
    )
    def run(*stacks):
        def flat(*rows):
            found.append(function(*rows))
            return tf.nest.flatten(found[-1])

        one = tf.function(flat).get_concrete_function(*specs)
        return vectorization.vectorize(one, tf.shape(stacks[0])[0], stacks, jit_compile, names)

    results = run(*stacks)
    if jit_compile:
        results = compilation.raising(results, names)
    return tf.nest.pack_sequence_as(found[-1], results)


def alone(function, *stacks):
    results = [function(*map(tf.constant, row)) for row in zip(*stacks, strict=True)]
    return tf.nest.map_structure(lambda *leaves: tf.stack(leaves), *results)


def in_loop(function):
    """Returns a function that runs `function` in a loop; its first argument is the steps."""

    def run(steps, *args):
        nothing = tf.nest.map_structure(tf.zeros_like, function(*args))
        _, result = tf.while_loop(
            lambda i, _: i < steps, lambda i, _: (i + 1, function(*args)), (0, nothing)
        )
        return result

    return run


def normal(*shape):
    return np.random.default_rng(shape).normal(size=shape).astype(np.float32)
