"""Cases of whole algorithms: some algorithms of TFF, and all algorithms of this library.

TFF's algorithms cover the ways in which it makes computations: Keras and functional models, data
sets of batches, estimated clipping bounds, secure sums, reconstruction, sketches.
"""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests.federation import (
    EXAMPLES_TYPE,
    IMAGE_SHAPE,
    NUM_CLASSES,
    local_sgd,
    make_clients,
    random_examples,
    tiny_model,
)
from tests.runtime.conformance.cases import Cases, Run
from tff_pfl import models
from tff_pfl.algorithms import ALGORITHMS, build
from tff_pfl.deployment import compose_with_sequence_data
from tff_pfl.evaluation import EvaluatedClient, map_models, measured
from tff_pfl.testing import tiny_normalized_model

case = Cases()

learning = tff.learning
INPUT_SPEC = collections.OrderedDict(
    x=tf.TensorSpec([None, 4], tf.float32), y=tf.TensorSpec([None], tf.int32)
)


def batches(*sizes) -> list[tf.data.Dataset]:
    """Returns each client's shuffled batches of two examples, for two epochs."""
    datasets = []
    for client, size in enumerate(sizes):
        rng = np.random.default_rng(client)
        examples = collections.OrderedDict(
            x=rng.normal(size=(size, 4)).astype(np.float32),
            y=rng.integers(0, 3, size).astype(np.int32),
        )
        rows = tf.data.Dataset.from_tensor_slices(examples)
        rows = rows.shuffle(10, seed=1, reshuffle_each_iteration=False)
        datasets.append(rows.repeat(2).batch(2))
    return datasets


def network() -> tf.keras.Sequential:
    def layer(units, *activation):
        kernel = tf.keras.initializers.RandomNormal(stddev=0.5, seed=units)
        return tf.keras.layers.Dense(units, *activation, kernel_initializer=kernel)

    return tf.keras.Sequential([tf.keras.Input(4), layer(5, "relu"), layer(3)])


def loss() -> tf.keras.losses.Loss:
    return tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def metrics() -> list[tf.keras.metrics.Metric]:
    return [tf.keras.metrics.SparseCategoricalAccuracy()]


def keras_model() -> learning.models.VariableModel:
    return learning.models.from_keras_model(network(), loss(), INPUT_SPEC, metrics=metrics())


def sgd() -> learning.optimizers.Optimizer:
    return learning.optimizers.build_sgdm(0.1, momentum=0.9)


def fed_avg(model=keras_model, **options) -> learning.templates.LearningProcess:
    return learning.algorithms.build_weighted_fed_avg(model, sgd(), **options)


def private_fed_avg() -> learning.templates.LearningProcess:
    aggregator = tff.aggregators.DifferentiallyPrivateFactory.gaussian_adaptive(
        noise_multiplier=0.0, clients_per_round=4, clipped_count_stddev=0.0
    )
    return learning.algorithms.build_unweighted_fed_avg(
        keras_model, sgd(), model_aggregator=aggregator
    )


def functional_fed_avg() -> learning.templates.LearningProcess:
    model = learning.models.functional_model_from_keras(
        network, loss(), INPUT_SPEC, lambda: collections.OrderedDict(accuracy=metrics()[0])
    )
    return fed_avg(model)


def fed_recon() -> learning.templates.LearningProcess:
    def model():
        keras_model = network()
        return learning.models.ReconstructionModel.from_keras_model_and_layers(
            keras_model=keras_model,
            global_layers=keras_model.layers[:-1],
            local_layers=keras_model.layers[-1:],
            input_spec=INPUT_SPEC,
        )

    return learning.algorithms.build_fed_recon(
        model,
        loss_fn=loss,
        metrics_fn=metrics,
        server_optimizer_fn=sgd(),
        client_optimizer_fn=sgd(),
        reconstruction_optimizer_fn=sgd(),
    )


PROCESSES = {
    "fed_avg": fed_avg,
    "fed_avg_of_a_functional_model": functional_fed_avg,
    "fed_avg_by_robust_aggregator": lambda: fed_avg(
        model_aggregator=learning.robust_aggregator(zeroing=True, clipping=True)
    ),
    "fed_avg_by_secure_aggregator": lambda: fed_avg(model_aggregator=learning.secure_aggregator()),
    "fed_avg_by_private_aggregator": private_fed_avg,
    "mime_lite": lambda: learning.algorithms.build_weighted_mime_lite(keras_model, sgd()),
    "fed_recon": fed_recon,
}


