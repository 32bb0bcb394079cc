"""FedEM: each client mixes models that all clients train, by expectation and maximisation.

Marfoq et al., "Federated multi-task learning under a mixture of distributions", NeurIPS 2021.

The examples of a client come from `K` distributions, which all clients share, in shares `pi_i` of
its own. The server has a model of each distribution, a component. A round, with
`p_i = n_i / sum n_j` over the cohort (or uniform):

    down    w_1 .. w_K
    client  q_xk = pi_ik exp(-loss(w_k; x)) / sum_l pi_il exp(-loss(w_l; x))  for each example x
            pi_ik <- mean of q_xk over its examples
            w_ik = LocalTraining(w_k), in which the loss of an example x counts q_xk times
    up      w_ik - w_k
    server  w_k <- w_k + sum_i p_i (w_ik - w_k)

All components see the same batches. The loss of a batch is divided by its number of examples, not
by the sum of their `q_xk`, so that a component moves little where its share is small. The loss of a
sequence is the mean over its tokens, as in the authors' code, and that of several labels the mean
over labels. The authors' code counts absent clients in the server's mean, as if they had not moved.

A client predicts the probabilities `sum_k pi_ik p(y | x; w_k)`, with the current components. A
client that never took part computes `pi_i` then by one E step, the first two lines of the client,
from equal shares. The paper has no global model; here it is the mixture of equal shares.

K = 1: FedAvg.
"""

import collections
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tff_pfl.algorithms.fedrod import SMALLEST_SHARE
from tff_pfl.algorithms.registry import ALGORITHMS
from tff_pfl.arguments.extension import extends
from tff_pfl.arguments.ranges import takes, whole
from tff_pfl.local import Examples, LocalTraining, num_rows, scan_batches, trees
from tff_pfl.models import Model, Totals, Weights, distinct_seeds
from tff_pfl.templates import Algorithm, ClientOutput, averaging

_LAYER = "mixture"  # of the evaluated model


class OwnShares(NamedTuple):
    """Client state.

    Attributes:
        pi: float32 `[K]`, the share of each component in the client's examples.
        participations: int32 scalar, the number of rounds the client took part in.
        optimizers: The optimizer state of each component; `()` unless it persists.
    """

    pi: tf.Tensor
    participations: tf.Tensor
    optimizers: tuple


class Expectation(NamedTuple):
    """The result of an E step.

    Attributes:
        q: float32 `[rows, K]`, the responsibilities of the components for each example.
        pi: float32 `[K]`, their mean over examples.
        totals: The sums of the loss and the metrics of the mixture before the step.
    """

    q: tf.Tensor
    pi: tf.Tensor
    totals: Totals


@ALGORITHMS.register("fedem")
@extends(averaging)
@takes(num_components=whole(1))
def fedem(model: Model, local: LocalTraining, *, num_components: int = 3, **options) -> Algorithm:
    """Makes FedEM.

    The reported loss and metrics are those of a client's mixture of the components it received. Its
    snapshot is `pi`.

    Args:
        model: The model of a component, of weights `W`.
        local: The local training of each component.
        num_components: The number of components, `K`; the paper has 3.
        **options: Options of `averaging`.

    Raises:
        ValueError: The outputs of the model's task give no probabilities, or all components would
            start from the same weights (see `Model.starting_from`).
    """
    if num_components > 1:
        model.check_seeded_start("fedem")
    mixture = mixture_model(model, num_components)
    equal = np.full([num_components], 1 / num_components, np.float32)

    def client_init(client_id, seed):
        optimizer = local.optimizer_state(model.init(seed))
        return OwnShares(tf.constant(equal), tf.constant(0), (optimizer,) * num_components)

    def client_work(components, state, examples, context):
        expected = expectation(model, mixture, mixed(components, state.pi), examples)
        trained = [
            local.train(
                model,
                weights,
                examples._replace(y=(examples.y, expected.q[:, k])),
                context,
                gradient=weighted_gradient(model),
                optimizer_state=state.optimizers[k],
            )
            for k, weights in enumerate(unstacked(components, num_components))
        ]
        optimizers = tuple(it.optimizer_state for it in trained)
        new_components = trees.stack([it.weights for it in trained])
        return ClientOutput(
            state=OwnShares(expected.pi, state.participations + 1, optimizers),
            upload=trees.subtract(new_components, components),
            metrics=expected.totals,
        )

    def personalize(components, state, examples, context):
        expected = expectation(model, mixture, mixed(components, equal), examples)
        return mixed(components, tf.where(state.participations > 0, state.pi, expected.pi))

    return averaging(
        lambda seed: initial_components(model, num_components, seed),
        client_work,
        personalize,
        client_init,
        global_weights=lambda components: mixed(components, equal),
        client_snapshot=lambda state: {"pi": state.pi},
        evaluated_model=mixture,
        **options,
    )


