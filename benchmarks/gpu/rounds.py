"""Part 3: what a round of FedAvg costs, beside a bare TensorFlow loop that does the same work."""

import dataclasses
import gc
import itertools
import time
import traceback

import tensorflow as tf

from benchmarks.contenders import CONTENDERS, check_same_work
from benchmarks.gpu.device import peak_mib, require, reset_peak
from benchmarks.gpu.report import Report
from benchmarks.timing import spread
from benchmarks.workloads import WORKLOADS, Workload

_RUNTIMES = ("tff_pfl_graph_loop", "tff_pfl_graph_vectorized", "tff_pfl_graph_xla")
_ROUNDS = 5
_SECONDS_A_CONTENDER = 15.0
# By network: changes of its workload, those of toys, and the bare loop.
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


def run(report: Report) -> None:
    """Measures contenders, one after another, the small cohorts of all models first.

    Raises:
        CheckError: There is no GPU.
    """
    require(report)
    if report.is_toy:
        report.note("TF32 is of GPUs; on CPUs, convolutions that differ by client are not stacked")
    sizes = (2,) if report.is_toy else (10, 100, 1000)
    precisions = ("float32",) if report.is_toy else ("float32", "TF32")
    for clients, model in itertools.product(sizes, _MODELS):
        changes, toy, bare = _MODELS[model]
        changes = changes | (toy if report.is_toy else {})
        workload = dataclasses.replace(WORKLOADS[model], clients=clients, **changes)
        runtimes = _RUNTIMES[:1] if report.is_toy and model != "linear" else _RUNTIMES
        data = workload.data()
        for precision, contender in itertools.product(precisions, (bare, *runtimes)):
            name = f"{model} {precision} {contender}"
            # Larger cohorts are judged by smaller ones.
            smaller = report.find(f"{clients // 10} {name}") or {}
            if "out_of_memory" in smaller:
                report.leave_out(f"{clients} {name}: a tenth of the clients needs too much memory")
                continue
            expected = smaller.get("first_round_seconds", 0.0)
            expected += 20 * smaller.get("seconds_per_round", 0.0)
            if report.is_due(f"{clients} {name}", expected):
                tf.config.experimental.enable_tensor_float_32_execution(precision == "TF32")
                figures = _measure(contender, workload, data)
                reference = report.find(f"{clients} {model} {precision} {bare}") or figures
                report.add(f"{clients} {name}", **figures, **_beside(reference, figures))


def _measure(contender: str, workload: Workload, data) -> dict:
    """Returns the figures of a contender; where it failed, why."""
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
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}
    return {
        "seconds_per_round": spread(seconds)["median"],
        "memory_mib": peak_mib(),
        "first_round_seconds": first,
        "rounds": len(seconds),
        "first_round_loss": loss,
    }


def _beside(bare: dict, figures: dict) -> dict:
    """Returns how many times the bare loop's seconds they are, and whether the losses agree."""
    if "first_round_loss" not in bare or "first_round_loss" not in figures:
        return {}
    beside = {"times_bare": figures["seconds_per_round"] / bare["seconds_per_round"]}
    try:
        check_same_work({"bare": bare["first_round_loss"], "this": figures["first_round_loss"]})
    except Exception as error:
        beside["error"] = f"{type(error).__name__}: {error}"
    return beside
