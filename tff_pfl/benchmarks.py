"""Seconds a round: the same federated averaging, done by several contenders.

A contender is built from a workload and its data, and is then a function that does one more round
of FedAvg at each call, from the same initial weights, and returns the round's mean training loss.
Adding one adds a function and a row of `CONTENDERS`. Contenders take turns round by round, so that
a machine that slows down slows all of them.
"""

import dataclasses
import itertools
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tqdm

from tff_pfl import models
from tff_pfl.algorithms.fedavg import build_fedavg
from tff_pfl.local import Examples, LocalSGD, examples_type
from tff_pfl.templates import Client

_SEED = 0
_NUM_CLASSES = 10
_LOSS_TOLERANCE = 0.05

Round = Callable[[], float]


class DifferentWorkError(RuntimeError):
    """Contenders that were to do the same work did not: their times cannot be compared."""


@dataclasses.dataclass(frozen=True)
class Workload:
    """A round of FedAvg by SGD.

    Attributes:
        network: A key of `models.ZOO`.
        options: Further arguments of the network.
        image_shape: `(height, width, channels)`.
        clients: Size of the cohort, which is the same in every round.
        examples_per_client: All clients have as many.
        epochs: Passes over a client's examples in a round.
        batch_size: Examples a step.
        contenders: Keys of `CONTENDERS`; the first is what users compare with.
        learning_rate: Of the clients.
    """

    network: str
    options: dict[str, Any]
    image_shape: tuple[int, int, int]
    clients: int
    examples_per_client: int
    epochs: int
    batch_size: int
    contenders: tuple[str, ...] = ("bare_tensorflow", "tff_pfl_cpp_runtime")
    learning_rate: float = 0.05

    def keras_model(self) -> tf.keras.Model:
        """The network, which takes images scaled to [0, 1]."""
        return models.ZOO[self.network](self.image_shape, _NUM_CLASSES, **self.options)

    def model(self) -> models.Model:
        """The network as a pure model, which takes images as they are stored."""
        return models.build(self.network, self.image_shape, _NUM_CLASSES, **self.options)

    def initial_weights(self) -> list[tf.Tensor]:
        """Kernel, bias, kernel, bias and so on, from input to output."""
        layers = self.model().init(_SEED).values()
        return [weight for layer in layers for weight in layer.values()]

    def data(self) -> tuple[np.ndarray, np.ndarray]:
        """Images `uint8[clients, examples, ...]`, `int32` labels: a prototype a class, and noise.

        Classes can be told apart, so that contenders that do the same work reach the same loss.
        """
        rng = np.random.default_rng(_SEED)
        prototypes = rng.integers(0, 128, (_NUM_CLASSES, *self.image_shape), np.uint8)
        y = rng.integers(_NUM_CLASSES, size=(self.clients, self.examples_per_client))
        return prototypes[y] + rng.integers(0, 128, (*y.shape, *self.image_shape), np.uint8), (
            y.astype(np.int32)
        )


WORKLOADS: dict[str, Workload] = {
    # Logistic regression, 784 -> 10, one step a client: what a client costs besides its training.
    "linear": Workload(
        network="mlp",
        options={"hidden": ()},
        image_shape=(28, 28, 1),
        clients=100,
        examples_per_client=20,
        epochs=1,
        batch_size=20,
        contenders=("bare_tensorflow", "tff_pfl_cpp_runtime", "tff_learning_cpp_runtime"),
    ),
    # PGFed's network, 50 steps a client: what training costs.
    "cnn": Workload(
        network="cnn_pgfed",
        options={},
        image_shape=(32, 32, 3),
        clients=10,
        examples_per_client=500,
        epochs=5,
        batch_size=50,
    ),
}


def bare_tensorflow(workload: Workload, x: np.ndarray, y: np.ndarray) -> Round:
    """A loop over clients, epochs and batches in one `tf.function`, without this library or TFF."""
    x, y = tf.constant(x), tf.constant(y)
    clients, size = y.shape

    def logits(weights, x):
        x = tf.cast(x, tf.float32) / 255.0
        *hidden, head = zip(weights[::2], weights[1::2], strict=True)
        for kernel, bias in hidden:
            if kernel.shape.rank == 4:
                x = tf.nn.relu(tf.nn.conv2d(x, kernel, 1, "VALID") + bias)
                x = tf.nn.max_pool2d(x, 2, 2, "VALID")
            else:
                x = tf.nn.relu(tf.reshape(x, [-1, kernel.shape[0]]) @ kernel + bias)
        kernel, bias = head
        return tf.reshape(x, [-1, kernel.shape[0]]) @ kernel + bias

    def step(weights, x, y):
        with tf.GradientTape() as tape:
            tape.watch(weights)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits(weights, x))
            loss = tf.reduce_mean(losses)
        gradient = tape.gradient(loss, weights)
        weights = [w - workload.learning_rate * g for w, g in zip(weights, gradient, strict=True)]
        return weights, tf.reduce_sum(losses)

    @tf.function
    def one_round(server, round_num):
        mean = [tf.zeros_like(w) for w in server]
        loss = 0.0
        for client in tf.range(clients):
            weights, x_client, y_client = server, x[client], y[client]
            for epoch in tf.range(workload.epochs):
                seed = [round_num * clients + client, epoch]
                order = tf.random.experimental.stateless_shuffle(tf.range(size), seed)
                for start in tf.range(0, size, workload.batch_size):
                    rows = order[start : start + workload.batch_size]
                    x_batch, y_batch = tf.gather(x_client, rows), tf.gather(y_client, rows)
                    weights, batch_loss = step(weights, x_batch, y_batch)
                    loss += batch_loss
            mean = [m + w / clients for m, w in zip(mean, weights, strict=True)]
        return mean, loss / (clients * size * workload.epochs)

    server = workload.initial_weights()
    rounds = itertools.count()

    def run() -> float:
        nonlocal server
        server, loss = one_round(server, tf.constant(next(rounds)))
        return float(loss)

    return run


