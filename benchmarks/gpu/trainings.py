"""Trains on the device and on the CPU, and compares the results."""

import functools
import os
import pathlib
import tempfile

from tff_pfl import config as configs
from tff_pfl.runtime.startup import prepare_process

prepare_process()

import numpy as np
import tensorflow as tf

from benchmarks.gpu.device import require
from benchmarks.gpu.memory import peak_mib, reset_peak
from benchmarks.gpu.report import CheckError, Report
from benchmarks.gpu.runner import ROOT
from tff_pfl import experiment, runtime
from tff_pfl.evaluation import MetricName

ALGORITHMS = ("ditto", "pgfed", "fedpg", "pfedmb", "plgu_lf")
# The largest relative difference of the first round's training loss, before training amplifies
# rounding errors, and the largest difference of the accuracy after the last round.
_SAME_LOSS = 1e-3
_SAME_ACCURACY = 0.02
_ACCURACY = MetricName("personalized", "local_test", "accuracy", "mean")


def compare_trainings(report: Report) -> None:
    """Trains with each algorithm on both devices, and compares the results.

    Raises:
        CheckError: There is no GPU, or no data set.
    """
    tf.config.experimental.enable_tensor_float_32_execution(False)
    name = "two CPUs" if report.is_toy else "GPU"
    places = {name: _devices(report), "CPU": ["CPU:0"]}
    for algorithm in ALGORITHMS[:2] if report.is_toy else ALGORITHMS:
        config = config_of(algorithm, report)
        tasks = [f"{algorithm} on {place}" for place in places]
        for task, devices in zip(tasks, places.values(), strict=True):
            report.do(task, functools.partial(_train, config, devices))
        found = [report.records[task] for task in tasks]
        if all(record.get("accuracy") is not None for record in found):
            report.do(f"{algorithm}, compared", functools.partial(compare, *found))


def _devices(report: Report) -> list[str]:
    """Returns the devices to check; at toy sizes, two logical devices on the CPU."""
    if report.is_toy:
        cpu = tf.config.list_physical_devices("CPU")[0]
        two = 2 * [tf.config.LogicalDeviceConfiguration()]
        tf.config.set_logical_device_configuration(cpu, two)
    require(report)
    return [device.name for device in tf.config.list_logical_devices(report.devices)]


def data_set(report: Report, *wanted: str) -> str:
    """Returns the first of these data sets that is in TFDS_DATA_DIR; at toy sizes, digits.

    Raises:
        CheckError: TFDS_DATA_DIR has none of them.
    """
    if report.is_toy:
        return "digits"
    folder = os.environ.get("TFDS_DATA_DIR", "")
    found = [name for name in wanted if os.path.isdir(os.path.join(folder, name))]
    if not found:
        raise CheckError(
            f"TFDS_DATA_DIR, {folder or 'not set'!r}, has none of: {', '.join(wanted)}."
        )
    return found[0]


_TOY = (
    "--config.rounds=2",
    "--config.data.num_clients=4",
    "--config.clients_per_round=2",
    "--config.model.options.hidden=(8,)",
)


def config_of(algorithm: str, report: Report):
    """Returns the config of a training."""
    flags = _TOY
    if not report.is_toy:
        name = data_set(report, "fashion_mnist", "cifar10")
        flags = (
            f"--config.data.name={name}",
            "--config.rounds=10",
            "--config.data.num_clients=100",
            "--config.model.name=lenet",
        )
    if algorithm == "plgu_lf":
        flags += ("--config.algorithm.num_personal_layers=1",)
    config = _read(f"digits.py:{algorithm}", *flags, "--config.evaluation.every=0")
    config.local.learning_rate, config.local.epochs, config.local.batch_size = 0.05, 1, 50
    config.checkpoint_every = config.rounds
    return config


def _read(config: str, *flags: str):
    return configs.read_config([f"--config={ROOT / 'configs' / config}", *flags])


def _train(config, devices: list[str]) -> dict:
    """Trains on these devices and returns measurements."""
    reset_peak()
    folder = pathlib.Path(tempfile.mkdtemp(), "run")
    code = configs.run_program(
        config,
        os.fspath(folder),
        set_context=lambda: runtime.set_graph_context(devices=devices),
    )
    if code:
        raise CheckError(f"The training ended with exit code {code}; see the log.")
    files = experiment.RunFiles(folder)
    metrics, seconds = files.metrics, files.timings["round_seconds"]
    accuracies = np.array(metrics.get(str(_ACCURACY), []))
    evaluated = accuracies[np.isfinite(accuracies)]
    return {
        "rounds": len(metrics["round"]),
        "accuracy": float(evaluated[-1]) if len(evaluated) else None,
        "first_loss": float(metrics["train/loss"][0]),
        "first_round_seconds": float(seconds[0]),
        # Leaves out the first round, which traces and compiles.
        "seconds_per_round": float(np.nanmedian(seconds[1:] if len(seconds) > 1 else seconds)),
        "memory_mib": peak_mib(),
        "data": config.data.name,
        "accuracies": evaluated.tolist(),
    }


def compare(first: dict, second: dict) -> dict:
    """Returns the differences between the results of two devices.

    Raises:
        CheckError: The differences are larger than rounding explains.
    """
    differences = {key: abs(first[key] - second[key]) for key in ("first_loss", "accuracy")}
    if not differences["first_loss"] <= _SAME_LOSS * abs(second["first_loss"]):
        losses = f"{first['first_loss']} and {second['first_loss']}"
        raise CheckError(f"The first round's training losses differ: {losses}.")
    if not differences["accuracy"] <= _SAME_ACCURACY:
        raise CheckError(f"The accuracies differ: {first['accuracy']} and {second['accuracy']}.")
    return {f"difference of {key}": value for key, value in differences.items()}
