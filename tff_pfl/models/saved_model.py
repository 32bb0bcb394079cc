"""Trained models as SavedModels of TensorFlow, which run without this library and without TFF."""

import os

import numpy as np
import tensorflow as tf

from tff_pfl.models.model import Model, Weights


class ModelSaver:
    """Writes models that differ in their weights alone, and are traced once.

    What `tf.saved_model.load(path)` returns can be called with a batch of inputs, as they are
    stored, and returns the model's outputs, such as logits; `weights[layer][weight]` are its
    variables. TensorFlow Serving finds the same as the signature `serving_default`.
    """

    def __init__(self, model: Model, input_shape: tuple[int, ...], input_dtype: np.dtype):
        """Creates the saver.

        Args:
            model: Whose `apply` is saved, as it is outside of training.
            input_shape: Of one input, without the batch axis.
            input_dtype: As inputs are stored, such as uint8 of images.
        """
        self._model = model
        self._inputs = tf.TensorSpec((None, *input_shape), input_dtype, "x")
        self._saved = None

    def save(self, weights: Weights, path: str | os.PathLike) -> None:
        """Writes the model of these weights to a folder, which is made.

        Raises:
            tf.errors.OpError: If it cannot be written.
        """
        if self._saved is None:
            self._saved = _Saved(self._model, weights, self._inputs)
        else:
            self._saved.assign(weights)
        tf.saved_model.save(self._saved, os.fspath(path), self._saved.signature)


class _Saved(tf.Module):
    def __init__(self, model, weights, inputs):
        super().__init__()
        self.weights = tf.nest.map_structure(tf.Variable, weights)

        @tf.function(input_signature=[inputs], autograph=False)
        def call(x):
            values = tf.nest.map_structure(tf.convert_to_tensor, self.weights)
            return model.apply(values, x, training=False)

        self.__call__ = call
        self.signature = call.get_concrete_function()

    def assign(self, weights):
        """Sets the variables."""
        tf.nest.map_structure(lambda variable, value: variable.assign(value), self.weights, weights)