def initial_components(model: Model, num_components: int, seed: int) -> Weights:
    """Returns the initial components, `W` with a leading axis of `K` in each tensor."""
    return trees.stack(map(model.init, distinct_seeds(seed, num_components)))


def expectation(model: Model, mixture: Model, weights: Weights, examples: Examples) -> Expectation:
    """Makes the E step of a client, without training behaviour.

    Args:
        model: The model of a component.
        mixture: The `mixture_model` of `model`.
        weights: The weights of `mixture`, with the client's `pi` before the step.
        examples: The client's examples.
    """
    rows, log_pi = num_rows(examples), weights[_LAYER]["log_pi"]
    num_components = log_pi.shape[0]

    def step(found, batch):
        q, sums, totals = found
        numbers, y = batch.y
        batch = batch._replace(y=y)
        losses = [
            model.example_values(component, batch)["loss"]
            for component in unstacked(weights, num_components)
        ]
        responsibilities = tf.exp(tf.nn.log_softmax(log_pi - tf.stack(losses, axis=-1)))
        q = trees.put_rows(q, numbers, responsibilities)
        sums += tf.linalg.matvec(responsibilities, model.example_weight(batch), transpose_a=True)
        return q, sums, trees.add(totals, mixture.totals(weights, batch))

    # The surplus rows of a batch have the number 0.
    numbered = examples._replace(y=(1 + tf.range(rows), examples.y))
    zeros = tf.zeros([1 + rows, num_components])
    start = zeros, tf.zeros([num_components]), mixture.zero_totals()
    q, sums, totals = scan_batches(step, start, numbered, epochs=1, batch_size=100, seed=None)
    return Expectation(q[1:], tf.math.divide_no_nan(sums, tf.reduce_sum(sums)), totals)


def weighted_gradient(model: Model) -> Callable:
    """Returns the `gradient` of `LocalTraining.train` of losses times `q`, for labels `(y, q)`."""

    def gradient(weights, batch, carry):
        y, q = batch.y

        def term(forward, batch):  # is added to the loss
            return (q - 1.0) * model.task.example_loss(batch.labels, forward.outputs)

        direction, totals, _ = model.training_gradient(weights, batch._replace(y=y), term=term)
        return direction, totals, carry

    return gradient


def mixed(components: Weights, pi: tf.Tensor) -> Weights:
    """Returns the weights of `mixture_model`.

    Args:
        components: `W` with a leading axis of `K` in each tensor.
        pi: float32 `[K]`, in proportion to the shares of the components.
    """
    layer = collections.OrderedDict(log_pi=tf.math.log(tf.maximum(pi, SMALLEST_SHARE)))
    return collections.OrderedDict([*components.items(), (_LAYER, layer)])


def unstacked(weights: Weights, num_components: int) -> list[Weights]:
    """Returns the weights of each component, of `mixture_model` or stacked."""
    layers = ((name, layer) for name, layer in weights.items() if name != _LAYER)
    components = collections.OrderedDict(layers)
    return [trees.row(components, k) for k in range(num_components)]


def mixture_model(model: Model, num_components: int) -> Model:
    """Returns the model of all components, with outputs of their mixed probabilities."""
    mix = _mix_of(model)

    def init(seed):
        return mixed(initial_components(model, num_components, seed), tf.ones([num_components]))

    def apply(weights, x, *, training=False, seed=None):
        outputs = [
            model.apply(component, x, training=training, seed=seed)
            for component in unstacked(weights, num_components)
        ]
        return mix(tf.stack(outputs, axis=-1), tf.nn.log_softmax(weights[_LAYER]["log_pi"]))

    return model.evaluated_as(f"{model.name}_mixture", init, apply)


def _mix_of(model: Model) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """Returns `(logits [..., K], log pi [K]) -> logits` of mixed probabilities for the task."""
    if model.task.outputs == "class_logits":
        return _mix_classes
    mixes = {"sequence": _mix_classes, "binary": _mix_labels, "multi_label": _mix_labels}
    if model.task.name not in mixes:
        raise ValueError(
            f"fedem mixes probabilities, but the task of model {model.name!r} is "
            f"{model.task.name!r}. Choose another method, such as fedrep."
        )
    return mixes[model.task.name]


def _mix_classes(logits, log_pi):
    """Mixes probabilities of classes, on the axis before the last."""
    return tf.reduce_logsumexp(tf.nn.log_softmax(logits, axis=-2) + log_pi, axis=-1)


def _mix_labels(logits, log_pi):
    """Mixes probabilities of labels."""
    of_one, of_zero = (
        tf.reduce_logsumexp(tf.math.log_sigmoid(it) + log_pi, axis=-1) for it in (logits, -logits)
    )
    return of_one - of_zero
