"""MOON: FedAvg whose clients keep features near those of the global model.

Li et al., "Model-contrastive federated learning", CVPR 2021. A client minimises, with the features
`f(x)` of its model, `g(x)` of the model that it received and `h(x)` of its own model of its last
participation, both constant,

    CE + mu l(x),   l(x) = -log( e^(cos(f, g) / tau) / (e^(cos(f, g) / tau) + e^(cos(f, h) / tau)) )

Features are the inputs of the last layer; the paper's networks have two dense layers, a projection
head, before it. A client that never took part has the model that it received as its last one.
Everything else is as in FedAvg.

mu = 0: FedAvg.
"""

import tensorflow as tf

from tff_pfl.algorithms.fedavg import PERSONALIZED
from tff_pfl.algorithms.registry import ALGORITHMS
from tff_pfl.arguments.extension import extends
from tff_pfl.arguments.names import check_names
from tff_pfl.arguments.ranges import above, at_least, takes
from tff_pfl.local import LocalTraining, trees
from tff_pfl.models import Model, Weights
from tff_pfl.templates import Algorithm, ClientOutput, OwnModel, averaging, last_own_model


@ALGORITHMS.register("moon")
@extends(averaging)
@takes(mu=at_least(0), temperature=above(0))
def moon(
    model: Model,
    local: LocalTraining,
    *,
    mu: float = 1.0,
    temperature: float = 0.5,
    personalized: str = "global",
    **options,
) -> Algorithm:
    """Makes MOON.

    Args:
        model: The model, whose last layer is a linear head.
        local: The local training.
        mu: The weight of the contrast; the paper chooses among 0.1, 1, 5 and 10.
        temperature: `tau`.
        personalized: The model that is evaluated as the client's own: "global", or "local", the
            client's model at the end of its last training.
        **options: Options of `averaging`.

    Raises:
        ValueError: The model has no features (see `Model`).
    """
    check_names("personalized", [personalized], PERSONALIZED)
    model.check_features("moon")

    def client_init(client_id, seed):
        weights = model.init(seed)
        return OwnModel(weights, tf.constant(0), local.optimizer_state(weights))

    def client_work(weights, state, examples, context):
        last = last_own_model(weights, state, examples, context)
        trained = local.train(
            model,
            weights,
            examples,
            context,
            term=contrast(model, weights, last, mu, temperature),
            optimizer_state=state.optimizer,
        )
        return ClientOutput(
            state=OwnModel(trained.weights, state.participations + 1, trained.optimizer_state),
            upload=trees.subtract(trained.weights, weights),
            metrics=trained.totals,
        )

    return averaging(
        model.init,
        client_work,
        last_own_model if personalized == "local" else lambda weights, *_: weights,
        client_init,
        global_weights=lambda weights: weights,
        **options,
    )


def contrast(model: Model, received: Weights, last: Weights, mu: float, temperature: float):
    """Returns the term `mu l(x)` of `LocalTraining.train`.

    Args:
        model: A model with features.
        received: The weights of `g`.
        last: The weights of `h`.
        mu: 0 or more.
        temperature: `tau`, above 0.
    """

    def term(forward, batch):
        near, far = (
            _cosine(forward.features, model.features(w, batch.x, training=False, seed=batch.seed))
            for w in (received, last)
        )
        return mu * tf.nn.softplus((far - near) / temperature)

    return term


def _cosine(one, other):
    """Returns the cosine of the angles between rows, `[batch]`."""
    return tf.reduce_sum(tf.nn.l2_normalize(one, -1) * tf.nn.l2_normalize(other, -1), axis=-1)
