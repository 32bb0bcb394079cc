"""Tiny models for `tff.learning`, with data of a few clients.

All are linear but for their losses: no gradient is a rounding error, which optimizers that divide
by its norm would amplify.
"""

import collections
import dataclasses
from collections.abc import Callable

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

SIZES = (3, 2, 0)
BATCH_SIZE = 2


@dataclasses.dataclass(frozen=True)
class Task:
    """What is learned.

    Attributes:
        shape: Of an example.
        layers: Functions that make the layers. The last one is every client's own where a model is
            reconstructed.
        outputs: Of the last layer: one, a real number that is learned; or several, for classes.
    """

    shape: tuple[int, ...]
    layers: tuple[Callable[[], tf.keras.layers.Layer], ...]
    outputs: int

    @property
    def input_spec(self):
        label = ([None, 1], tf.float32) if self.outputs == 1 else ([None], tf.int32)
        return collections.OrderedDict(
            x=tf.TensorSpec([None, *self.shape], tf.float32), y=tf.TensorSpec(*label)
        )

    def loss(self) -> tf.keras.losses.Loss:
        if self.outputs == 1:
            return tf.keras.losses.MeanSquaredError()
        return tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def metric(self) -> tf.keras.metrics.Metric:
        if self.outputs == 1:
            return tf.keras.metrics.MeanSquaredError(name="metric")
        return tf.keras.metrics.SparseCategoricalAccuracy(name="metric")

    def network(self) -> tf.keras.Model:
        return tf.keras.Sequential(
            [tf.keras.Input(self.shape), *(layer() for layer in self.layers)]
        )

    @property
    def model_fn(self):
        """What the builders of `tff.learning.algorithms` take."""
        return self.model

    def model(self) -> tff.learning.models.VariableModel:
        return tff.learning.models.from_keras_model(
            self.network(), self.loss(), self.input_spec, metrics=[self.metric()]
        )

    def functional_model(self) -> tff.learning.models.FunctionalModel:
        return tff.learning.models.functional_model_from_keras(
            self.network,
            self.loss(),
            self.input_spec,
            lambda: collections.OrderedDict(metric=self.metric()),
        )

    def reconstruction_model(self) -> tff.learning.models.ReconstructionModel:
        network = self.network()
        return tff.learning.models.ReconstructionModel.from_keras_model_and_layers(
            keras_model=network,
            global_layers=network.layers[:-1],
            local_layers=network.layers[-1:],
            input_spec=self.input_spec,
        )

    def examples(self) -> list[tf.data.Dataset]:
        """Every client's, one at a time."""
        rng = np.random.default_rng(0)

        def dataset(size):
            x = rng.normal(size=(size, *self.shape)).astype(np.float32)
            if self.outputs == 1:
                y = rng.normal(size=(size, 1)).astype(np.float32)
            else:
                y = rng.integers(0, self.outputs, size).astype(np.int32)
            return tf.data.Dataset.from_tensor_slices(collections.OrderedDict(x=x, y=y))

        return list(map(dataset, SIZES))

    def batches(self) -> list[tf.data.Dataset]:
        """As `examples`, in batches; one is partial."""
        return [examples.batch(BATCH_SIZE) for examples in self.examples()]


class FunctionalTask(Task):
    """A task whose model is a `FunctionalModel`."""

    @property
    def model_fn(self):
        return self.functional_model()


def _dense(units):
    kernel = tf.keras.initializers.RandomNormal(stddev=0.5, seed=units)
    return lambda: tf.keras.layers.Dense(units, kernel_initializer=kernel)


def _convolution():
    kernel = tf.keras.initializers.RandomNormal(stddev=0.5, seed=5)
    return tf.keras.layers.Conv2D(2, 3, kernel_initializer=kernel)


TASKS = {
    "one_output": Task((2,), (_dense(1),), 1),
    "three_outputs": Task((2,), (_dense(3),), 3),
}
FUNCTIONAL_TASK = FunctionalTask((2,), (_dense(3),), 3)
RECONSTRUCTION_TASKS = {
    "one_output": Task((2,), (_dense(2), _dense(1)), 1),
    "three_outputs": Task((2,), (_dense(2), _dense(3)), 3),
    "convolution": Task((4, 4, 1), (_convolution, tf.keras.layers.Flatten, _dense(3)), 3),
}
