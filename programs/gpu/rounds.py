"""Part 3: what a round of FedAvg costs, beside a bare TensorFlow loop that does the same work."""

import dataclasses
import gc
import itertools
import statistics
import time
import traceback

import tensorflow as tf

from benchmarks import CONTENDERS, WORKLOADS, Workload, check_same_work
from gpu import memory
from gpu.parts import CheckError, Task
from gpu.report import Report

_RUNTIMES = ("tff_pfl_graph_loop", "tff_pfl_graph_vectorized", "tff_pfl_graph_xla")
_ROUNDS = 5
_SECONDS_A_CONTENDER = 15.0

# By network: the workload, and the bare loop.
_MODELS = {
    "linear": (WORKLOADS["linear"], "bare_tensorflow"),
    "cnn": (
        dataclasses.replace(WORKLOADS["cnn"], epochs=1, examples_per_client=200),
        "bare_tensorflow",
    ),
    "resnet18": (
        dataclasses.replace(WORKLOADS["resnet18"], examples_per_client=100, batch_size=50),
        "bare_keras",
    ),
}
_TOY = {
    "linear": {"examples_per_client": 6},
    "cnn": {"examples_per_client": 6, "batch_size": 6},
    "resnet18": {
        "options": {"width": 4, "blocks": (1, 1), "groups": 2},
        "examples_per_client": 4,
        "batch_size": 4,
    },
}


@dataclasses.dataclass(frozen=True)
class _Point:
    """What is measured at a time."""

    clients: int
    model: str
    precision: str
    contender: str

    @property
    def name(self) -> str:
        return f"{self.clients} {self.model} {self.precision} {self.contender}"

    def of(self, **changes) -> "_Point":
        return dataclasses.replace(self, **changes)


def run(task: Task, report: Report) -> None:
    """Measures contenders, one after another, the small cohorts of all models first.

    Raises:
        CheckError: There is no GPU.
    """
    if not tf.config.list_physical_devices(task.devices):
        raise CheckError(f"TensorFlow lists no {task.devices}.")
    report.note("rounds in bfloat16 are not measured; part 1 has a product in it")
    if task.is_toy:
        report.note("TF32 is of GPUs; on CPUs, convolutions that differ by client are not stacked")
    sizes = (2,) if task.is_toy else (10, 100, 1000)
    precisions = ("float32",) if task.is_toy else ("float32", "TF32")
    for clients, model in itertools.product(sizes, _MODELS):
        workload, bare = _workload(model, clients, task.is_toy)
        stacked = not task.is_toy or model == "linear"
        contenders = (bare, *(_RUNTIMES if stacked else _RUNTIMES[:1]))
        data = None
        for precision, contender in itertools.product(precisions, contenders):
            point = _Point(clients, model, precision, contender)
            if report.find(point.name):
                continue
            if refusal := _refusal(task, report, point):
                report.leave_out(f"{point.name}: {refusal}")
                continue
            data = data or workload.data()
            report.begin(point.name)
            report.add(point.name, **_measure(report, point, bare, workload, data))


def _workload(model: str, clients: int, is_toy: bool) -> tuple[Workload, str]:
    workload, bare = _MODELS[model]
    changes = _TOY[model] if is_toy else {}
    return dataclasses.replace(workload, clients=clients, **changes), bare


def _refusal(task, report, point) -> str | None:
    """Why a point is not measured, if it is not; judged by the cohorts that were smaller."""
    smaller = report.find(point.of(clients=point.clients // 10).name) or {}
    if "out_of_memory" in smaller:
        return "a tenth of the clients needs too much memory already"
    expected = 0.0
    if "seconds_per_round" in smaller:
        expected = smaller["first_round_seconds"] + 10 * 2 * smaller["seconds_per_round"]
    if task.left() < expected or task.left() < 0:
        return f"{max(task.left(), 0):.0f} s were left"
    return None


def _measure(report, point, bare, workload, data) -> dict:
    """The figures of a contender; where it failed, why."""
    tf.config.experimental.enable_tensor_float_32_execution(point.precision == "TF32")
    gc.collect()
    memory.reset_peak()
    try:
        start = time.perf_counter()
        one_round = CONTENDERS[point.contender](workload, *data)
        loss = one_round()
        first = time.perf_counter() - start
        seconds = []
        while len(seconds) < _ROUNDS and (sum(seconds) < _SECONDS_A_CONTENDER or not seconds):
            start = time.perf_counter()
            one_round()
            seconds.append(time.perf_counter() - start)
    except tf.errors.ResourceExhaustedError as error:
        return {"out_of_memory": str(error), "memory_mib": memory.peak_mib()}
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}
    median = statistics.median(seconds)
    figures = {
        "seconds_per_round": median,
        "memory_mib": memory.peak_mib(),
        "first_round_seconds": first,
        "rounds": len(seconds),
        "first_round_loss": loss,
    }
    reference = report.find(point.of(contender=bare).name) or {}
    if "first_round_loss" in reference:
        figures["times_bare"] = median / reference["seconds_per_round"]
        try:
            check_same_work({bare: reference["first_round_loss"], point.contender: loss})
        except Exception as error:
            figures["error"] = f"{type(error).__name__}: {error}"
    return figures
