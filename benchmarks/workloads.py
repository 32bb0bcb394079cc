"""Defines the workloads of benchmarks: rounds with a known amount of training."""

import abc
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import tff_pfl
from tff_pfl import runtime
from tff_pfl.local import Examples, LocalTraining
from tff_pfl.local.examples import type_of_examples
from tff_pfl.templates import Algorithm, Client, PersonalizedProcess, compose

RUNTIMES: dict[str, Callable[[], tff.framework.SyncExecutionContext]] = {
    "cpp_runtime": runtime.create_cpp_context,
    "graph_loop": lambda: runtime.create_graph_context(vectorize="never", jit_compile=False),
    "graph_vectorized": lambda: runtime.create_graph_context(vectorize="always", jit_compile=False),
    "graph_compiled": lambda: runtime.create_graph_context(jit_compile=True),
    "graph_xla": lambda: runtime.create_graph_context(vectorize="always", jit_compile=True),
}
SEED = 0
_NUM_CLASSES = 10


@dataclasses.dataclass(frozen=True)
class Workload(abc.ABC):
    """A round of FedAvg with SGD on synthetic examples.

    A workload states its network twice: in Keras, for this library and others, and in plain
    TensorFlow, as a function of its weights.

    Attributes:
        clients: The number of clients in every round.
        examples_per_client: The number of examples of each client.
        batch_size: The number of examples in a step.
        learning_rate: A rate so small that the order of the batches hardly changes the loss.
        epochs: The number of passes over a client's examples in a round.
    """

    clients: int
    examples_per_client: int
    batch_size: int
    learning_rate: float
    epochs: int = 1

    @abc.abstractmethod
    def keras_model(self) -> tf.keras.Model:
        """Returns the network, which takes the results of `inputs`."""

    @abc.abstractmethod
    def model(self) -> tff_pfl.Model:
        """Returns the network as a pure model, for inputs as they are stored."""

    @abc.abstractmethod
    def data(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns inputs and labels `[clients, examples, ...]` that the network can learn."""

    @abc.abstractmethod
    def outputs(self, weights: Sequence[tf.Tensor], x: tf.Tensor) -> tf.Tensor:
        """Computes the network's outputs in plain TensorFlow.

        Args:
            weights: Weights in the order of `initial_weights`.
            x: A batch of the results of `inputs`.
        """

    def inputs(self, x: tf.Tensor) -> tf.Tensor:
        """Returns a batch of inputs of the network, from inputs as they are stored."""
        return x

    def losses(self, y: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        """Computes the loss of each example in plain TensorFlow."""
        return tf.nn.sparse_softmax_cross_entropy_with_logits(y, outputs)

    def can_be_vectorized(self) -> bool:
        """Returns whether this library computes all clients at once, on this machine."""
        return True

    def initial_weights(self) -> list[tf.Tensor]:
        """Returns the initial weights, such as kernel, bias, kernel, bias, from input to output."""
        layers = self.model().init(SEED).values()
        return [weight for layer in layers for weight in layer.values()]

    def examples_type(self) -> tff.types.StructWithPythonType:
        """Returns the type of a client's examples, of any number."""
        arrays = dataclasses.replace(self, clients=1, examples_per_client=1).data()
        return type_of_examples(
            *(tff.types.TensorType(array.dtype.type, (None, *array.shape[2:])) for array in arrays)
        )

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
        return compose(made, self.examples_type(), SEED)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Images(Workload):
    """Classification of images.

    Attributes:
        network: A key of `models.MODELS`.
        options: Further arguments of the network.
        image_shape: The shape `(height, width, channels)`.
        classes_per_client: The number of classes in a client's examples, drawn for each client.
        segments: See `models.build`. Only contenders of this library use it.
        compute_type: See `models.build`. Only contenders of this library use it.
    """

    network: str
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    image_shape: tuple[int, int, int] = (32, 32, 3)
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

    def inputs(self, x: tf.Tensor) -> tf.Tensor:
        """Scales images to [0, 1]."""
        return tf.cast(x, tf.float32) / 255.0

    def outputs(self, weights: Sequence[tf.Tensor], x: tf.Tensor) -> tf.Tensor:
        """Computes logits by convolutions with pooling and dense layers, by the kernels' ranks."""
        *hidden, head = zip(weights[::2], weights[1::2], strict=True)
        for kernel, bias in hidden:
            if kernel.shape.rank == 4:
                x = tf.nn.relu(tf.nn.conv2d(x, kernel, 1, "VALID") + bias)
                x = tf.nn.max_pool2d(x, 2, 2, "VALID")
            else:
                x = tf.nn.relu(tf.reshape(x, [-1, kernel.shape[0]]) @ kernel + bias)
        kernel, bias = head
        return tf.reshape(x, [-1, kernel.shape[0]]) @ kernel + bias

    def can_be_vectorized(self) -> bool:
        """Returns whether there are GPUs or no convolutions, whose filters differ by client."""
        convolves = any(weight.shape.rank > 2 for weight in self.initial_weights())
        return not convolves or bool(tf.config.list_logical_devices("GPU"))

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


@dataclasses.dataclass(frozen=True)
class NextTokens(Workload):
    """Prediction of the next token, by an embedding, an LSTM and a dense layer.

    Attributes:
        vocabulary: The number of tokens.
        length: The number of tokens of a sequence.
        width: The width of the embedding.
        units: The number of units of the LSTM.
    """

    vocabulary: int = 100
    length: int = 20
    width: int = 32
    units: int = 64

    def keras_model(self) -> tf.keras.Model:
        """Returns the network, for token ids `[batch, length]`."""
        return tf.keras.Sequential(
            [
                tf.keras.layers.InputLayer((self.length,), dtype=tf.int32),
                tf.keras.layers.Embedding(self.vocabulary, self.width, name="embedding"),
                tf.keras.layers.LSTM(self.units, return_sequences=True, unroll=True, name="lstm"),
                tf.keras.layers.Dense(self.vocabulary, name="logits"),
            ]
        )

    def model(self) -> tff_pfl.Model:
        """Returns the network as a pure model of the task `sequence`."""
        task = tff_pfl.TASKS["sequence"](padding_id=None)
        return tff_pfl.from_keras(
            self.keras_model, input_shape=(self.length,), input_dtype=tf.int32, task=task
        )

    def outputs(self, weights: Sequence[tf.Tensor], x: tf.Tensor) -> tf.Tensor:
        """Computes the logits of the next token at each token, in an unrolled loop over tokens."""
        embedding, kernel, recurrent, bias, head, head_bias = weights
        given = tf.tensordot(tf.gather(embedding, x), kernel, 1) + bias
        state = memory = tf.zeros([tf.shape(x)[0], self.units])
        states = []
        for token in tf.unstack(given, axis=1):
            gates = tf.split(token + state @ recurrent, 4, axis=1)
            write, keep, show = (tf.sigmoid(gates[i]) for i in (0, 1, 3))
            memory = keep * memory + write * tf.tanh(gates[2])
            state = show * tf.tanh(memory)
            states.append(state)
        return tf.tensordot(tf.stack(states, axis=1), head, 1) + head_bias

    def losses(self, y: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        """Computes the mean cross-entropy of each sequence's tokens."""
        return tf.reduce_mean(super().losses(y, outputs), axis=1)

    def can_be_vectorized(self) -> bool:
        """Returns False; vectorized sequences are not measured."""
        return False

    def data(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns int32 tokens, and the token after each; their frequencies follow Zipf's law."""
        rng = np.random.default_rng(SEED)
        shares = 1 / np.arange(1, self.vocabulary + 1)
        size = (self.clients, self.examples_per_client, self.length + 1)
        tokens = rng.choice(self.vocabulary, size, p=shares / shares.sum()).astype(np.int32)
        return tokens[..., :-1], tokens[..., 1:]


@dataclasses.dataclass(frozen=True)
class Ratings(Workload):
    """Regression of a user's rating of an item, by two embeddings and two dense layers.

    Attributes:
        users: The number of users, whose ratings all clients share.
        items: The number of items.
        width: The width of each embedding.
        hidden: The width of the hidden layer.
    """

    users: int = 100
    items: int = 1000
    width: int = 16
    hidden: int = 32

    def keras_model(self) -> tf.keras.Model:
        """Returns the network, for ids of users and items `[batch, 2]`."""
        ids = tf.keras.Input((2,), dtype=tf.int32)
        user = tf.keras.layers.Embedding(self.users, self.width, name="user")(ids[:, 0])
        item = tf.keras.layers.Embedding(self.items, self.width, name="item")(ids[:, 1])
        x = tf.keras.layers.Concatenate()([user, item])
        x = tf.keras.layers.Dense(self.hidden, "relu", name="hidden")(x)
        return tf.keras.Model(ids, tf.keras.layers.Dense(1, name="rating")(x))

    def model(self) -> tff_pfl.Model:
        """Returns the network as a pure model of the task `regression`."""
        return tff_pfl.from_keras(
            self.keras_model, input_shape=(2,), input_dtype=tf.int32, task="regression"
        )

    def outputs(self, weights: Sequence[tf.Tensor], x: tf.Tensor) -> tf.Tensor:
        """Computes the ratings."""
        user, item, kernel, bias, head, head_bias = weights
        x = tf.concat([tf.gather(user, x[:, 0]), tf.gather(item, x[:, 1])], axis=1)
        return tf.nn.relu(x @ kernel + bias) @ head + head_bias

    def losses(self, y: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        """Computes the squared error of each rating."""
        return tf.square(outputs[:, 0] - y)

    def data(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns int32 ids of users and items, and ratings around 3 that depend on both."""
        rng = np.random.default_rng(SEED)
        size = (self.clients, self.examples_per_client)
        users, items = rng.integers(self.users, size=size), rng.integers(self.items, size=size)
        noise = rng.normal(0, 0.5, size)
        ratings = 3 + rng.normal(size=self.users)[users] + rng.normal(size=self.items)[items]
        x = np.stack([users, items], axis=-1).astype(np.int32)
        return x, (ratings + noise).astype(np.float32)


def cohort_of(
    process: PersonalizedProcess, inputs: Sequence[np.ndarray], labels: Sequence[np.ndarray]
) -> list[Client]:
    """Returns clients with these examples and initial states."""
    return [
        Client(
            np.int32(i), process.initialize_client(np.int32(i)), Examples(x, y, np.int32(len(y)))
        )
        for i, (x, y) in enumerate(zip(inputs, labels, strict=True))
    ]


def installed(context: tff.framework.SyncExecutionContext):
    """Returns a context manager that makes this the current execution context."""
    return tff.framework.get_context_stack().install(context)


_PERCEPTRON = {"network": "mlp", "image_shape": (28, 28, 1)}
_LINEAR = {**_PERCEPTRON, "options": {"hidden": ()}}

WORKLOADS: dict[str, Workload] = {
    # Logistic regression, 784 -> 10, one step a client: shows costs of a client besides training.
    "linear": Images(100, 20, 20, 0.005, **_LINEAR),
    # PGFed's network, 50 steps a client: shows the cost of training.
    "cnn": Images(10, 500, 50, 0.05, network="cnn_pgfed", epochs=5),
    # A network whose steps dominate the cost of a round, 2 steps a client.
    "resnet18": Images(2, 64, 32, 0.001, network="resnet18"),
}

# Clients of unequal sizes, of which these are the means, and the sizes of cohorts.
UNEQUAL_WORKLOADS: dict[str, tuple[Workload, tuple[int, ...]]] = {
    "linear": (Images(100, 55, 20, 0.005, **_LINEAR), (10, 100, 1000)),
    "mlp": (Images(100, 55, 20, 0.005, **_PERCEPTRON), (10, 100)),
    "cnn": (Images(10, 55, 20, 0.05, network="cnn_pgfed"), (10, 100)),
    "lstm": (NextTokens(100, 55, 20, 1.0), (10, 100)),
    "ratings": (Ratings(100, 55, 20, 0.01), (10, 100)),
}

# FedPG's networks. Clients have the paper's average number of examples and two classes each, as in
# its Table 2, so that many gradients matter.
DESCENT_WORKLOADS: dict[str, Workload] = {
    "mlp": Images(10, 600, 50, 0.05, classes_per_client=2, **_PERCEPTRON),
    "cnn": Images(10, 500, 50, 0.05, network="cnn_fedpg", classes_per_client=2),
}

# Clients whose training takes most of a round, for all algorithms.
RATED = Images(10, 400, 50, 0.05, **_PERCEPTRON)

# For PGFed: a cohort from a thousand clients that share 60,000 examples.
MANY_CLIENTS = Images(50, 60, 10, 0.01, epochs=5, **_LINEAR)

# A perceptron of 100,000 weights, little training, and enough clients for noise.
AGGREGATED = Images(20, 50, 50, 0.01, options={"hidden": (128,)}, **_PERCEPTRON)
