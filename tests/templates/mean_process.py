"""Processes that can be computed by hand: a client's value is the mean of its inputs."""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl import templates
from tff_pfl.local import Examples, examples_type
from tff_pfl.models import Mean
from tff_pfl.templates import Algorithm, Client, ClientOutput, Exchange, Personalization

EXAMPLES_TYPE = examples_type((), np.float32)


class Visits(NamedTuple):
    """Client state: the number of rounds in which the client took part."""

    count: Any


def examples(*values) -> Examples:
    return Examples(
        np.array(values, np.float32), np.zeros(len(values), np.int32), np.int32(len(values))
    )


def mean_value(data):
    return tf.reduce_mean(data.x)


def algorithm(*exchanges, **options) -> Algorithm:
    """Makes an algorithm with a vector as global model, to which personal models add a value."""
    blocks = {
        "server_init": lambda seed: tf.constant([1.0, 2.0]),
        "client_init": lambda client_id, seed: Visits(tf.constant(0)),
        "exchanges": exchanges,
        "personalize": Personalization(
            distribute=lambda server: server,
            client_work=lambda server, state, data, context: server + mean_value(data),
        ),
        "global_weights": lambda server: server,
    }
    return Algorithm(**(blocks | options))


def compose(*exchanges, seed=0, **options):
    return templates.compose(algorithm(*exchanges, **options), EXAMPLES_TYPE, seed)


def mean_exchange(**options) -> Exchange:
    """Makes an exchange that moves the server to the weighted mean of the clients' values."""

    def client_work(server, state, data, context):
        value = mean_value(data)
        return ClientOutput(
            state=Visits(state.count + 1),
            upload=value - server,
            weight=tf.cast(data.size, tf.float32),
            metrics={"value": Mean(tf.reduce_sum(data.x), tf.cast(data.size, tf.float32))},
        )

    def finalize(server, change, round_num):
        return server + change, {"change": tf.norm(change)}

    return Exchange(
        **{
            "distribute": lambda server: server,
            "client_work": client_work,
            "aggregator": tff.aggregators.MeanFactory(),
            "finalize": finalize,
            **options,
        }
    )


def clients(process, *data, ids=None) -> list[Client]:
    ids = range(len(data)) if ids is None else ids
    return [
        Client(np.int32(i), process.initialize_client(i), d) for i, d in zip(ids, data, strict=True)
    ]
