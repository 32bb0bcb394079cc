"""Exports models as TensorFlow SavedModels, which need neither this library nor TFF."""

import logging
import os
from typing import Any

import tensorflow as tf

from tff_pfl.models.inputs import input_specs
from tff_pfl.models.model import Model, Weights
from tff_pfl.tracing.frozen import as_variables


class ModelSaver:
    """A writer of SavedModels that differ only in their weights, and are traced once.

    `tf.saved_model.load(path)` returns a function from a batch of inputs, as they are stored, to
    the model's outputs, such as logits, after its `postprocess`. Its variables are
    `weights[layer][weight]`. TensorFlow Serving offers the same function as the signature
    `serving_default`.
    """

    def __init__(self, model: Model, input_shape: Any, input_dtype: Any):
        """Creates the saver.

        Args:
            model: The model. Its `apply` is saved with `training=False`.
            input_shape: The shape of one input as stored, before `preprocess`, without the batch
                axis; or a structure of shapes.
            input_dtype: The data type of stored inputs, such as uint8 for images; or a structure.
        """
        self._model = model
        self._inputs = input_specs(input_shape, input_dtype)
        self._saved: _Saved | None = None

    def save(self, weights: Weights, path: str | os.PathLike) -> None:
        """Writes the model with these weights to a new folder.

        Raises:
            tf.errors.OpError: The folder cannot be written.
        """
        if self._saved is None:
            self._saved = _Saved(self._model, weights, self._inputs)
        else:
            self._saved.assign(weights)
        with as_variables(self._saved):  # which is traced again
            write_saved_model(self._saved, path, self._saved.signature)


def write_saved_model(module: tf.Module, path: str | os.PathLike, signatures: Any) -> None:
    """Writes a SavedModel, without TensorFlow's notes in notebooks of where it is.

    Args:
        module: The module.
        path: The folder.
        signatures: See `tf.saved_model.save`.
    """
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        tf.saved_model.save(module, os.path.expanduser(path), signatures)
    finally:
        logger.setLevel(level)


class _Saved(tf.Module):
    def __init__(self, model, weights, inputs):
        super().__init__()
        self.weights = tf.nest.map_structure(tf.Variable, weights)

        @tf.function(input_signature=[inputs], autograph=False)
        def call(x):
            values = tf.nest.map_structure(tf.convert_to_tensor, self.weights)
            outputs = model.apply(values, x, training=False, seed=tf.zeros([2], tf.int32))
            return outputs if model.postprocess is None else model.postprocess(outputs)

        self.__call__ = call
        with as_variables(self):
            self.signature = call.get_concrete_function()

    def assign(self, weights):
        """Sets the variables."""
        tf.nest.map_structure(lambda variable, value: variable.assign(value), self.weights, weights)
