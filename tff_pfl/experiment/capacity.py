"""Chooses how clients are padded and whether their work is compiled, and hints at faster ways."""

import dataclasses
import functools
import os
from typing import NamedTuple

import absl.logging
import numpy as np
import tensorflow_federated as tff

from tff_pfl import runtime
from tff_pfl.clients.padding import Ladder, shared_capacity
from tff_pfl.data import FederatedDataset
from tff_pfl.local import LocalTraining, rows_of_batch, trees
from tff_pfl.models import Model

# CPUs compute groups of clients faster than one client after the other from this mean number of
# clients in a group, and up to this number of examples times weights in a step.
_LEAST_GROUP, _SMALL_STEP = 16, 500_000

# On CPUs, compiled client work of this many steps saves the time of its compilation, if a step has
# no more examples times weights than this.
_LEAST_STEPS, _COMPILED_STEP = 50_000, 10_000_000
# On an H200 (docs/results/gpu.md): what a compiled step of a cohort saves, 4.5 ms for 10 clients
# and 14 ms for 100; what XLA takes for each shape of a cohort, 4 to 12 s. Unequal clients have at
# most 3 shapes; see `tff_pfl.runtime.graph.clients.cohorts`.
_SECONDS_OF_STEP, _SECONDS_OF_SHAPE, _SHAPES = 0.004, 8, 3

_ONEDNN = "TF_ENABLE_ONEDNN_OPTS"


def fitted(local: LocalTraining, dataset: FederatedDataset) -> LocalTraining:
    """Returns local training that makes the same steps without rows that no client fills."""
    largest = shared_capacity(dataset.sizes())
    return dataclasses.replace(local, batch_size=rows_of_batch(local.batch_size, largest))


class Compilation(NamedTuple):
    """Whether compiled client work saves more time than its compilation takes, and why."""

    pays: bool
    reason: str


def compilation(
    model: Model, dataset: FederatedDataset, local: LocalTraining, rounds: int, cohort_size: int
) -> Compilation:
    """Returns whether an experiment compiles client work where the context leaves it open.

    The answer is the same in each run of an experiment, since compiled numbers are those without
    compilation up to rounding. `benchmarks/benchmark.py --unequal` and `--start` measure this on
    CPUs, `python -m benchmarks.gpu` on GPUs.

    Args:
        model: The model that clients train.
        dataset: The federation's data, whose sizes are used.
        local: The local training.
        rounds: The number of rounds.
        cohort_size: The number of clients in a round.
    """
    sizes = dataset.sizes()
    if local.steps is None:
        steps = local.epochs * np.ceil(sizes / local.batch_size)
    else:
        steps = np.full(len(sizes), local.steps)
    if any(map(runtime.is_gpu, runtime.current_devices() or ())):
        largest = np.quantile(steps, 1 - 1 / cohort_size, method="higher")  # of a cohort
        saved = rounds * largest * _SECONDS_OF_STEP
        cost = _SECONDS_OF_SHAPE * (1 if sizes.min() == sizes.max() else _SHAPES)
        reason = f"{rounds:,} rounds of {largest:,.0f} steps would save about {saved:,.0f} s, and "
        return Compilation(bool(saved > cost), f"{reason}XLA takes about {cost} s")
    total = rounds * cohort_size * steps.mean()
    if _convolves(model):
        return Compilation(False, "XLA's convolutions are slow on CPUs")
    numbers = min(local.batch_size, sizes.mean()) * model.num_weights
    if numbers > _COMPILED_STEP:
        reason = f"a step has {numbers:,.0f} examples times weights, more than {_COMPILED_STEP:,}"
        return Compilation(False, reason)
    reason = f"clients make {total:,.0f} steps, and {_LEAST_STEPS:,} pay"
    return Compilation(bool(total >= _LEAST_STEPS), reason)


def _convolves(model: Model) -> bool:
    return trees.have_filters(tff.types.type_to_tf_tensor_specs(model.weights_type))


def warn_of_slow_convolutions(model: Model) -> None:
    """Warns once if a model's convolutions are computed on CPUs without oneDNN.

    TensorFlow uses oneDNN by itself only on CPUs with AVX512_VNNI or more. `benchmarks/benchmark.py
    --unequal --networks=cnn` measures it. On others, oneDNN ends the process at bfloat16.
    """
    devices = runtime.current_devices() or ()
    on_cpus = bool(devices) and not any(map(runtime.is_gpu, devices))
    is_chosen = runtime.uses_onednn() or _ONEDNN in os.environ
    if on_cpus and _convolves(model) and not is_chosen:
        _hint_at_onednn()


@functools.cache
def _hint_at_onednn() -> None:
    absl.logging.warning(
        "TensorFlow computes convolutions without oneDNN on this CPU. With %s=1 in the "
        "environment, rounds may take a third less time; bfloat16 would then end the process.",
        _ONEDNN,
    )


def suitable_capacity(
    model: Model, dataset: FederatedDataset, clients_at_a_time: int, batch_size: int
) -> Ladder | None:
    """Returns the `CohortDataSource.capacity` for the devices: a `Ladder` if groups are faster.

    On GPUs, and in compiled loops, clients have their own rows. CPUs also compute clients faster
    one by one, unless groups are large, steps are small and the model has no convolutions.
    `benchmarks/benchmark.py --unequal` measures this.

    Args:
        model: The model that clients train.
        dataset: The federation's data, whose sizes are used.
        clients_at_a_time: The number of clients that are computed together.
        batch_size: The number of examples in a step.
    """
    sizes = dataset.sizes()
    if runtime.current_devices() is None or runtime.pads_clients() or not sizes.any():
        return None
    ladder = Ladder(min(batch_size, shared_capacity([sizes.max()])))
    step = min(batch_size, sizes.mean()) * model.num_weights
    typical = np.quantile(sizes, np.linspace(0, 1, clients_at_a_time), method="inverted_cdf")
    groups = len(set(ladder.capacities(typical)))
    is_faster = clients_at_a_time >= _LEAST_GROUP * groups and step <= _SMALL_STEP
    return ladder if is_faster and not _convolves(model) else None
