"""Training before evaluation, which no algorithm knows about.

It is pFedMB's fine-tuning, and FedAvg's last step, a client's training of the global model.
"""

import collections
import dataclasses
from collections.abc import Callable

import tensorflow as tf

from tff_pfl.local import ClientContext, Examples, LocalTraining
from tff_pfl.models import Model, Totals, Weights
from tff_pfl.ranges import takes, whole
from tff_pfl.templates import Algorithm, Personalization


@takes(epochs=whole(0))
def fine_tuned(
    algorithm: Algorithm, model: Model, local: LocalTraining, *, epochs: int
) -> Algorithm:
    """Lets each client train its own model on its examples before it is evaluated.

    Nothing is kept of that training: rounds are those of `algorithm`, bit for bit. It takes
    the place of an algorithm's own fine-tuning, as FedBABU has one.

    Args:
        algorithm: Any algorithm.
        model: Its model.
        local: How clients fine-tune, with the learning rate of the last round and a new optimizer.
        epochs: Passes over the client's training examples, 0 or more.
    """
    tune = fine_tuning(algorithm.evaluated_model or model, local, epochs)
    return dataclasses.replace(
        algorithm, personalize=dataclasses.replace(algorithm.personalize, fine_tune=tune)
    )


def locally_trained(algorithm: Algorithm, model: Model, local: LocalTraining) -> Algorithm:
    """Evaluates each client by the global model that the client has trained.

    The client trains the current global model on its own examples as long as in a round, without
    what the algorithm adds to that, and without anything that it keeps: what FedAvg would have it
    upload. Nothing is kept of it either: rounds are those of `algorithm`, bit for bit.

    Args:
        algorithm: Any algorithm with a global model.
        model: Its model.
        local: How clients train, with the learning rate of the last round and a new optimizer.

    Raises:
        ValueError: If the algorithm has no global model.
    """
    if algorithm.global_weights is None:
        raise ValueError("'locally_trained' is the global model trained, and there is none.")
    train = fine_tuning(algorithm.evaluated_model or model, local)
    return dataclasses.replace(
        algorithm,
        personalize=Personalization(
            distribute=algorithm.global_weights,
            client_work=lambda weights, state, examples, context: train(weights, examples, context),
        ),
    )


def fine_tuning(
    model: Model, local: LocalTraining, epochs: int | None = None
) -> Callable[[Weights, Examples, ClientContext], Weights]:
    """`(W, D, ClientContext) -> W`: trains a model on a client's examples.

    Args:
        model: The model.
        local: How it is trained, with a new optimizer.
        epochs: Passes over the examples; default as long as in a round.
    """

    def tune(weights, examples, context):
        trained = local.train(model, weights, examples, context, epochs=epochs, optimizer_state=())
        return _with_constant_layers(model, trained.weights, weights)

    return tune


def measured_fine_tuning(
    model: Model,
    local: LocalTraining,
    epochs: int,
    weights: Weights,
    examples: Examples,
    context: ClientContext,
    measure: Callable[[Weights], Totals],
) -> Totals:
    """Measures the weights of `fine_tuning` after each of its epochs.

    Returns:
        float32 `[epochs]` in the place of each scalar of `measure`.
    """

    def note(epoch, trained, noted):
        totals = measure(_with_constant_layers(model, trained, weights))
        is_it = tf.equal(tf.range(epochs), epoch)
        return tf.nest.map_structure(
            lambda total, others: tf.where(is_it, total, others), totals, noted
        )

    return local.train(
        model,
        weights,
        examples,
        context,
        epochs=epochs,
        optimizer_state=(),
        carry=tf.nest.map_structure(lambda _: tf.zeros([epochs]), model.zero_totals()),
        after_epoch=note,
    ).carry


def _with_constant_layers(model, trained, weights) -> Weights:
    constant = {name: weights[name] for name in model.constant_layers}
    return collections.OrderedDict({**trained, **constant})
