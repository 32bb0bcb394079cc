"""Part 4: trainings on the device and on the CPU. Part 5: one training, while there is time."""

import os
import pathlib
import signal
import threading

import numpy as np
import tensorflow as tf

from benchmarks.gpu.device import peak_mib, require, reset_peak
from benchmarks.gpu.report import ROOT, CheckError, Report
from tff_pfl import experiment, runtime
from tff_pfl.evaluation import MetricName

ALGORITHMS = ("ditto", "pgfed", "plgu_lf", "pfedmb", "fedpg")
# Of the first round's training loss, where rounding has not been amplified yet, relative; and of
# the accuracy after the last round.
_SAME_LOSS = 1e-3
_SAME_ACCURACY = 0.02
_ACCURACY = MetricName("personalized", "local_test", "accuracy", "mean")
_ENDLESS = 1_000_000
_SHORTEST_SECONDS = 60.0
_STOPPED = 128 + signal.SIGTERM


def run(report: Report) -> None:
    """Trains with each algorithm in both places.

    Raises:
        CheckError: There is no GPU, or no data set.
    """
    tf.config.experimental.enable_tensor_float_32_execution(False)
    name = "two CPUs" if report.is_toy else "GPU"
    places = {name: _devices(report), "CPU": ["CPU:0"]}
    for algorithm in ALGORITHMS:
        for place, devices in places.items():
            what = f"{algorithm} on {place}"
            if report.is_due(what):
                folder = report.folder / "trainings" / what.replace(" ", "_")
                report.add(what, **_train(config_of(algorithm, report), folder, devices))
        first, second = (report.find(f"{algorithm} on {place}") for place in places)
        if first and second and (wrong := difference(first, second)):
            report.add(**second, error=wrong)


def run_long(report: Report) -> None:
    """Trains PLGU-LF with ResNet-18 until the time is over, and says how far it came.

    Raises:
        CheckError: There is no GPU, or no data set, or the training failed.
    """
    devices, config = _devices(report), long_config(report)
    what, folder = f"plgu_lf with {config.model.name}", report.folder / "long_training"
    if not report.is_due(what, 0 if report.is_toy else _SHORTEST_SECONDS):
        return
    reset_peak()
    # `run_program` ends after what it does at the moment, with all files as they have to be.
    timer = threading.Timer(report.left(), os.kill, (os.getpid(), signal.SIGTERM))
    timer.daemon = True
    timer.start()
    code = _run_program(config, folder, devices)
    timer.cancel()
    if code not in (0, _STOPPED):
        raise CheckError(f"The training ended with exit code {code}, see the log.")
    if not (folder / "timings.csv").exists():
        report.leave_out("the first round: it did not end in time")
        return
    files = experiment.RunFiles(folder)
    metrics = files.metrics()
    rounds, accuracies = metrics["round"], metrics.get(str(_ACCURACY), np.array([]))
    pairs = zip(rounds, accuracies, strict=False)
    evaluations = {int(number): float(x) for number, x in pairs if np.isfinite(x)}
    report.add(
        what,
        rounds=len(rounds),
        seconds_per_round=_seconds_per_round(files),
        first_round_seconds=float(files.timings()["round_seconds"][0]),
        accuracy=list(evaluations.values())[-1] if evaluations else None,
        memory_mib=peak_mib(),
        evaluations=evaluations,
    )


def _devices(report: Report) -> list[str]:
    """Returns those that are checked; for toys, two devices are made of the CPU."""
    if report.is_toy:
        cpu = tf.config.list_physical_devices("CPU")[0]
        two = 2 * [tf.config.LogicalDeviceConfiguration()]
        tf.config.set_logical_device_configuration(cpu, two)
    require(report)
    return [device.name for device in tf.config.list_logical_devices(report.devices)]


def data_set(report: Report, *wanted: str) -> str:
    """Returns the first of these data sets that is prepared in TFDS_DATA_DIR; for toys, digits.

    Raises:
        CheckError: None is.
    """
    if report.is_toy:
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


_TOY = (
    "--config.rounds=2",
    "--config.data.num_clients=4",
    "--config.clients_per_round=2",
    "--config.model.options.hidden=(8,)",
)


def config_of(algorithm: str, report: Report):
    """Returns the config of a training of part 4."""
    flags = _TOY
    if not report.is_toy:
        name = data_set(report, "fashion_mnist", "cifar10")
        flags = (
            f"--config.data.name={name}",
            "--config.rounds=20",
            "--config.data.num_clients=100",
            "--config.model.name=lenet",
        )
    if algorithm == "plgu_lf":
        flags += ("--config.algorithm.num_personal_layers=1",)
    config = _read(f"digits.py:{algorithm}", *flags, "--config.evaluation.every=0")
    config.local.learning_rate, config.local.epochs, config.local.batch_size = 0.05, 1, 50
    config.checkpoint_every = config.rounds
    return config


def long_config(report: Report):
    """Returns the config of part 5, whose training does not end by itself."""
    if report.is_toy:
        personal = "--config.algorithm.num_personal_layers=1"
        return _read("digits.py:plgu_lf", *_TOY, personal, "--config.evaluation.every=1")
    name = data_set(report, "cifar10", "fashion_mnist")
    flags = (f"--config.data.name={name}", f"--config.rounds={_ENDLESS}")
    return _read("plgu.py:cifar10,10,plgu_lf", *flags, "--config.evaluation.every=5")


def _read(config: str, *flags: str):
    return experiment.read_config([f"--config={ROOT / 'configs' / config}", *flags])


def _train(config, folder: pathlib.Path, devices: list[str]) -> dict:
    """Returns figures of a run on these devices; where it failed, the exit code as the error."""
    reset_peak()
    if code := _run_program(config, folder, devices):
        return {"error": f"the training ended with exit code {code}, see the log"}
    summary, files = experiment.read_summary(folder), experiment.RunFiles(folder)
    return {
        "accuracy": summary.final.metrics[_ACCURACY],
        "first_loss": float(files.metrics()["train/loss"][0]),
        "seconds": summary.seconds,
        "seconds_per_round": _seconds_per_round(files),
        "memory_mib": peak_mib(),
    }


def _run_program(config, folder, devices):
    return experiment.run_program(
        config,
        os.fspath(folder),
        resume=True,
        set_context=lambda: runtime.set_graph_context(devices=devices),
    )


def _seconds_per_round(files: experiment.RunFiles) -> float:
    """Returns the median over rounds, without the first, which traces and compiles."""
    seconds = files.timings()["round_seconds"]
    return float(np.nanmedian(seconds[1:] if len(seconds) > 1 else seconds))


def difference(first: dict, second: dict) -> str | None:
    """Says what differs between two places by more than rounding may."""
    if "error" in first or "error" in second:
        return None
    losses, accuracies = ([run[k] for run in (first, second)] for k in ("first_loss", "accuracy"))
    if not abs(losses[0] - losses[1]) <= _SAME_LOSS * abs(losses[1]):
        return f"the first round's training losses are {losses[0]} and {losses[1]}"
    if not abs(accuracies[0] - accuracies[1]) <= _SAME_ACCURACY:
        return f"the accuracies are {accuracies[0]} and {accuracies[1]}"
    return None
