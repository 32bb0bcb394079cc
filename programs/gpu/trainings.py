"""Part 4: trainings of five algorithms on the device, and next to them the same on the CPU."""

import os
import pathlib

import numpy as np
import tensorflow as tf

from gpu import memory
from gpu.parts import CheckError, Task
from gpu.report import Report
from tff_pfl import experiment, runtime
from tff_pfl.evaluation import MetricName

ALGORITHMS = ("ditto", "pgfed", "plgu_lf", "pfedmb", "fedpg")
# Of the first round's training loss, where rounding has not been amplified yet, relative; and of
# the accuracy after the last round.
_SAME_LOSS = 1e-3
_SAME_ACCURACY = 0.02
ACCURACY = MetricName("personalized", "local_test", "accuracy", "mean")


def run(task: Task, report: Report) -> None:
    """Runs each algorithm in both places.

    Raises:
        CheckError: There is no GPU, or no data set.
    """
    tf.config.experimental.enable_tensor_float_32_execution(False)
    places = _places(task)
    for algorithm in ALGORITHMS:
        for place, devices in places.items():
            name = f"{algorithm} on {place}"
            if report.find(name):
                continue
            if task.left() < 0:
                report.leave_out(name)
                continue
            report.begin(name)
            config = _config(algorithm, task, report)
            folder = pathlib.Path(task.output_dir, "trainings", name.replace(" ", "_"))
            report.add(name, **train(config, folder, devices))
            first, second = (report.find(f"{algorithm} on {p}") for p in places)
            if first and second and (wrong := _difference(first, second)):
                report.add(**second, error=wrong)


def _places(task: Task) -> dict[str, list[str]]:
    """Devices by the names of places: those that are checked, and the CPU."""
    if task.is_toy:
        two_logical_cpus()
        return {"two CPUs": ["CPU:0", "CPU:1"], "CPU": ["CPU:0"]}
    gpus = tf.config.list_logical_devices("GPU")
    if not gpus:
        raise CheckError("TensorFlow lists no GPU.")
    return {"GPU": [gpu.name for gpu in gpus], "CPU": ["CPU:0"]}


def two_logical_cpus() -> None:
    """Makes two devices of the CPU, before anything is computed on it."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, 2 * [tf.config.LogicalDeviceConfiguration()])


def data_set(task: Task, report: Report, *wanted: str) -> str:
    """The first of these data sets that is prepared in TFDS_DATA_DIR; for toys, digits.

    Raises:
        CheckError: None is.
    """
    if task.is_toy:
        return "digits"
    folder = os.environ.get("TFDS_DATA_DIR", "")
    there = [name for name in wanted if os.path.isdir(os.path.join(folder, name))]
    if not there:
        raise CheckError(
            f"None of {', '.join(wanted)} is in TFDS_DATA_DIR, which is {folder or 'not set'!r}."
        )
    if there[0] != wanted[0]:
        report.note(f"{wanted[0]} is not in {folder}: on {there[0]} instead")
    return there[0]


def _config(algorithm, task, report):
    config = experiment.default_config(algorithm)
    config.data.name = data_set(task, report, "fashion_mnist", "cifar10")
    config.data.partitioner = "dirichlet"
    config.data.dirichlet.alpha = 0.3
    config.rounds, config.data.num_clients, config.clients_per_round = 20, 100, 10
    config.model.name = "lenet"
    if task.is_toy:
        config.rounds, config.data.num_clients, config.clients_per_round = 2, 4, 2
        config.model.name = "mlp"
        config.model.options.hidden = (8,)
    config.local.learning_rate = 0.05
    config.local.epochs = 1
    config.local.batch_size = 50
    config.evaluation.every = 0
    config.checkpoint_every = config.rounds
    if algorithm == "plgu_lf":
        config.algorithm.num_personal_layers = 1
    return config


def train(config, folder: pathlib.Path, devices: list[str]) -> dict:
    """Figures of a run on these devices; where it failed, the exit code as the error."""
    memory.reset_peak()

    def set_context():
        runtime.set_graph_context(devices=devices)

    code = experiment.run_program(config, os.fspath(folder), resume=True, set_context=set_context)
    if code:
        return {"error": f"the training ended with exit code {code}, see the log"}
    summary, files = experiment.read_summary(folder), experiment.RunFiles(folder)
    return {
        "accuracy": summary.final.metrics[ACCURACY],
        "first_loss": float(files.metrics()["train/loss"][0]),
        "seconds": summary.seconds,
        "seconds_per_round": seconds_per_round(files),
        "memory_mib": memory.peak_mib(),
    }


def seconds_per_round(files: experiment.RunFiles) -> float:
    """The median over rounds, without the first, which traces and compiles."""
    seconds = files.timings()["round_seconds"]
    return float(np.nanmedian(seconds[1:] if len(seconds) > 1 else seconds))


def _difference(first: dict, second: dict) -> str | None:
    """What differs by more than rounding may."""
    if "error" in first or "error" in second:
        return None
    losses, accuracies = (
        [run[key] for run in (first, second)] for key in ("first_loss", "accuracy")
    )
    if not abs(losses[0] - losses[1]) <= _SAME_LOSS * abs(losses[1]):
        return f"the first round's training losses are {losses[0]} and {losses[1]}"
    if not abs(accuracies[0] - accuracies[1]) <= _SAME_ACCURACY:
        return f"the accuracies are {accuracies[0]} and {accuracies[1]}"
    return None
