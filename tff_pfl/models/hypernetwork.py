"""Hypernetworks: networks that generate the weights of another network."""

import collections
import dataclasses
import math

import tensorflow as tf

from tff_pfl.models.model import Model, Weights


@dataclasses.dataclass(frozen=True)
class Hypernetwork:
    """A multi-layer perceptron from an embedding to the weights of a model.

    The trunk, dense layers with ReLU between them, maps an embedding to features. One dense layer
    for each tensor of the target then maps the features to that tensor. The hypernetwork's weights
    `phi` are a structure by layers, like a model's weights: `trunk1`, `trunk2`, ..., and one layer
    for each tensor, such as `conv1/kernel`.

    For embeddings from a standard normal distribution, the initial features have about unit
    variance. Initially, each generated tensor has the mean (with `bias`) and the variance of the
    target's own initialisation.

    Attributes:
        target: The model whose weights are generated.
        embedding_dim: `e`, the length of an embedding.
        hidden: The widths of the trunk's layers. If empty, the features are the embedding itself.
        bias: Whether dense layers have a bias. Without bias and trunk, the hypernetwork is linear.
        relu_features: Whether a ReLU also follows the trunk's last layer, as in FedRoD but not in
            pFedHN.
    """

    target: Model
    embedding_dim: int
    hidden: tuple[int, ...] = (100, 100, 100, 100)
    bias: bool = True
    relu_features: bool = False

    def init(self, seed: int) -> Weights:
        """Returns the initial `phi`."""
        phi = collections.OrderedDict()
        fan_in = self.embedding_dim
        for index, width in enumerate(self.hidden, start=1):
            # A ReLU before each layer except the first halves the second moment.
            deviation = math.sqrt((1 if index == 1 else 2) / fan_in)
            normal = tf.random.stateless_normal([fan_in, width], [seed, index])
            phi[f"trunk{index}"] = self._dense(deviation * normal, tf.zeros([width]))
            fan_in = width
        gain = 2 if self.hidden and self.relu_features else 1
        named = [
            (f"{layer}/{name}", weight)
            for layer, tensors in self.target.init(seed).items()
            for name, weight in tensors.items()
        ]
        for index, (name, weight) in enumerate(named):
            size = weight.shape.num_elements()
            normal = tf.random.stateless_normal([fan_in, size], [seed, -1 - index])
            deviation = tf.math.reduce_std(weight) / math.sqrt(fan_in / gain)
            phi[name] = self._dense(deviation * normal, tf.fill([size], tf.reduce_mean(weight)))
        return phi

    def generate(self, phi: Weights, embeddings: tf.Tensor) -> Weights:
        """Generates the target's weights for each of `k` embeddings.

        Args:
            phi: The hypernetwork's weights.
            embeddings: float32 `[k, e]`.

        Returns:
            The target's weights, each tensor with a leading axis of `k`.
        """

        def dense(x, layer):
            product = tf.matmul(x, layer["kernel"])
            return product + layer["bias"] if self.bias else product

        features = embeddings
        for index in range(1, len(self.hidden) + 1):
            if index > 1:
                features = tf.nn.relu(features)
            features = dense(features, phi[f"trunk{index}"])
        if self.hidden and self.relu_features:
            features = tf.nn.relu(features)
        generated = collections.OrderedDict()
        # Only the shapes are used; TensorFlow prunes the values.
        for layer, tensors in self.target.init(0).items():
            generated[layer] = collections.OrderedDict(
                (name, tf.reshape(dense(features, phi[f"{layer}/{name}"]), [-1, *tensor.shape]))
                for name, tensor in tensors.items()
            )
        return generated

    def _dense(self, kernel, bias):
        layer = collections.OrderedDict(kernel=kernel)
        if self.bias:
            layer["bias"] = bias
        return layer
