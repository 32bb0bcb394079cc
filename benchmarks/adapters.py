"""Measures LoRA on frozen transformers of several sizes, beside bare steps of the same arithmetic.

The weights are random numbers in a `.safetensors` file, as a user's would be. Each case has a
process of its own. Adapters of rank 8 are on all kernels of attention, and the head is trained.
"""

import contextlib
import dataclasses
import os
import pathlib
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import safetensors.numpy
import tensorflow as tf
import tensorflow_federated as tff

import tff_pfl
from benchmarks.timing import in_new_processes, memory_mib, size_mib
from tff_pfl import models
from tff_pfl.experiment import RunFiles
from tff_pfl.tracing.frozen import as_variables

TOY = 1
# The types in which networks compute and frozen kernels are kept.
_BFLOAT16 = {
    "tff_pfl_bfloat16": ("bfloat16", "float32"),
    "tff_pfl_frozen_bfloat16": ("bfloat16", "bfloat16"),
}
ENGINES = ("bare_tensorflow", "tff_pfl")
# Width, depth, vocabulary and heads of a network of so many megabytes.
SIZES = {25: (256, 6, 6000, 8), 100: (512, 6, 12000, 8), 400: (768, 12, 20000, 12)}
_LENGTH, _CLASSES, _CLIENTS, _EXAMPLES, _BATCH = 64, 4, 20, 16, 8
_MEMORY = {"peak": "VmHWM", "files": "RssFile"}  # see `memory_mib`


@dataclasses.dataclass(frozen=True)
class Case:
    """A measurement.

    Attributes:
        megabytes: A key of `SIZES`.
        engine: One of `ENGINES` or `_BFLOAT16`.
        rounds: The number of rounds.
        cohort: The number of clients in a round.
        file: The file of weights.
    """

    megabytes: int
    engine: str
    rounds: int
    cohort: int
    file: str


def measure(megabytes: Sequence[int], rounds: int, cohort: int) -> Iterator[dict[str, Any]]:
    """Yields a record of each size and engine."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TFF_PFL_CACHE"] = folder
        for size in megabytes:
            file = os.path.join(folder, f"{size}.safetensors")
            write(size, file)
            cases = [Case(size, engine, rounds, cohort, file) for engine in (*ENGINES, *_BFLOAT16)]
            yield from in_new_processes(measured, cases, f"{size} MB")


def _size(megabytes):
    return (64, 2, 500, 4) if megabytes == TOY else SIZES[megabytes]


def _network(megabytes, compute_type="float32"):
    width, depth, vocabulary, heads = _size(megabytes)
    options = {"vocabulary": vocabulary, "width": width, "depth": depth, "heads": heads}
    options["compute_type"] = compute_type
    return models.build("transformer", (_LENGTH,), _CLASSES, mean=None, **options)


def _specs(model):
    return tff.types.type_to_tf_tensor_specs(model.weights_type)


def write(megabytes: int, file: str) -> None:
    """Writes the weights of a network of so many megabytes."""
    rng = np.random.default_rng(0)
    tensors = {
        f"{layer}/{name}": rng.normal(0, 0.02, spec.shape).astype(np.float32)
        for layer, specs in _specs(_network(megabytes)).items()
        for name, spec in specs.items()
    }
    safetensors.numpy.save_file(tensors, file)


def measured(case: Case) -> dict[str, Any]:
    """Returns a record of a case, measured in this process."""
    before, start = memory_mib(**_MEMORY)["peak"], time.perf_counter()
    compute_type, frozen_type = _BFLOAT16.get(case.engine, ("float32", "float32"))
    base = _network(case.megabytes, compute_type).starting_from(case.file)
    model = models.lora(base, ["*_attention/*"], rank=8, trained=["head"], frozen_type=frozen_type)
    found: dict[str, Any] = {"set_up": round(time.perf_counter() - start, 2)}
    rng = np.random.default_rng(0)
    vocabulary = _size(case.megabytes)[2]
    x = rng.integers(1, vocabulary, [_CLIENTS, _EXAMPLES, _LENGTH]).astype(np.int32)
    y = rng.integers(0, _CLASSES, [_CLIENTS, _EXAMPLES]).astype(np.int32)
    run = _bare_rounds if case.engine == "bare_tensorflow" else _rounds
    seconds, further = run(case, model, x, y)
    found |= {"first_round": round(seconds[0], 2), "rounds": [round(it, 2) for it in seconds[1:]]}
    found |= {"frozen_mib": round(4 * base.num_weights / 2**20, 1)}
    found |= {"adapter_bytes": 4 * model.num_weights, **further}
    return {**dataclasses.asdict(case), "file": None, **found, "mib_of_imports": before}


def _rounds(case, model, x, y):
    data = tff_pfl.FederatedDataset.from_client_arrays(
        list(zip(x, y, x, y, strict=True)), num_classes=_CLASSES, name="tokens"
    )
    local = tff_pfl.LocalTraining(tff_pfl.OPTIMIZERS["sgd"](0.1), epochs=1, batch_size=_BATCH)
    experiment = tff_pfl.Experiment(
        tff_pfl.make("fedavg", model, local),
        data,
        rounds=case.rounds,
        clients_per_round=case.cohort,
        evaluation=tff_pfl.Evaluation(every=0, clients=2),
    )
    with tempfile.TemporaryDirectory() as folder:
        tff_pfl.train(experiment, folder, verbose=False)
        seconds = RunFiles(pathlib.Path(folder)).timings["round_seconds"]
        peak = memory_mib(**_MEMORY)
        (exchange,) = experiment.process.exchanges
        further = {
            "mib": peak,
            "checkpoint_mib": size_mib(pathlib.Path(folder, "checkpoint")),
            "bytes_down": exchange.down_bytes,
            "bytes_up": exchange.up_bytes,
        }
    return list(seconds), further


def _bare_rounds(case, model, x, y):
    on_gpu = bool(tf.config.list_logical_devices("GPU"))
    with as_variables(tf.Module()) if on_gpu else contextlib.nullcontext():
        return _bare_steps(case, model, x, y)


def _bare_steps(case, model, x, y):
    variables = tf.nest.map_structure(tf.Variable, model.init(0))

    @tf.function(autograph=False)
    def step(x, y):
        weights = tf.nest.map_structure(tf.convert_to_tensor, variables)
        with tf.GradientTape() as tape:
            tape.watch(weights)
            logits = model.apply(weights, x, training=True, seed=tf.zeros([2], tf.int32))
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
            loss = tf.reduce_mean(losses)
        gradient = tape.gradient(loss, weights)
        tf.nest.map_structure(lambda it, change: it.assign_sub(0.1 * change), variables, gradient)

    seconds = []
    for _ in range(case.rounds):
        start = time.perf_counter()
        for client in range(case.cohort):
            for first in range(0, _EXAMPLES, _BATCH):
                rows = slice(first, first + _BATCH)
                step(tf.constant(x[client, rows]), tf.constant(y[client, rows]))
        seconds.append(time.perf_counter() - start)
    return seconds, {"mib": memory_mib(**_MEMORY)}
