"""Every algorithm of this library: two rounds, then the evaluation."""

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
from tests.runtime.conformance.catalogue import Catalogue, Run
from tff_pfl import models
from tff_pfl.algorithms import ALGORITHMS, build
from tff_pfl.evaluation import build_evaluation
from tff_pfl.evaluation.federated import EvaluatedClient
from tff_pfl.templates import compose_with_sequence_data
from tff_pfl.testing import tiny_normalized_model

case = Catalogue()

SIZES = (6, 1, 9)
ROWS = 10
OPTIONS = {"fedfomo": {"num_models": len(SIZES)}}  # where the defaults need more clients

# What they do with their clients in a loop, all their other tests show.
KINDS = ("stock", "auto")


def tiny_cnn() -> models.Model:
    """A convolution, normalisation, dropout, pooling and a layer; the images are tiny too."""

    def network():
        return tf.keras.Sequential(
            [
                tf.keras.layers.Conv2D(
                    3, 3, activation="relu", input_shape=IMAGE_SHAPE, name="conv"
                ),
                tf.keras.layers.MaxPool2D(2),
                tf.keras.layers.Flatten(),
                tf.keras.layers.Dense(4, "relu", name="dense1"),
                tf.keras.layers.Dropout(0.5),
                tf.keras.layers.Dense(NUM_CLASSES, name="head"),
            ]
        )

    return models.from_keras(network, input_shape=IMAGE_SHAPE, preprocess=lambda x: x / 255)


MODELS = {"mlp": tiny_model, "cnn": tiny_cnn}


def pad(examples):
    """The same examples in `ROWS` rows, so that all clients have one shape."""
    filling = random_examples(ROWS - int(examples.size), seed=99)
    x, y = (np.concatenate(pair) for pair in zip(examples[:2], filling[:2], strict=True))
    return examples._replace(x=x, y=y)


def rounds_and_evaluation(process, model):
    """The outputs of two rounds, and every client evaluated."""
    evaluation = build_evaluation(process, model, batch_size=4)

    def run(clients, tests):
        state, cohort, outputs = process.initialize(), clients, []
        for _ in range(2):
            output = process.next(state, cohort)
            state = output.state
            cohort = [c._replace(state=s) for c, s in zip(cohort, output.clients, strict=True)]
            outputs.append(output)
        evaluated = list(map(EvaluatedClient, cohort, tests))
        return outputs, process.personalize(state, cohort), evaluation(state, evaluated)

    return run


def build_algorithm(name, model):
    return build(
        name,
        model,
        EXAMPLES_TYPE,
        local_sgd(0.1),
        num_clients=len(SIZES),
        clients_per_round=len(SIZES),
        seed=3,
        **OPTIONS.get(name, {}),
    )


def run_of(name, model, *, padded=False) -> Run:
    model = tiny_normalized_model() if name == "fedbn" else MODELS[model]()
    process = build_algorithm(name, model)
    clients = make_clients(process, SIZES)
    tests = [random_examples(size, seed=7) for size in (4, 0, 3)]
    if padded:
        clients = [client._replace(data=pad(client.data)) for client in clients]
        tests = list(map(pad, tests))
    return Run(rounds_and_evaluation(process, model), clients, tests)


# The contract of all algorithms compares the runtimes, too, and pads examples.
@case(name=list(ALGORITHMS), kinds=KINDS)
def algorithm(name):
    return run_of(name, "mlp")


@case(name=list(ALGORITHMS), kinds=KINDS)
def algorithm_with_convolutions(name):
    return run_of(name, "cnn")


@case(name=["ditto"], kinds=KINDS)
def algorithm_on_padded_examples(name):
    return run_of(name, "mlp", padded=True)


@case(name=list(ALGORITHMS))
def algorithm_with_convolutions_on_padded_examples(name):
    return run_of(name, "cnn", padded=True)


@case(name=["ditto"], kinds=KINDS)
def algorithm_on_sequences(name):
    """Clients bring data sets of examples."""
    element = tff.types.StructWithPythonType(
        [("x", tff.types.TensorType(np.uint8, IMAGE_SHAPE)), ("y", np.int32)], dict
    )
    process = build_algorithm(name, tiny_model())
    clients = make_clients(process, SIZES)
    process = compose_with_sequence_data(process, element, capacity=ROWS)

    def dataset(examples):
        return tf.data.Dataset.from_tensor_slices({"x": examples.x, "y": examples.y})

    def run():
        cohort = [client._replace(data=dataset(client.data)) for client in clients]
        return process.next(process.initialize(), cohort)

    return Run(run)
