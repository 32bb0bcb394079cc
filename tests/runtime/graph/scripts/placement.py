"""Runs conformance cases on several devices, and finds the devices that execute operations."""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow.python.eager import context as eager_context

from tests.runtime.conformance import (
    cases_aggregations,
    cases_cohorts,
    cases_placements,
    cases_sequences,
)
from tests.runtime.conformance.cases import UNSTATED
from tests.runtime.conformance.test_conformance import built, check, outcome
from tff_pfl.numerics.host import on_host
from tff_pfl.runtime import create_graph_context

MODULES = (cases_placements, cases_aggregations, cases_cohorts, cases_sequences)


def wrong_cases(**options) -> list[str]:
    """Lists the cases whose results in a context with these options differ from the stated ones."""
    context, wrong = create_graph_context(keep_tensors=False, **options), []
    for case in (case for module in MODULES for case in module.case):
        run = built(case)
        if run.is_divisible and (case.raises or run.gives is not UNSTATED):
            try:
                check(case, outcome(context, run.function, run.args), run.gives)
            except Exception as error:
                wrong.append(f"{case.name}: {error!s:.500}")
    return wrong


@tff.tensorflow.computation(np.float32)
def log_gamma(x):
    return tf.math.lgamma(x)


@tff.tensorflow.computation(np.float32)
def digamma(x):
    return tf.math.digamma(x)


@tff.tensorflow.computation(np.float32)
def erfinv_on_host(x):
    """Computes `Erfinv` on the CPU, also in a loop."""
    with on_host():
        x = tf.math.erfinv(x)
        _, x = tf.while_loop(
            lambda i, _: i < 2, lambda i, x: (i + 1, tf.math.erfinv(x)), (tf.constant(0), x)
        )
    return x


@tff.federated_computation(tff.types.FederatedType(np.float32, tff.CLIENTS))
def marked(x):
    """Runs `Lgamma` at the clients, `Digamma` at the server, and `Erfinv` on the server's CPU."""
    total = tff.federated_map(digamma, tff.federated_sum(tff.federated_map(log_gamma, x)))
    return tff.federated_map(erfinv_on_host, total)


def _nodes(graph):
    return [*graph.node, *(node for f in graph.library.function for node in f.node_def)]


def executed_on(size, **options) -> dict[str, list[str]]:
    """Returns the devices on which TensorFlow executes the operations of `marked`."""
    context = create_graph_context(**options)
    eager_context.context().enable_run_metadata()
    with tff.framework.get_context_stack().install(context):
        marked([np.float32(i + 1.5) for i in range(size)])
    graphs = eager_context.context().export_run_metadata().partition_graphs
    eager_context.context().disable_run_metadata()
    return {
        op: sorted({node.device for graph in graphs for node in _nodes(graph) if node.op == op})
        for op in ("Lgamma", "Digamma", "Erfinv")
    }
