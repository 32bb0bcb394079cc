"""Compares compiled rounds on the device with those of a loop, and times rounds of each way."""

import contextlib
import functools
import itertools
import os
import pathlib
import statistics
import tempfile
import time
from collections.abc import Iterator

from tff_pfl import config as configs
from tff_pfl.runtime.startup import prepare_process

prepare_process()

import numpy as np
import tensorflow as tf

from benchmarks.gpu.device import require
from benchmarks.gpu.report import CheckError, Report
from benchmarks.gpu.trainings import config_of
from benchmarks.workloads import installed
from tff_pfl import clients, runtime

# How rounds are computed: options of `create_graph_context`. On CPUs, the first are as on GPUs.
WAYS: dict[str, dict] = {
    "compiled": {"vectorize": "always"},
    "uncompiled": {"vectorize": "always"},
    "loop": {"vectorize": "never", "jit_compile": False},
}
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
    outputs, figures = {}, {}
    for way in ("compiled", "loop"):
        with rounds_of(experiment, way) as cohorts:
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
    with rounds_of(experiment, "compiled") as cohorts:
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


def time_rounds(report: Report) -> None:
    """Times the first, the tenth and the hundredth round of trainings of unequal clients.

    Raises:
        CheckError: TensorFlow does not list a device.
    """
    tf.config.experimental.enable_tensor_float_32_execution(False)
    require(report)
    tasks = list(itertools.product(ALGORITHMS[:2] if report.is_toy else ALGORITHMS[:4], WAYS))
    for index, (algorithm, way) in enumerate(tasks):
        seconds = report.left() / (len(tasks) - index)
        timed = functools.partial(_timed, config_of(algorithm, report), way, seconds)
        report.do(f"{algorithm}, {way}", timed)


def _timed(config, way, limit):
    """Times rounds until the hundredth, or until the first one that ends after the limit."""
    experiment, figures = configs.experiment_of(config), {}
    start = time.perf_counter()
    with rounds_of(experiment, way) as cohorts:
        process = experiment.process
        state = process.initialize()
        for number in range(1, 101):
            before = time.perf_counter()
            output = process.next(state, cohorts.select(experiment.cohort_size))
            cohorts.update(output.clients)
            state, now = output.state, time.perf_counter()
            if number in (1, 10, 100):
                figures[f"round_{number}_seconds"] = now - before
                figures[f"seconds_until_{number}"] = now - start
            if now - start > limit:
                break
    return figures | {"rounds": number}


@contextlib.contextmanager
def rounds_of(experiment, way: str) -> Iterator[clients.CohortIterator]:
    """Computes rounds in one of `WAYS` in this context; yields the iterator of cohorts."""
    known = runtime.Cohorts.of(experiment.cohort_size, experiment.members.sizes())
    compiles, process = way == "compiled", experiment.process
    with (
        installed(runtime.create_graph_context(**WAYS[way])),
        runtime.compiling(compiles, known),
        clients.ClientStateStore(process.initialize_clients, process.client_state_type) as store,
    ):
        yield experiment.source(store, experiment.cohort_size).iterator()
