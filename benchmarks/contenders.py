"""Measures implementations of one round of FedAvg, in several runtimes.

A contender is a function that builds its rounds from a workload and its data. Each call of the
result does one more round and returns the round's mean training loss. All contenders start from the
same weights, and run FedAvg or an algorithm whose first round trains like FedAvg. To add a
contender, write a function and add a row to `CONTENDERS`.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from benchmarks.timing import in_turns, memory_mib, ratio, spread
from benchmarks.workloads import RUNTIMES, SEED, Workload, cohort_of, installed
from tff_pfl.algorithms import ALGORITHMS
from tff_pfl.arguments.names import check_names

Round = Callable[[], float]


def bare_tensorflow(workload: Workload, x: Sequence[np.ndarray], y: Sequence[np.ndarray]) -> Round:
    """Builds rounds as a loop over clients in one `tf.function`, without this library or TFF.

    Args:
        workload: The workload.
        x: The inputs of each client, whose numbers may differ.
        y: The labels of each client.
    """

    def step(weights, x, y):
        with tf.GradientTape() as tape:
            tape.watch(weights)
            losses = workload.losses(y, workload.outputs(weights, workload.inputs(x)))
            loss = tf.reduce_mean(losses)
        gradient = _dense(tape.gradient(loss, weights))
        weights = [w - workload.learning_rate * g for w, g in zip(weights, gradient, strict=True)]
        return weights, tf.reduce_sum(losses)

    return _bare_rounds(workload, x, y, workload.initial_weights(), step)


def bare_keras(workload: Workload, x: np.ndarray, y: np.ndarray) -> Round:
    """Builds rounds like `bare_tensorflow`, for any network, with Keras layers and variables."""

    def step(x, y, network):
        losses, gradients = _keras_gradient(workload, network, x, y)
        _descend(network, gradients, workload.learning_rate)
        return losses

    return _bare_keras_rounds(workload, x, y, step, 1)


def bare_keras_plgu_lf(workload: Workload, x: np.ndarray, y: np.ndarray) -> Round:
    """Builds rounds like PLGU-LF's first one, with two models and two gradients in each step."""

    def step(x, y, shared, personal):
        losses, ascent = _keras_gradient(workload, personal, x, y)
        scale = 0.05 / (len(ascent) * tf.linalg.global_norm(ascent))
        _descend(shared, ascent, -scale)
        _, gradients = _keras_gradient(workload, shared, x, y)
        _descend(shared, ascent, scale)
        _descend(shared, gradients, workload.learning_rate)
        _descend(personal, ascent, workload.learning_rate)
        return losses

    return _bare_keras_rounds(workload, x, y, step, 2)


def _keras_gradient(workload, network, x, y):
    """Returns the summed loss of a batch, and the gradient of the mean loss."""
    with tf.GradientTape() as tape:
        losses = workload.losses(y, network(workload.inputs(x), training=True))
        loss = tf.reduce_mean(losses)
    return tf.reduce_sum(losses), _dense(tape.gradient(loss, network.trainable_variables))


def _dense(gradients):
    """Returns gradients as tensors; those of embeddings are `IndexedSlices`."""
    return list(map(tf.convert_to_tensor, gradients))


def _descend(network, gradients, rate):
    for variable, gradient in zip(network.trainable_variables, gradients, strict=True):
        variable.assign_sub(rate * gradient)


def _bare_keras_rounds(workload, x, y, keras_step, num_networks) -> Round:
    """Builds rounds whose networks start from the server's weights; averages the first network."""
    # Keras would assume TensorFlow 1, because the flags are read before TensorFlow is imported.
    with tf.__internal__.eager_context.eager_mode():
        networks = [workload.keras_model() for _ in range(num_networks)]
    variables = networks[0].trainable_variables
    names = [variable.name.removesuffix(":0").rpartition("/") for variable in variables]
    initial = workload.model().init(SEED)
    server = [tf.constant(initial[layer][weight]) for layer, _, weight in names]

    def begin(server):
        for network in networks:
            for variable, weight in zip(network.trainable_variables, server, strict=True):
                variable.assign(weight)
        return []

    def step(_, x, y):
        return [], keras_step(x, y, *networks)

    return _bare_rounds(workload, x, y, server, step, begin, lambda _: variables)