@case(name=list(PROCESSES))
def process_of_tff(name):
    """Runs rounds with different cohorts, some clients of which have no data."""
    process = PROCESSES[name]()

    def run():
        state, outputs = process.initialize(), []
        for sizes in [(5, 2, 0, 4), (3,), (6, 2)]:
            outputs.append(process.next(state, batches(*sizes)))
            state = outputs[-1].state
        return outputs, process.get_model_weights(state)

    return Run(run)


@case()
def federated_evaluation_of_tff():
    process = learning.algorithms.build_fed_eval(keras_model)
    return Run(lambda: process.next(process.initialize(), batches(5, 2, 0)))


WORDS = [["red", "blue", "red"], ["red"], ["green", "red", "blue", "green"]]


@case()
def heavy_hitters():
    computation = tff.analytics.heavy_hitters.iblt.build_iblt_computation(
        capacity=10, string_max_bytes=8, seed=1, max_words_per_user=2
    )

    def run():
        data = [tf.data.Dataset.from_tensor_slices(words).batch(1) for words in WORDS]
        result = computation(data)
        hitters = zip(result.heavy_hitters, result.heavy_hitters_counts, strict=True)
        return sorted(hitters), result.num_not_decoded, result.clients

    return Run(run)


# The cases below are of this library's algorithms.

SIZES, ROWS = (6, 1, 9), 10
OPTIONS = {"fedfomo": {"num_models": len(SIZES)}}  # the default needs more clients


def tiny_cnn() -> models.Model:
    layers = tf.keras.layers

    def network():
        return tf.keras.Sequential(
            [
                tf.keras.Input(IMAGE_SHAPE),
                layers.Conv2D(3, 3, activation="relu", name="conv"),
                layers.MaxPool2D(2),
                layers.Flatten(),
                layers.Dense(4, "relu", name="dense1"),
                layers.Dropout(0.5),
                layers.Dense(NUM_CLASSES, name="head"),
            ]
        )

    return models.from_keras(network, input_shape=IMAGE_SHAPE, preprocess=lambda x: x / 255)


def build_algorithm(name, model):
    model = tiny_normalized_model() if name == "fedbn" else model()
    options = {"num_clients": len(SIZES), "clients_per_round": len(SIZES), "seed": 3}
    options |= OPTIONS.get(name, {})
    return build(name, model, EXAMPLES_TYPE, local_sgd(0.1), **options)


def padded(examples):
    """Returns the same examples in `ROWS` rows, so that all clients have one shape."""
    filling = random_examples(ROWS - int(examples.size), seed=99)
    x, y = (np.concatenate(pair) for pair in zip(examples[:2], filling[:2], strict=True))
    return examples._replace(x=x, y=y)


@case(name=list(ALGORITHMS))
def algorithm(name):
    """Runs two rounds of padded clients, then the evaluation."""
    process = build_algorithm(name, tiny_cnn)

    def of_model(model, weights, test):
        return measured(model, weights, test, batch_size=4)

    evaluation = map_models(process, of_model)

    def run():
        state, outputs = process.initialize(), []
        cohort = [c._replace(data=padded(c.data)) for c in make_clients(process, SIZES)]
        for _ in range(2):
            output = process.next(state, cohort)
            state = output.state
            cohort = [c._replace(state=s) for c, s in zip(cohort, output.clients, strict=True)]
            outputs.append(output)
        tests = [padded(random_examples(size, seed=7)) for size in (4, 0, 3)]
        evaluated = list(map(EvaluatedClient, cohort, tests))
        return outputs, process.personalize(state, cohort), evaluation(state, evaluated)

    return Run(run)


@case()
def algorithm_on_sequences():
    """Runs a round whose clients have data sets of examples."""
    element = tff.types.StructWithPythonType(
        [("x", tff.types.TensorType(np.uint8, IMAGE_SHAPE)), ("y", np.int32)], dict
    )
    process = build_algorithm("ditto", tiny_model)
    clients = make_clients(process, SIZES)
    process = compose_with_sequence_data(process, element, capacity=ROWS)

    def dataset(examples):
        return tf.data.Dataset.from_tensor_slices({"x": examples.x, "y": examples.y})

    def run():
        cohort = [client._replace(data=dataset(client.data)) for client in clients]
        return process.next(process.initialize(), cohort)

    return Run(run)