def tff_pfl_fedavg(workload: Workload, x: np.ndarray, y: np.ndarray) -> Round:
    """This library's FedAvg, in the execution context that is TFF's default when it runs."""
    optimizer = tff.learning.optimizers.build_sgdm(workload.learning_rate)
    process = build_fedavg(
        workload.model(),
        examples_type(workload.image_shape),
        LocalSGD(optimizer, epochs=workload.epochs, batch_size=workload.batch_size),
        seed=_SEED,
    )
    size = np.int32(workload.examples_per_client)
    cohort = [
        Client(np.int32(client_id), (), Examples(*examples, size))
        for client_id, examples in enumerate(zip(x, y, strict=True))
    ]
    state = process.initialize()

    def run() -> float:
        nonlocal state
        output = process.next(state, cohort)
        state = output.state
        return float(output.metrics["train"]["loss"])

    return run


def tff_learning_fedavg(workload: Workload, x: np.ndarray, y: np.ndarray) -> Round:
    """TFF's own FedAvg on `tf.data` clients, in the execution context that is TFF's default."""

    def scale(x, y):
        return tf.cast(x, tf.float32) / 255.0, y

    def client_data(x, y):
        examples = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(y), seed=_SEED)
        return examples.batch(workload.batch_size).map(scale).repeat(workload.epochs)

    cohort = [client_data(*examples) for examples in zip(x, y, strict=True)]

    def model_fn():
        return tff.learning.models.from_keras_model(
            workload.keras_model(),
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            input_spec=cohort[0].element_spec,
        )

    process = tff.learning.algorithms.build_weighted_fed_avg(
        model_fn,
        client_optimizer_fn=tff.learning.optimizers.build_sgdm(workload.learning_rate),
    )
    initial = tff.learning.models.ModelWeights(workload.initial_weights(), [])
    state = process.set_model_weights(process.initialize(), initial)

    def run() -> float:
        nonlocal state
        state, metrics = process.next(state, cohort)
        return float(metrics["client_work"]["train"]["loss"])

    return run


CONTENDERS: dict[str, Callable[[Workload, np.ndarray, np.ndarray], Round]] = {
    "bare_tensorflow": bare_tensorflow,
    "tff_pfl_cpp_runtime": tff_pfl_fedavg,
    "tff_learning_cpp_runtime": tff_learning_fedavg,
}


def machine() -> dict[str, Any]:
    """What the seconds were measured on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "machine": {
            "cpus": len(os.sched_getaffinity(0)),
            "memory_gib": round(memory / 2**30, 1),
            "tensorflow": tf.__version__,
            "tff": tff.__version__,
        }
    }


def measure(name: str, workload: Workload, *, rounds: int, warmup: int) -> Iterator[dict[str, Any]]:
    """Runs the contenders of a workload, in turns.

    Args:
        name: Of the workload.
        workload: What is run.
        rounds: Rounds of each contender that count.
        warmup: Rounds of each before that, in which graphs are traced and memory is allocated.

    Yields:
        A record a contender, then one with the ratios of the medians of all pairs. The loss in a
        record is the mean training loss of its first round, the same for all of them.

    Raises:
        DifferentWorkError: These losses differ.
    """
    data = workload.data()
    seconds = {contender: [] for contender in workload.contenders}
    losses = {}
    bar = tqdm.tqdm(total=(warmup + rounds) * len(seconds), desc=name, unit="round", disable=None)
    with bar:
        runs = {contender: CONTENDERS[contender](workload, *data) for contender in seconds}
        for _, contender in itertools.product(range(warmup + rounds), runs):
            start = time.perf_counter()
            loss = runs[contender]()
            seconds[contender].append(time.perf_counter() - start)
            losses.setdefault(contender, loss)
            bar.set_postfix({contender: f"{seconds[contender][-1]:.3g} s"})
            bar.update()
    check_same_work(losses)
    medians = {}
    for contender, measured in seconds.items():
        measured = measured[warmup:]
        medians[contender] = statistics.median(measured)
        spread = {"median": medians[contender], "min": min(measured), "max": max(measured)}
        yield {
            "workload": name,
            "contender": contender,
            "seconds_per_round": {key: round(value, 6) for key, value in spread.items()},
            "ms_per_client": round(1000 * medians[contender] / workload.clients, 4),
            "rounds": rounds,
            "clients": workload.clients,
            "examples_per_client": workload.examples_per_client,
            "epochs": workload.epochs,
            "batch_size": workload.batch_size,
            "first_round_loss": round(losses[contender], 5),
        }
    yield {
        "workload": name,
        "ratios_of_medians": {
            f"{b}/{a}": round(medians[b] / medians[a], 3)
            for a, b in itertools.combinations(medians, 2)
        },
    }


def check_same_work(losses: dict[str, float]) -> None:
    """Raises DifferentWorkError unless the losses agree, up to the order of the batches."""
    values: Sequence[float] = list(losses.values())
    if not np.allclose(values, values[0], rtol=_LOSS_TOLERANCE, atol=0.0):
        raise DifferentWorkError(f"The contenders' losses after the first round differ: {losses}.")
