"""Compares rounds as this library computes them on the device with rounds of its loop."""

import contextlib
import functools
import os
import pathlib
import statistics
import tempfile
import time

from tff_pfl import config as configs
from tff_pfl.runtime.startup import prepare_process

prepare_process()

import numpy as np
import tensorflow as tf

from benchmarks.gpu.device import require
from benchmarks.gpu.report import CheckError, Report
from benchmarks.gpu.trainings import config_of
from benchmarks.workloads import installed
from tff_pfl import clients
from tff_pfl.runtime import create_graph_context

# The methods whose rounds are compared, in the order of their worth.
ALGORITHMS = ("fedavg", "ditto", "pgfed", "fedpg", "pfedmb", "plgu_lf", "scaffold", "pfedhn")
# XLA orders sums in its own way, and the steps of a round amplify the rounding.
_TOLERANCE = 1e-3
_ROUNDS, _COHORT = 20, 30


def compare_rounds(report: Report) -> None:
    """Compares the first round of each method, with unequal clients, with the loop's.

    Raises:
        CheckError: TensorFlow does not list a device.
    """
    tf.config.experimental.enable_tensor_float_32_execution(False)
    require(report)
    for algorithm in ALGORITHMS[:2] if report.is_toy else ALGORITHMS:
        report.do(algorithm, functools.partial(_compare, config_of(algorithm, report)))


def _compare(config):
    experiment = configs.experiment_of(config)
    # On GPUs, the default is compiled; at toy sizes, on CPUs, it is asked for.
    contexts = {
        "default": create_graph_context(jit_compile=True),
        "loop": create_graph_context(vectorize="never", jit_compile=False),
    }
    outputs, figures = {}, {}
    for way, context in contexts.items():
        with installed(context), _cohorts(experiment) as cohorts:
            process, number = experiment.process, experiment.clients_per_round
            state, cohort = process.initialize(), cohorts.select(number)
            for name in (f"first_{way}", way):
                start = time.perf_counter()
                output = process.next(state, cohort)
                figures[f"{name}_seconds"] = time.perf_counter() - start
        outputs[way] = output.state, output.clients, output.metrics
    difference = _difference(*outputs.values())
    if not difference <= _TOLERANCE:  # also true for NaN
        raise CheckError(f"The relative difference is {difference:.3g}, above {_TOLERANCE:g}.")
    return {"relative_difference": difference} | figures


def _difference(first, second) -> float:
    """Returns the largest difference, each relative to the largest number of its tensor."""
    pairs = zip(tf.nest.flatten(first), tf.nest.flatten(second), strict=True)
    differences = [0.0]
    for pair in pairs:
        a, b = (np.asarray(value, np.float64) for value in pair)
        if a.size:
            scale = max(float(np.max(np.abs(b))), np.finfo(np.float32).tiny)
            differences.append(float(np.max(np.abs(a - b))) / scale)
    return float(np.max(differences))


def count_compilations(report: Report) -> None:
    """Counts what XLA compiles in rounds of FedAvg with cohorts of other, unequal clients.

    Raises:
        CheckError: TensorFlow does not list a device.
    """
    dumped = pathlib.Path(tempfile.mkdtemp())
    os.environ["XLA_FLAGS"] = f"--xla_dump_to={dumped} --xla_dump_hlo_as_text"
    require(report)
    config = config_of("fedavg", report)
    number = config.clients_per_round if report.is_toy else _COHORT
    experiment, seconds, modules = configs.experiment_of(config), [], []
    process = experiment.process
    with installed(create_graph_context(jit_compile=True)), _cohorts(experiment) as cohorts:
        state = process.initialize()
        for _ in range(_ROUNDS):
            start = time.perf_counter()
            output = process.next(state, cohorts.select(number))
            cohorts.update(output.clients)
            state = output.state
            seconds.append(time.perf_counter() - start)
            modules.append(len(list(dumped.glob("*before_optimizations.txt"))))
            report.write(f"cohorts of {number}", _of_rounds(seconds, modules))


def _of_rounds(seconds, modules):
    compiled = np.diff(modules, prepend=0)
    later = [value for value, number in zip(seconds, compiled, strict=True) if not number]
    return {
        "rounds": len(seconds),
        "compilations": modules[-1],
        "rounds_that_compile": int(np.count_nonzero(compiled)),
        "first_seconds": seconds[0],
        "all_seconds": sum(seconds),
        "seconds_without_compiling": statistics.median(later) if later else None,
        "each_seconds": [round(value, 4) for value in seconds],
        "each_compilations": compiled.tolist(),
    }


@contextlib.contextmanager
def _cohorts(experiment):
    process, capacity = experiment.process, clients.Ladder(experiment.local.batch_size)
    with clients.ClientStateStore(process.initialize_clients, process.client_state_type) as store:
        source = clients.CohortDataSource(
            experiment.dataset, store, process.client_type, seed=0, capacity=capacity
        )
        yield source.iterator()
