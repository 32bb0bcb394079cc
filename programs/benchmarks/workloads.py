"""What is benchmarked: rounds of federated averaging, of a known amount of training."""

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

import tff_pfl

if TYPE_CHECKING:  # a program that shows its flags does without TensorFlow
    import tensorflow as tf

SEED = 0
_NUM_CLASSES = 10


@dataclasses.dataclass(frozen=True)
class Workload:
    """A round of FedAvg by SGD.

    Attributes:
        network: A key of `models.MODELS`.
        options: Further arguments of the network.
        image_shape: `(height, width, channels)`.
        clients: Size of the cohort, which is the same in every round.
        examples_per_client: All clients have as many.
        epochs: Passes over a client's examples in a round.
        batch_size: Examples a step.
        learning_rate: Small enough that the order of the batches hardly changes the loss.
        contenders: Keys of `CONTENDERS`; who runs it unless asked otherwise.
        gpu_contenders: Who else does on a machine with GPUs.
        classes_per_client: So many classes, drawn for each client, are all that it has.
        segments: Of `models.build`, for contenders of this library.
        compute_type: Likewise.
    """

    network: str
    options: dict[str, Any]
    image_shape: tuple[int, int, int]
    clients: int
    examples_per_client: int
    epochs: int
    batch_size: int
    learning_rate: float
    contenders: tuple[str, ...]
    gpu_contenders: tuple[str, ...] = ()
    classes_per_client: int = _NUM_CLASSES
    segments: int = 1
    compute_type: str = "float32"

    def default_contenders(self) -> tuple[str, ...]:
        """Who runs it on this machine unless asked otherwise."""
        import tensorflow as tf

        has_gpus = tf.config.list_logical_devices("GPU")
        return self.contenders + (self.gpu_contenders if has_gpus else ())

    def keras_model(self) -> "tf.keras.Model":
        """The network, which takes images scaled to [0, 1]."""
        return tff_pfl.MODELS[self.network](self.image_shape, _NUM_CLASSES, **self.options)

    def model(self) -> "tff_pfl.Model":
        """The network as a pure model, which takes images as they are stored."""
        return tff_pfl.models.build(
            self.network,
            self.image_shape,
            _NUM_CLASSES,
            segments=self.segments,
            compute_type=self.compute_type,
            **self.options,
        )

    def initial_weights(self) -> list["tf.Tensor"]:
        """Kernel, bias, kernel, bias and so on, from input to output."""
        layers = self.model().init(SEED).values()
        return [weight for layer in layers for weight in layer.values()]

    def data(self) -> tuple[np.ndarray, np.ndarray]:
        """Images `uint8[clients, examples, ...]`, `int32` labels: a prototype a class, and noise.

        Classes can be told apart, so that contenders that do the same work reach the same loss.
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


_DESCENT_MLP = Workload(
    network="mlp",
    options={},
    image_shape=(28, 28, 1),
    clients=10,
    examples_per_client=600,
    epochs=1,
    batch_size=50,
    learning_rate=0.05,
    contenders=(),
    classes_per_client=2,
)

# FedPG's own, of clients with as many examples as in its paper on average, and as in its Table 2
# with two classes, so that many of their gradients matter.
DESCENT_WORKLOADS: dict[str, Workload] = {
    "mlp": _DESCENT_MLP,
    "cnn": dataclasses.replace(
        _DESCENT_MLP,
        network="cnn_fedpg",
        image_shape=(32, 32, 3),
        examples_per_client=500,
    ),
}

# PGFed's, of the clients of a federation of a thousand that shares 60,000 examples.
MANY_CLIENTS = Workload(
    network="mlp",
    options={"hidden": ()},
    image_shape=(28, 28, 1),
    clients=50,
    examples_per_client=60,
    epochs=5,
    batch_size=10,
    learning_rate=0.01,
    contenders=(),
)

# A perceptron of 100,000 weights, little training, and clients enough for noise.
AGGREGATED = Workload(
    network="mlp",
    options={"hidden": (128,)},
    image_shape=(28, 28, 1),
    clients=20,
    examples_per_client=50,
    epochs=1,
    batch_size=50,
    learning_rate=0.01,
    contenders=(),
)

# pFedMB's network, and a client of its federation of 15.
BRANCHED = Workload(
    network="lenet",
    options={},
    image_shape=(32, 32, 3),
    clients=1,
    examples_per_client=2667,
    epochs=1,
    batch_size=64,
    learning_rate=0.05,
    contenders=(),
)

# PGFed's network, and a federation of a hundred with CIFAR-10's test examples.
POOLED = Workload(
    network="cnn_pgfed",
    options={},
    image_shape=(32, 32, 3),
    clients=100,
    examples_per_client=100,
    epochs=1,
    batch_size=50,
    learning_rate=0.05,
    contenders=(),
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
        learning_rate=0.005,
        contenders=(
            "bare_tensorflow",
            "tff_pfl_cpp_runtime",
            "tff_pfl_graph_loop",
            "tff_pfl_graph_vectorized",
            "tff_pfl_graph_xla",
            "tff_learning_cpp_runtime",
        ),
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
        learning_rate=0.05,
        contenders=("bare_tensorflow", "tff_pfl_cpp_runtime", "tff_pfl_graph_loop"),
        # On CPUs, convolutions whose filters differ by client cannot be vectorized.
        gpu_contenders=("tff_pfl_graph_vectorized",),
    ),
    # A network whose steps are all that a round costs, 2 steps a client.
    "resnet18": Workload(
        network="resnet18",
        options={},
        image_shape=(32, 32, 3),
        clients=2,
        examples_per_client=64,
        epochs=1,
        batch_size=32,
        learning_rate=0.001,
        contenders=("bare_keras", "tff_pfl_graph_loop", "bare_keras_plgu_lf", "plgu_lf"),
    ),
}
