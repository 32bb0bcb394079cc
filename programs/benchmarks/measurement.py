"""The measurement: contenders take turns, so that a machine that slows down slows all of them."""

import itertools
import resource
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tqdm

from benchmarks.contenders import CONTENDERS
from benchmarks.figures import hardware, spread
from benchmarks.workloads import Workload

_LOSS_TOLERANCE = 0.02


class DifferentWorkError(RuntimeError):
    """Contenders that were to do the same work did not: their times cannot be compared."""


def machine() -> dict[str, Any]:
    """What the seconds were measured on."""
    gpus = map(tf.config.experimental.get_device_details, tf.config.list_physical_devices("GPU"))
    return {
        "machine": {
            **hardware(),
            "gpus": [gpu.get("device_name") for gpu in gpus],
            "tensorflow": tf.__version__,
            "tff": tff.__version__,
        }
    }


def measure(
    name: str, workload: Workload, contenders: Sequence[str], *, rounds: int, warmup: int
) -> Iterator[dict[str, Any]]:
    """Runs contenders of a workload, in turns.

    Args:
        name: Of the workload.
        workload: What is run.
        contenders: Keys of `CONTENDERS`.
        rounds: Rounds of each contender that count.
        warmup: Rounds of each before that, in which graphs are traced and memory is allocated.

    Yields:
        A record a contender, then one with the ratios of the medians of all pairs, or of a single
        contender with the memory of the process at its peak. The loss in a record is the mean
        training loss of the first round, the same for all contenders.

    Raises:
        DifferentWorkError: These losses differ.
    """
    data = workload.data()
    seconds = {contender: [] for contender in contenders}
    losses = {}
    bar = tqdm.tqdm(total=(warmup + rounds) * len(seconds), desc=name, unit="round", disable=None)
    with bar:
        runs = {contender: CONTENDERS[contender](workload, *data) for contender in seconds}
        for turn in range(warmup + rounds):
            for contender, run in runs.items():
                start = time.perf_counter()
                loss = run()
                seconds[contender].append(time.perf_counter() - start)
                losses.setdefault(contender, loss)
                bar.set_postfix({contender: f"{seconds[contender][-1]:.3g} s"})
                bar.update()
            if turn == 0:
                check_same_work(losses)
    medians = {}
    for contender, measured in seconds.items():
        measured = measured[warmup:]
        medians[contender] = statistics.median(measured)
        yield {
            "workload": name,
            "contender": contender,
            "seconds_per_round": spread(measured),
            "ms_per_client": round(1000 * medians[contender] / workload.clients, 4),
            "rounds": rounds,
            "clients": workload.clients,
            "examples_per_client": workload.examples_per_client,
            "epochs": workload.epochs,
            "batch_size": workload.batch_size,
            "first_round_loss": round(losses[contender], 5),
        }
    if len(medians) == 1:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
        yield {"workload": name, "peak_memory_mib": round(peak, 1)}
        return
    yield {
        "workload": name,
        "ratios_of_medians": {
            f"{b}/{a}": round(medians[b] / medians[a], 3)
            for a, b in itertools.combinations(medians, 2)
        },
    }


def check_same_work(losses: dict[str, float]) -> None:
    """Raises DifferentWorkError unless the losses agree, up to the order of the batches."""
    values = list(losses.values())
    if not np.allclose(values, values[0], rtol=_LOSS_TOLERANCE, atol=0.0):
        raise DifferentWorkError(f"The contenders' losses after the first round differ: {losses}.")
