"""Who is benchmarked: implementations of one round, in the runtimes that execute them.

A contender is built from a workload and its data, and is then a function that does one more round
at each call, from the same initial weights, and returns the round's mean training loss: of FedAvg,
or of another algorithm whose first round trains as FedAvg's does.
Adding one adds a function and a row of `CONTENDERS`.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from benchmarks.processes import process_of
from benchmarks.runtimes import RUNTIMES
from benchmarks.workloads import SEED, Workload
from tff_pfl import algorithms
from tff_pfl.local import Examples
from tff_pfl.templates import Client

Round = Callable[[], float]


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

    return _in_turn(one_round, workload.initial_weights())


def bare_keras(workload: Workload, x: np.ndarray, y: np.ndarray) -> Round:
    """As `bare_tensorflow`, for any network: of Keras' own layers, and with its variables."""
    network = _eager_network(workload)

    def step(x, y):
        losses, gradients = _keras_gradient(network, x, y)
        _descend(network, gradients, workload.learning_rate)
        return losses

    return _bare_keras_rounds(workload, x, y, [network], step)


def bare_keras_plgu_lf(workload: Workload, x: np.ndarray, y: np.ndarray) -> Round:
    """Likewise what PLGU-LF computes in a first round: two models, two gradients a step."""
    personal, shared = _eager_network(workload), _eager_network(workload)

    def step(x, y):
        losses, ascent = _keras_gradient(personal, x, y)
        scale = 0.05 / (len(ascent) * tf.linalg.global_norm(ascent))
        _descend(shared, ascent, -scale)
        _, gradients = _keras_gradient(shared, x, y)
        _descend(shared, ascent, scale)
        _descend(shared, gradients, workload.learning_rate)
        _descend(personal, ascent, workload.learning_rate)
        return losses

    return _bare_keras_rounds(workload, x, y, [shared, personal], step)


def _eager_network(workload):
    # Keras takes a program that imports TensorFlow after its flags are read for TensorFlow 1.
    with tf.__internal__.eager_context.eager_mode():
        return workload.keras_model()


def _keras_gradient(network, x, y):
    """The summed loss of a batch, and the gradient of its mean."""
    with tf.GradientTape() as tape:
        logits = network(tf.cast(x, tf.float32) / 255.0, training=True)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
        loss = tf.reduce_mean(losses)
    return tf.reduce_sum(losses), tape.gradient(loss, network.trainable_variables)


def _descend(network, gradients, rate):
    for variable, gradient in zip(network.trainable_variables, gradients, strict=True):
        variable.assign_sub(rate * gradient)


def _bare_keras_rounds(workload, x, y, networks, step) -> Round:
    """Rounds in which all networks start from the server's, and the first is averaged."""
    x, y = tf.constant(x), tf.constant(y)
    clients, size = y.shape
    initial = workload.model().init(SEED)
    variables = networks[0].trainable_variables
    names = [variable.name.removesuffix(":0").rpartition("/") for variable in variables]

    @tf.function
    def one_round(server, round_num):
        mean = [tf.zeros_like(w) for w in server]
        loss = 0.0
        for client in tf.range(clients):
            for network in networks:
                for variable, weight in zip(network.trainable_variables, server, strict=True):
                    variable.assign(weight)
            for epoch in tf.range(workload.epochs):
                seed = [round_num * clients + client, epoch]
                order = tf.random.experimental.stateless_shuffle(tf.range(size), seed)
                for start in tf.range(0, size, workload.batch_size):
                    rows = order[start : start + workload.batch_size]
                    loss += step(tf.gather(x[client], rows), tf.gather(y[client], rows))
            mean = [m + v / clients for m, v in zip(mean, variables, strict=True)]
        return mean, loss / (clients * size * workload.epochs)

    server = [tf.constant(initial[layer][weight]) for layer, _, weight in names]
    return _in_turn(one_round, server)


def _in_turn(one_round, server) -> Round:
    """Rounds of a `(server, number of the round) -> (server, loss)`, from the first on."""
    rounds = itertools.count()

    def run() -> float:
        nonlocal server
        server, loss = one_round(server, tf.constant(next(rounds)))
        return float(loss)

    return run


def tff_pfl_algorithm(name: str, workload: Workload, x: np.ndarray, y: np.ndarray) -> Round:
    """An algorithm of this library, in the execution context that is TFF's when it runs."""
    clients = workload.clients
    process = process_of(name, workload, num_clients=clients, clients_per_round=clients)
    size = np.int32(workload.examples_per_client)
    cohort = [
        Client(np.int32(i), process.initialize_client(np.int32(i)), Examples(*examples, size))
        for i, examples in enumerate(zip(x, y, strict=True))
    ]
    state = process.initialize()

    def run() -> float:
        nonlocal state, cohort
        output = process.next(state, cohort)
        state = output.state
        cohort = [c._replace(state=s) for c, s in zip(cohort, output.clients, strict=True)]
        return float(output.metrics["train"]["loss"])

    return run


def tff_learning_fedavg(workload: Workload, x: np.ndarray, y: np.ndarray) -> Round:
    """TFF's own FedAvg on `tf.data` clients, in the execution context that is TFF's."""

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


def _within(
    create_context: Callable[[], tff.framework.SyncExecutionContext], build: Build
) -> Build:
    """The contender that builds and runs in an execution context of its own."""

    def build_within(workload, x, y):
        context = create_context()

        def within(function, *arguments):
            with tff.framework.get_context_stack().install(context):
                return function(*arguments)

        return functools.partial(within, within(build, workload, x, y))

    return build_within


def _with(algorithm: str, **options) -> Build:
    """An algorithm in a loop over clients, of a model with other options."""

    def build(workload, x, y):
        return tff_pfl_algorithm(algorithm, dataclasses.replace(workload, **options), x, y)

    return _within(RUNTIMES["graph_loop"], build)


_MODEL_OPTIONS = {
    "4_segments": {"segments": 4},
    "bfloat16": {"compute_type": "bfloat16"},
    "bfloat16_4_segments": {"segments": 4, "compute_type": "bfloat16"},
}

CONTENDERS: dict[str, Build] = {
    "bare_tensorflow": bare_tensorflow,
    "bare_keras": bare_keras,
    "bare_keras_plgu_lf": bare_keras_plgu_lf,
    **{
        f"{contender}_{name}": _with(algorithm, **options)
        for contender, algorithm in (("tff_pfl", "fedavg"), ("plgu_lf", "plgu_lf"))
        for name, options in _MODEL_OPTIONS.items()
    },
    **{
        f"tff_pfl_{name}": _within(create, functools.partial(tff_pfl_algorithm, "fedavg"))
        for name, create in RUNTIMES.items()
    },
    "tff_learning_cpp_runtime": _within(RUNTIMES["cpp_runtime"], tff_learning_fedavg),
    # Data sets of clients cannot be vectorized.
    "tff_learning_graph_loop": _within(RUNTIMES["graph_loop"], tff_learning_fedavg),
    **{
        name: _within(RUNTIMES["graph_loop"], functools.partial(tff_pfl_algorithm, name))
        for name in algorithms.ALGORITHMS
    },
}
