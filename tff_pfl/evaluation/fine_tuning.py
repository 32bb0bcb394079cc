"""Trains models before they are evaluated, without effect on the algorithm's rounds.

Examples are pFedMB's fine-tuning, and a client's training of the global model in FedAvg.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tff_pfl.arguments.ranges import takes, whole
from tff_pfl.local import LocalTraining, trees
from tff_pfl.models import Model, Weights
from tff_pfl.templates import Algorithm, Personalization
from tff_pfl.templates.algorithm import evaluated_model


@takes(epochs=whole(0))
def fine_tuned(algorithm: Algorithm, local: LocalTraining, *, epochs: int) -> Algorithm:
    """Returns an algorithm whose clients fine-tune their own models before evaluation.

    The fine-tuned models are only evaluated, and rounds equal the rounds of `algorithm` bit for
    bit. This fine-tuning replaces the algorithm's own fine-tuning, such as FedBABU's.

    Example:
        >>> model, local = testing.tiny_model(), testing.tiny_local()
        >>> algorithm = tff_pfl.make("fedavg", model, local)
        >>> tuned = tff_pfl.fine_tuned(algorithm, local, epochs=5)
        >>> tuned.name
        'fedavg'

    Args:
        algorithm: Any algorithm.
        local: The local training. It has the learning rate of the last round, and a new optimizer.
        epochs: The number of passes over the client's training examples, 0 or more.
    """
    tune = fine_tuning(evaluated_model(algorithm), local, epochs)
    return dataclasses.replace(
        algorithm, personalize=dataclasses.replace(algorithm.personalize, fine_tune=tune)
    )


def locally_trained(algorithm: Algorithm, local: LocalTraining) -> Algorithm:
    """Returns an algorithm whose clients are evaluated with locally trained global models.

    Each client trains the current global model on its own examples, for as many steps as in a
    round, as FedAvg's clients do before they upload. It uses neither the algorithm's additions to
    local training nor the client's state. The trained models are only evaluated, and rounds equal
    the rounds of `algorithm` bit for bit.

    Example:
        >>> model, local = testing.tiny_model(), testing.tiny_local()
        >>> algorithm = tff_pfl.make("ditto", model, local)
        >>> trained = tff_pfl.locally_trained(algorithm, local)
        >>> trained.name
        'ditto'

    Args:
        algorithm: Any algorithm with a global model.
        local: The local training. It has the learning rate of the last round, and a new optimizer.

    Raises:
        ValueError: The algorithm has no global model.
    """
    if algorithm.global_weights is None:
        raise ValueError(
            "'locally_trained' is the global model after local training, but the algorithm has no "
            "global model."
        )
    model = evaluated_model(algorithm, "locally_trained")
    train = fine_tuning(model, local)
    return dataclasses.replace(
        algorithm,
        evaluated_model=model,
        personalize=Personalization(
            distribute=algorithm.global_weights,
            client_work=lambda weights, state, examples, context: train(weights, examples, context),
        ),
    )


def fine_tuning(
    model: Model,
    local: LocalTraining,
    epochs: int | None = None,
    weights_of: Callable[[Any], Weights] | None = None,
) -> Callable[..., Any]:
    """Returns a function that trains a model on a client's examples.

    Args:
        model: The model.
        local: The local training, which starts with a new optimizer.
        epochs: The number of passes over the examples. Default: as many steps as in a round.
        weights_of: `(P -> W)`. If given, the parameters `P` are trained instead of the weights.

    Returns:
        `(P or W, D, ClientContext) -> W`.
    """
    gradient, made = _parametrized(model, weights_of)

    def tune(initial, examples, context):
        options = {"epochs": epochs, "optimizer_state": (), "gradient": gradient}
        trained = local.train(model, initial, examples, context, **options)
        return made(trained.weights, initial)

    return tune


def _parametrized(model, weights_of):
    """Returns the gradient for `LocalTraining.train`, and `(trained, initial) -> W`."""
    if weights_of is None:
        return None, lambda trained, initial: trained

    def gradient(parameters, batch, carry):
        direction, totals = model.gradient(weights_of(parameters), batch)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(parameters)
            along = trees.dot(weights_of(parameters), direction)
        return tape.gradient(along, parameters), totals, carry

    return gradient, lambda trained, initial: weights_of(trained)
