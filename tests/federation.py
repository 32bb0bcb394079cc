"""Provides a small federation: random images of 4x4 pixels, 3 classes and a tiny network."""

import dataclasses
import functools
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl import algorithms, models
from tff_pfl.data import FederatedDataset
from tff_pfl.evaluation import Evaluation
from tff_pfl.experiment import Experiment
from tff_pfl.local import Examples, LocalTraining, examples_type
from tff_pfl.templates import Algorithm, Client, Exchange, PersonalizedProcess
from tff_pfl.testing.eager import EagerProcess

IMAGE_SHAPE = (4, 4, 1)
NUM_CLASSES = 3
SIZES = (4, 6, 3)  # the number of examples of each client
COHORTS = ((0, 1), (1, 2), (0, 2))  # the clients of each round
EXAMPLES_TYPE = examples_type(IMAGE_SHAPE)


@functools.cache
def tiny_model() -> models.Model:
    return models.build("mlp", IMAGE_SHAPE, NUM_CLASSES, hidden=(5,))


def local_sgd(learning_rate=0.5, epochs=1, batch_size=4, **options) -> LocalTraining:
    return LocalTraining(
        tff.learning.optimizers.build_sgdm(learning_rate),
        epochs=epochs,
        batch_size=batch_size,
        **options,
    )


def eager(name: str, model: models.Model, local: LocalTraining, seed=0, **options) -> EagerProcess:
    """Makes an algorithm's process without TFF; `traced` is cheaper for many clients."""
    return EagerProcess(algorithms.make(name, model, local, **options), seed)


def traced(name: str, model: models.Model, local: LocalTraining, seed=0, **options) -> EagerProcess:
    """Makes a process like `eager`, with client work that is traced only once."""
    algorithm = algorithms.make(name, model, local, **options)
    return EagerProcess(algorithm.with_exchanges(_with_traced_work), seed)


def _with_traced_work(exchange: Exchange) -> Exchange:
    functions = []

    def client_work(*args):
        if not functions:
            message, state, examples, context = tf.nest.map_structure(_spec, args)
            x, y = tf.nest.map_structure(_any_number, (examples.x, examples.y))
            signature = [message, state, examples._replace(x=x, y=y), context]
            functions.append(tf.function(exchange.client_work, signature, autograph=False))
        return functions[0](*args)

    return dataclasses.replace(exchange, client_work=client_work)


def _spec(value) -> tf.TensorSpec:
    return tf.TensorSpec.from_tensor(tf.convert_to_tensor(value))


def _any_number(rows: tf.TensorSpec) -> tf.TensorSpec:
    return tf.TensorSpec([None, *rows.shape[1:]], rows.dtype)


def with_shared(state, weights):
    """Returns a server state of an averaging algorithm with other shared weights."""
    return state._replace(algorithm=state.algorithm._replace(weights=weights))


@functools.cache
def tiny_process(build) -> PersonalizedProcess:
    """Builds an algorithm's process for the tiny model, once for all tests."""
    return build(tiny_model(), EXAMPLES_TYPE, local_sgd(), seed=1)


@functools.cache
def tiny_algorithm(name: str = "ditto", **options) -> Algorithm:
    """Makes an algorithm of the tiny model, once for all tests."""
    return algorithms.make(name, tiny_model(), local_sgd(), **options)


def tiny_experiment(
    dataset: FederatedDataset, algorithm: str | Algorithm = "ditto", **fields
) -> Experiment:
    """States an experiment of six rounds; tests share algorithms by name, and their processes."""
    if isinstance(algorithm, str):
        algorithm = tiny_algorithm(algorithm)
    fields = {
        "rounds": 6,
        "clients_per_round": 2,
        "seed": 3,
        "evaluation": Evaluation(every=2),
        **fields,
    }
    return Experiment(algorithm, dataset, **fields)


def random_examples(size: int, seed: int = 0) -> Examples:
    rng = np.random.default_rng([size, seed])
    return Examples(
        x=rng.integers(0, 256, (size, *IMAGE_SHAPE)).astype(np.uint8),
        y=rng.integers(0, NUM_CLASSES, size).astype(np.int32),
        size=np.int32(size),
    )


def make_client(process, client_id: int, examples: Examples) -> Client:
    """Makes a client that has never taken part."""
    return Client(np.int32(client_id), process.initialize_client(client_id), examples)


def make_clients(process, sizes) -> list[Client]:
    return [make_client(process, i, random_examples(n, seed=i)) for i, n in enumerate(sizes)]


def run_rounds(process, clients, cohorts, state=None):
    """Yields `(server state, clients)` after each round.

    Args:
        process: The process.
        clients: All clients before the first round.
        cohorts: The indices of the clients of each round.
        state: The server state before the first round; by default the initial state.
    """
    state, clients = state or process.initialize(), list(clients)
    for cohort in cohorts:
        state, states, _ = process.next(state, [clients[i] for i in cohort])
        for i, client_state in zip(cohort, states, strict=True):
            clients[i] = clients[i]._replace(state=client_state)
        yield state, list(clients)


def last(rounds):
    """Returns the result of the last round."""
    *_, result = rounds
    return result


class Trained(NamedTuple):
    """A process with its server state and its clients after some rounds."""

    process: EagerProcess
    state: tuple
    clients: list[Client]

    @property
    def shared(self):
        """The weights of the server."""
        return self.state.algorithm.weights

    @property
    def personal(self) -> list:
        """The model of each client."""
        return self.process.personalize(self.state, self.clients)

    @property
    def client_states(self) -> list:
        return [client.state for client in self.clients]


@functools.cache
def trained(
    name, *, model=tiny_model, local=None, cohorts=COHORTS, sizes=SIZES, seed=1, **options
) -> Trained:
    """Trains an algorithm on the tiny federation, by default with SGD on the tiny model."""
    process = eager(name, model(), local or local_sgd(), seed=seed, **options)
    return Trained(process, *last(run_rounds(process, make_clients(process, sizes), cohorts)))


def leaves(*trees) -> list[np.ndarray]:
    """Returns all tensors of some structures, including TFF's containers."""
    return [np.asarray(leaf) for tree in trees for leaf in tf.nest.flatten(tree)]


def vector(tree) -> np.ndarray:
    """Returns all numbers of a structure in one vector."""
    return np.concatenate([leaf.ravel() for leaf in leaves(tree)])


def differ(a, b) -> bool:
    """Returns whether two structures differ by more than rounding."""
    return max(np.max(np.abs(x - y)) for x, y in zip(leaves(a), leaves(b), strict=True)) > 1e-3


def assert_equal(a, b) -> None:
    """Asserts that two structures are equal, bit for bit."""
    a, b = leaves(a), leaves(b)
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        np.testing.assert_array_equal(x, y)


def assert_close(a, b, tolerance=1e-5) -> None:
    a, b = leaves(a), leaves(b)
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)