def _bare_rounds(
    workload, x, y, server, step, begin=lambda server: server, end=lambda weights: weights
) -> Round:
    """Builds rounds from `server`; `step(weights, x, y)` returns weights and the summed loss."""
    sizes = np.array(list(map(len, y)), np.int32)
    clients, total = len(sizes), int(sizes.sum())
    x, y = tf.constant(np.concatenate(x)), tf.constant(np.concatenate(y))
    sizes, ends = tf.constant(sizes), tf.constant(np.cumsum(sizes, dtype=np.int32))
    rounds = itertools.count()

    @tf.function
    def one_round(server, round_num):
        mean = [tf.zeros_like(w) for w in server]
        loss = 0.0
        for client in tf.range(clients):
            weights, size = begin(server), sizes[client]
            first = ends[client] - size
            for epoch in tf.range(workload.epochs):
                seed = [round_num * clients + client, epoch]
                order = tf.random.experimental.stateless_shuffle(tf.range(size), seed)
                for start in tf.range(0, size, workload.batch_size):
                    rows = first + order[start : start + workload.batch_size]
                    x_batch, y_batch = tf.gather(x, rows), tf.gather(y, rows)
                    weights, batch_loss = step(weights, x_batch, y_batch)
                    loss += batch_loss
            share = tf.cast(size, tf.float32) / total
            mean = [m + share * w for m, w in zip(mean, end(weights), strict=True)]
        return mean, loss / (total * workload.epochs)

    def run() -> float:
        nonlocal server
        server, loss = one_round(server, tf.constant(next(rounds)))
        return float(loss)

    return run


def tff_pfl_algorithm(name: str, workload: Workload, x: np.ndarray, y: np.ndarray) -> Round:
    """Builds rounds of an algorithm of this library, for the current execution context."""
    process = workload.process(name)
    cohort = cohort_of(process, x, y)
    state = process.initialize()

    def run() -> float:
        nonlocal state, cohort
        output = process.next(state, cohort)
        state = output.state
        cohort = [c._replace(state=s) for c, s in zip(cohort, output.clients, strict=True)]
        return float(output.metrics["train"]["loss"])

    return run


def tff_learning_fedavg(workload: Workload, x: np.ndarray, y: np.ndarray) -> Round:
    """Builds rounds of TFF's own FedAvg on `tf.data` clients, for the current execution context."""

    def scale(x, y):
        return tf.cast(x, tf.float32) / 255.0, y

    def client_data(x, y):
        examples = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(y), seed=SEED)
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


Build = Callable[[Workload, np.ndarray, np.ndarray], Round]


def within(runtime: str, build: Build, **options) -> Build:
    """Returns a contender that runs in its own context, with these options of the model."""

    def build_within(workload, x, y):
        context, workload = RUNTIMES[runtime](), dataclasses.replace(workload, **options)

        def in_context(function, *arguments):
            with installed(context):
                return function(*arguments)

        return functools.partial(in_context, in_context(build, workload, x, y))

    return build_within


_fedavg, _plgu_lf = (functools.partial(tff_pfl_algorithm, name) for name in ("fedavg", "plgu_lf"))
_MODEL_OPTIONS = {
    "4_segments": {"segments": 4},
    "bfloat16": {"compute_type": "bfloat16"},
    "bfloat16_4_segments": {"segments": 4, "compute_type": "bfloat16"},
}

