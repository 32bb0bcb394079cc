"""Defines the workloads of benchmarks: rounds with a known amount of training."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import tff_pfl
from tff_pfl import runtime
from tff_pfl.local import Examples, LocalTraining, examples_type
from tff_pfl.templates import Algorithm, Client, PersonalizedProcess, compose

RUNTIMES: dict[str, Callable[[], tff.framework.SyncExecutionContext]] = {
    "cpp_runtime": runtime.create_cpp_context,
    "graph_loop": lambda: runtime.create_graph_context(vectorize="never", jit_compile=False),
    "graph_vectorized": lambda: runtime.create_graph_context(vectorize="always", jit_compile=False),
    "graph_xla": lambda: runtime.create_graph_context(vectorize="always", jit_compile=True),
}
SEED = 0
_NUM_CLASSES = 10


@dataclasses.dataclass(frozen=True)
class Workload:
    """A round of FedAvg with SGD on synthetic images.

    Attributes:
        network: A key of `models.MODELS`.
        options: Further arguments of the network.
        image_shape: The shape `(height, width, channels)`.
        clients: The number of clients in every round.
        examples_per_client: The number of examples of each client.
        epochs: The number of passes over a client's examples in a round.
        batch_size: The number of examples in a step.
        learning_rate: A rate so small that the order of the batches hardly changes the loss.
        classes_per_client: The number of classes in a client's examples, drawn for each client.
        segments: See `models.build`. Only contenders of this library use it.
        compute_type: See `models.build`. Only contenders of this library use it.
    """

    network: str
    clients: int
    examples_per_client: int
    batch_size: int
    learning_rate: float
    epochs: int = 1
    image_shape: tuple[int, int, int] = (32, 32, 3)
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    classes_per_client: int = _NUM_CLASSES
    segments: int = 1
    compute_type: str = "float32"

    def keras_model(self) -> tf.keras.Model:
        """Returns the network, for images scaled to [0, 1]."""
        return tff_pfl.MODELS[self.network](self.image_shape, _NUM_CLASSES, **self.options)

    def model(self) -> tff_pfl.Model:
        """Returns the network as a pure model, for images as they are stored."""
        return tff_pfl.models.build(
            self.network,
            self.image_shape,
            _NUM_CLASSES,
            segments=self.segments,
            compute_type=self.compute_type,
            **self.options,
        )

    def initial_weights(self) -> list[tf.Tensor]:
        """Returns the initial weights: kernel, bias, kernel, bias, ... from input to output."""
        layers = self.model().init(SEED).values()
        return [weight for layer in layers for weight in layer.values()]

    def training(self) -> LocalTraining:
        """Returns the local training of a client, with SGD."""
        optimizer = tff.learning.optimizers.build_sgdm(self.learning_rate)
        return LocalTraining(optimizer, epochs=self.epochs, batch_size=self.batch_size)

    def algorithm(
        self,
        name: str,
        num_clients: int | None = None,
        clients_per_round: int | None = None,
        **options: Any,
    ) -> Algorithm:
        """Makes an algorithm; the default numbers of clients are the workload's."""
        return tff_pfl.make(
            name,
            self.model(),
            self.training(),
            num_clients=num_clients or self.clients,
            clients_per_round=clients_per_round or self.clients,
            **options,
        )

    def process(self, algorithm: str, *args: Any, **options: Any) -> PersonalizedProcess:
        """Composes the process of an algorithm; see `algorithm` for the arguments."""
        made = self.algorithm(algorithm, *args, **options)
        return compose(made, examples_type(self.image_shape), SEED)

    def data(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns images `uint8[clients, examples, ...]`, a prototype plus noise, and labels.

        The labels are int32. Each class has a prototype, so that it can be learned, and contenders
        that do the same work reach the same loss.
        """
        rng = np.random.default_rng(SEED)
        prototypes = rng.integers(0, 128, (_NUM_CLASSES, *self.image_shape), np.uint8)
        size = (self.clients, self.examples_per_client)
        classes = rng.permuted(np.tile(np.arange(_NUM_CLASSES), (self.clients, 1)), axis=1)
        drawn = rng.integers(self.classes_per_client, size=size)
        y = np.take_along_axis(classes, drawn, axis=1)
        images = rng.integers(0, 128, (*size, *self.image_shape), np.uint8)
        images += prototypes[y]
        return images, y.astype(np.int32)


def cohort_of(
    process: PersonalizedProcess, images: Sequence[np.ndarray], labels: Sequence[np.ndarray]
) -> list[Client]:
    """Returns clients with these examples and initial states."""
    return [
        Client(
            np.int32(i), process.initialize_client(np.int32(i)), Examples(x, y, np.int32(len(y)))
        )
        for i, (x, y) in enumerate(zip(images, labels, strict=True))
    ]


def installed(context: tff.framework.SyncExecutionContext):
    """Returns a context manager that makes this the current execution context."""
    return tff.framework.get_context_stack().install(context)


_MNIST = (28, 28, 1)
_LINEAR = {"hidden": ()}

WORKLOADS: dict[str, Workload] = {
    # Logistic regression, 784 -> 10, one step a client: shows costs of a client besides training.
    "linear": Workload("mlp", 100, 20, 20, 0.005, image_shape=_MNIST, options=_LINEAR),
    # PGFed's network, 50 steps a client: shows the cost of training.
    "cnn": Workload("cnn_pgfed", 10, 500, 50, 0.05, epochs=5),
    # A network whose steps dominate the cost of a round, 2 steps a client.
    "resnet18": Workload("resnet18", 2, 64, 32, 0.001),
}

# Clients of unequal sizes, of which these are the means, and the sizes of cohorts.
UNEQUAL_WORKLOADS: dict[str, tuple[Workload, tuple[int, ...]]] = {
    "linear": (
        Workload("mlp", 100, 55, 20, 0.005, image_shape=_MNIST, options=_LINEAR),
        (10, 100, 1000),
    ),
    "mlp": (
        Workload("mlp", 100, 55, 20, 0.005, image_shape=_MNIST, options={"hidden": (200, 200)}),
        (10, 100),
    ),
    "cnn": (Workload("cnn_pgfed", 10, 55, 20, 0.05), (10, 100)),
}

# FedPG's networks. Clients have the paper's average number of examples and two classes each, as in
# its Table 2, so that many gradients matter.
DESCENT_WORKLOADS: dict[str, Workload] = {
    "mlp": Workload("mlp", 10, 600, 50, 0.05, image_shape=_MNIST, classes_per_client=2),
    "cnn": Workload("cnn_fedpg", 10, 500, 50, 0.05, classes_per_client=2),
}

# For PGFed: a cohort from a thousand clients that share 60,000 examples.
MANY_CLIENTS = Workload("mlp", 50, 60, 10, 0.01, epochs=5, image_shape=_MNIST, options=_LINEAR)

# A perceptron of 100,000 weights, little training, and enough clients for noise.
AGGREGATED = Workload("mlp", 20, 50, 50, 0.01, image_shape=_MNIST, options={"hidden": (128,)})
