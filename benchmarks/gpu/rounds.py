"""Measures a round of FedAvg and a bare TensorFlow loop that does the same work, as part 3."""

import dataclasses
import functools
import gc
import itertools
import math
import time

import tensorflow as tf

from benchmarks.contenders import CONTENDERS, check_same_work
from benchmarks.gpu.device import peak_mib, require, reset_peak
from benchmarks.gpu.runner import Report
from benchmarks.timing import spread
from benchmarks.workloads import WORKLOADS, Workload

_RUNTIMES = ("tff_pfl_graph_loop", "tff_pfl_graph_vectorized", "tff_pfl_graph_xla")
_ROUNDS = 5
_SECONDS_A_CONTENDER = 15.0
# For each network: changes to its workload, further changes at toy sizes, and the bare loop.
_MODELS = {
    "linear": ({}, {"examples_per_client": 6}, "bare_tensorflow"),
    "cnn": (
        {"epochs": 1, "examples_per_client": 200},
        {"examples_per_client": 6, "batch_size": 6},
        "bare_tensorflow",
    ),
    "resnet18": (
        {"examples_per_client": 100, "batch_size": 50},
        {
            "options": {"width": 4, "blocks": (1, 1), "groups": 2},
            "examples_per_client": 4,
            "batch_size": 4,
        },
        "bare_keras",
    ),
}


def measure_rounds(report: Report) -> None:
    """Measures contenders, one after another, beginning with the small cohorts of all models.

    Raises:
        CheckError: TensorFlow does not list a GPU.
    """
    require(report)
    sizes = (2,) if report.is_toy else (10, 100, 1000)
    precisions = ("float32",) if report.is_toy else ("float32", "TF32")
    for clients, model in itertools.product(sizes, _MODELS):
        changes, toy, bare = _MODELS[model]
        changes = changes | (toy if report.is_toy else {})
        workload = dataclasses.replace(WORKLOADS[model], clients=clients, **changes)
        # On CPUs, convolutions that differ by client cannot be vectorized.
        runtimes = _RUNTIMES[:1] if report.is_toy and model != "linear" else _RUNTIMES
        data = workload.data()
        for precision, contender in itertools.product(precisions, (bare, *runtimes)):
            # The time for a larger cohort is estimated from a smaller one.
            smaller = report.records.get(f"{clients // 10} {model} {precision} {contender}", {})
            expected = smaller.get("first_round_seconds", 0.0)
            expected += 20 * smaller.get("seconds_per_round", 0.0)
            if "out_of_memory" in smaller:
                expected = math.inf
            reference = f"{clients} {model} {precision} {bare}"
            measure = functools.partial(
                _measure, report, contender, workload, data, precision, reference
            )
            report.do(f"{clients} {model} {precision} {contender}", measure, expected)


def _measure(report, contender: str, workload: Workload, data, precision: str, reference: str):
    """Returns the measurements of a contender, and the ratio of its seconds to the bare loop."""
    tf.config.experimental.enable_tensor_float_32_execution(precision == "TF32")
    gc.collect()
    reset_peak()
    try:
        start = time.perf_counter()
        one_round = CONTENDERS[contender](workload, *data)
        loss = one_round()
        first, seconds = time.perf_counter() - start, []
        while len(seconds) < _ROUNDS and (sum(seconds) < _SECONDS_A_CONTENDER or not seconds):
            start = time.perf_counter()
            one_round()
            seconds.append(time.perf_counter() - start)
    except tf.errors.ResourceExhaustedError as error:
        return {"out_of_memory": str(error), "memory_mib": peak_mib()}
    figures = {
        "seconds_per_round": spread(seconds)["median"],
        "memory_mib": peak_mib(),
        "first_round_seconds": first,
        "rounds": len(seconds),
        "first_round_loss": loss,
    }
    bare = report.records.get(reference, figures)
    if "first_round_loss" in bare:
        check_same_work({"bare": bare["first_round_loss"], "this": loss})
        times_bare = figures["seconds_per_round"] / bare["seconds_per_round"]
        figures["times_bare"] = times_bare
    return figures
