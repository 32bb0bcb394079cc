"""Part 5: a training of PLGU-LF with ResNet-18, for as long as there is time."""

import os
import pathlib
import signal
import threading

import numpy as np
import tensorflow as tf

from gpu import memory
from gpu.parts import CheckError, Task
from gpu.report import Report
from gpu.trainings import ACCURACY, data_set, seconds_per_round, two_logical_cpus
from tff_pfl import experiment, runtime

_ENDLESS = 1_000_000
_SHORTEST_SECONDS = 60.0
_STOPPED = 128 + signal.SIGTERM


def run(task: Task, report: Report) -> None:
    """Trains until the time is over, as a run that is stopped, and says how far it came.

    Raises:
        CheckError: There is no GPU, or no data set, or the training failed.
    """
    if task.is_toy:
        two_logical_cpus()
    devices = [device.name for device in tf.config.list_logical_devices(task.devices)]
    if not devices:
        raise CheckError("TensorFlow lists no GPU.")
    if task.left() < _SHORTEST_SECONDS and not task.is_toy:
        report.leave_out(f"the training: {task.left():.0f} s were left")
        return
    folder = pathlib.Path(task.output_dir, "long_training")
    config = _config(task, report)
    memory.reset_peak()
    # `run_program` ends after what it does at the moment, with all files as they have to be.
    timer = threading.Timer(task.left(), os.kill, (os.getpid(), signal.SIGTERM))
    timer.daemon = True
    timer.start()
    code = experiment.run_program(
        config,
        os.fspath(folder),
        resume=True,
        set_context=lambda: runtime.set_graph_context(devices=devices),
    )
    timer.cancel()
    if code not in (0, _STOPPED):
        raise CheckError(f"The training ended with exit code {code}, see the log.")
    _add_figures(report, folder)


def _config(task, report):
    config = experiment.default_config("plgu_lf")
    config.data.name = data_set(task, report, "cifar10", "fashion_mnist")
    config.data.partitioner = "classes_per_client"
    config.data.classes_per_client.classes = 3
    config.data.classes_per_client.assignment = "random"
    config.data.fractions = (5 / 6, 0.0, 1 / 6)
    config.data.normalization = "half"
    config.model.name = "resnet18"
    config.algorithm.num_personal_layers = 5
    config.rounds, config.data.num_clients, config.clients_per_round = _ENDLESS, 100, 10
    config.local.learning_rate = 0.05
    config.local.epochs = 5
    config.local.batch_size = 50
    config.evaluation.every = 5
    if task.is_toy:
        config.rounds, config.data.num_clients, config.clients_per_round = 2, 4, 2
        config.model.options.update(width=4, blocks=(1, 1), groups=2)
        config.algorithm.num_personal_layers = 1
        config.local.epochs = 1
        config.evaluation.every = 1
    return config


def _add_figures(report, folder):
    if not (folder / "timings.csv").exists():
        report.leave_out("the first round: it did not end in time")
        return
    files = experiment.RunFiles(folder)
    metrics = files.metrics()
    accuracies = metrics.get(str(ACCURACY), np.array([]))
    evaluations = [
        {"round": number, "accuracy": float(accuracy)}
        for number, accuracy in enumerate(accuracies, start=1)
        if np.isfinite(accuracy)
    ]
    report.add(
        "plgu_lf with ResNet-18",
        rounds=len(metrics["round"]),
        seconds_per_round=seconds_per_round(files),
        first_round_seconds=float(files.timings()["round_seconds"][0]),
        accuracy=evaluations[-1]["accuracy"] if evaluations else None,
        memory_mib=memory.peak_mib(),
        evaluations=evaluations,
    )