CONTENDERS: dict[str, Build] = {
    "bare_tensorflow": bare_tensorflow,
    "bare_keras": bare_keras,
    "bare_keras_plgu_lf": bare_keras_plgu_lf,
    **{f"tff_pfl_{name}": within(name, _fedavg) for name in RUNTIMES},
    "tff_learning_cpp_runtime": within("cpp_runtime", tff_learning_fedavg),
    # `tf.data` clients cannot be vectorized.
    "tff_learning_graph_loop": within("graph_loop", tff_learning_fedavg),
}
for _name in ALGORITHMS:
    CONTENDERS[_name] = within("graph_loop", functools.partial(tff_pfl_algorithm, _name))
for _name, _options in _MODEL_OPTIONS.items():
    CONTENDERS[f"tff_pfl_{_name}"] = within("graph_loop", _fedavg, **_options)
    CONTENDERS[f"plgu_lf_{_name}"] = within("graph_loop", _plgu_lf, **_options)

# The default contenders of each workload. On CPUs, convolutions whose filters differ by client
# cannot be vectorized.
_OURS = tuple(f"tff_pfl_{name}" for name in RUNTIMES)
_DEFAULT = {
    "linear": ("bare_tensorflow", *_OURS, "tff_learning_cpp_runtime"),
    "cnn": ("bare_tensorflow", "tff_pfl_cpp_runtime", "tff_pfl_graph_loop"),
    "resnet18": ("bare_keras", "tff_pfl_graph_loop", "bare_keras_plgu_lf", "plgu_lf"),
}
_LOSS_TOLERANCE = 0.02


def default_contenders(workload: str) -> tuple[str, ...]:
    """Returns the default contenders of a workload on this machine."""
    more = workload == "cnn" and tf.config.list_logical_devices("GPU")
    return _DEFAULT[workload] + (("tff_pfl_graph_vectorized",) if more else ())


def measure(
    name: str, workload: Workload, contenders: Sequence[str], *, rounds: int, warmup: int
) -> Iterator[dict[str, Any]]:
    """Runs contenders of a workload in turns.

    Args:
        name: The name of the workload.
        workload: The workload.
        contenders: Keys of `CONTENDERS`.
        rounds: The number of measured rounds of each contender.
        warmup: The number of rounds before these, which trace graphs and allocate memory.

    Yields:
        A record for each contender, and a last record with the ratios of the medians of all pairs.
        For a single contender, the last record has the peak memory of the process instead. The loss
        in a record is the mean training loss of the first round. It is the same for all contenders.

    Raises:
        ValueError: A contender is unknown, or the losses of the first round differ. Then the
            contenders did different work, and their times cannot be compared.
    """
    check_names("contender", contenders, CONTENDERS)
    data, losses = workload.data(), {}

    def run_of(contender):
        run = CONTENDERS[contender](workload, *data)
        return lambda: losses.setdefault(contender, run())

    runs = {contender: run_of(contender) for contender in contenders}
    seconds = in_turns(
        name, runs, rounds=rounds, warmup=warmup, after_first=lambda: check_same_work(losses)
    )
    spreads = {contender: spread(values) for contender, values in seconds.items()}
    for contender, round_spread in spreads.items():
        yield {
            "workload": name,
            "contender": contender,
            "seconds_per_round": round_spread,
            "ms_per_client": round(1000 * round_spread["median"] / workload.clients, 4),
            "rounds": rounds,
            "clients": workload.clients,
            "examples_per_client": workload.examples_per_client,
            "epochs": workload.epochs,
            "batch_size": workload.batch_size,
            "first_round_loss": round(losses[contender], 5),
        }
    if len(spreads) == 1:
        yield {"workload": name, **memory_mib(peak_memory_mib="VmHWM")}
        return
    pairs = itertools.combinations(spreads, 2)
    ratios = {f"{b}/{a}": ratio(spreads[b], spreads[a]) for a, b in pairs}
    yield {"workload": name, "ratios_of_medians": ratios}


def check_same_work(losses: dict[str, float]) -> None:
    """Raises ValueError unless the losses agree, up to the order of the batches."""
    values = list(losses.values())
    if not np.allclose(values, values[0], rtol=_LOSS_TOLERANCE, atol=0.0):
        raise ValueError(f"The contenders' losses after the first round differ: {losses}.")
