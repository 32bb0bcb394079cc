"""Models with two exits: the last layer exists twice, on top of a shared body."""

import collections
import dataclasses
import operator

import tensorflow as tf

from tff_pfl.models.layer_parts import LayerParts, layer_parts
from tff_pfl.models.model import Model, Weights
from tff_pfl.models.multi_branch import distinct_seeds

_CLIENT = "client_"  # The prefix of the names of the client exit's layers.
_GATE = "gate"


@dataclasses.dataclass(frozen=True)
class TwoExits:
    """A model whose last layer exists twice, as the client exit and as the server exit.

    The weights are the model's weights, whose last layer is the server exit `theta`, followed by
    the client exit `kappa`: a layer of the same shapes, with the prefix "client_". Both exits share
    the body `phi`, all other layers.

    Attributes:
        model: The model of one exit.
        exits: The model's layers in the exit (personal) and in the body (shared).
    """

    model: Model
    exits: LayerParts

    def init(self, seed: int) -> Weights:
        """Returns the initial weights, with another seed for the client exit."""
        weights, other = map(self.model.init, distinct_seeds(seed, 2))
        own = collections.OrderedDict((_CLIENT + name, other[name]) for name in self.exits.personal)
        return collections.OrderedDict([*weights.items(), *own.items()])

    @property
    def sides(self) -> LayerParts:
        """The parts: the client's layers `phi`, `kappa` (personal), and `theta` (shared)."""
        own = tuple(_CLIENT + name for name in self.exits.personal)
        return LayerParts(
            shared=self.exits.personal,
            personal=self.exits.shared + own,
            layers=self.exits.layers + own,
        )

    def ends(self, weights: Weights) -> tuple[Weights, Weights]:
        """Returns the weights of the model with the client exit and with the server exit."""
        body, server = self.exits.split(weights)
        client = collections.OrderedDict((name, weights[_CLIENT + name]) for name in server)
        return self.exits.merge(body, client), self.exits.merge(body, server)

    def outputs(self, weights: Weights, x, **options):
        """Computes the outputs of the client exit and of the server exit."""
        return tuple(self.model.apply(own, x, **options) for own in self.ends(weights))

    def joint_model(self, client_share: float) -> Model:
        """Returns the model with the loss of both exits, weighted by `gamma` and `1 - gamma`.

        The penalty of the weights is weighted likewise. Metrics describe the server exit, and
        "client_exit_..." the client exit.

        Args:
            client_share: `gamma`.
        """
        task, penalty_of = self.model.task, self.model.penalty
        client, server = (task.of(operator.itemgetter(index)) for index in range(2))

        def mixed(of_client, of_server):
            return client_share * of_client + (1 - client_share) * of_server

        def example_loss(y, outputs):
            return mixed(client.example_loss(y, outputs), server.example_loss(y, outputs))

        def penalty(weights):
            return mixed(*map(penalty_of, self.ends(weights)))

        metrics = {}
        for name in task.metrics:
            metrics[name] = server.metrics[name]
            metrics[f"client_exit_{name}"] = client.metrics[name]
        joint = dataclasses.replace(server, example_loss=example_loss, metrics=metrics)
        name = f"{self.model.name}_two_exits"
        return Model(self.init, self.outputs, joint, name, penalty=penalty_of and penalty)

    def gated_model(self, threshold: float) -> Model:
        """Returns the model that answers by the client exit if it is sure, else by the server exit.

        The client exit is sure if the entropy of its softmax is at most the threshold, and if its
        gate is open. The gate is an additional weight (see `gated`), whose gradient is zero.
        Applying the model raises `ValueError` if the exits have one logit.

        Args:
            threshold: The threshold in nats. Below 0, the client exit never answers. At the
                logarithm of the number of classes or above, it always answers.
        """

        def apply(weights, x, **options):
            client, server = self.outputs(weights, x, **options)
            if client.shape[-1] == 1:
                raise ValueError(
                    f"The exits of {self.model.name!r} have one logit, so the entropy of the "
                    "softmax is always 0. Give the last layer a logit for each class."
                )
            logarithms = tf.nn.log_softmax(client)
            entropy = -tf.reduce_sum(tf.exp(logarithms) * logarithms, axis=-1, keepdims=True)
            is_open = tf.not_equal(weights[_GATE]["open"], 0.0)
            return tf.where((entropy <= threshold) & is_open, client, server)

        return dataclasses.replace(
            self.model,
            init=lambda seed: self.gated(self.init(seed), is_open=False),
            apply=apply,
            features=None,
            forward=None,
            name=f"{self.model.name}_gated",
        )

    def gated(self, weights: Weights, *, is_open: bool) -> Weights:
        """Returns the weights of `gated_model`.

        Args:
            weights: The weights of both exits.
            is_open: Whether the client exit may answer. The gate is then 1, else 0. Weight decay
                keeps an open gate above 0, and 0 at 0.
        """
        gate = collections.OrderedDict(open=tf.constant(float(is_open)))
        return collections.OrderedDict([*weights.items(), (_GATE, gate)])


def two_exits(model: Model) -> TwoExits:
    """Gives a model a second exit: its last layer exists twice.

    Args:
        model: Any model. For `gated_model`, its outputs must be logits.

    Raises:
        ValueError: A layer has a name that the client exit or the gate needs.
    """
    exits = layer_parts(model)
    for name in model.layers:
        if name in (_GATE, *(_CLIENT + layer for layer in exits.personal)):
            raise ValueError(
                f"Layer {name!r} has a name that the second exit needs for one of its layers. "
                "Rename the layer."
            )
    return TwoExits(model, exits)
