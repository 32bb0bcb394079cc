"""Provides the config of a small run, and builds parts of the run."""

import ml_collections
import tensorflow as tf

from tff_pfl.config import build_algorithm, build_dataset, build_model, check_config, default_config
from tff_pfl.local import ClientContext


def small(algorithm="fedavg", **data) -> ml_collections.ConfigDict:
    config = default_config(algorithm)
    config.data.num_clients = 6
    config.clients_per_round = 3
    config.model.options.hidden = (4,)
    config.data.update(data)
    return config


def algorithm_of(name, **changes):
    """Builds the algorithm of a small config with changed values in some sections."""
    config = small(name)
    for section, values in changes.items():
        config[section].update(values)
    check_config(config)
    dataset = build_dataset(config)
    return build_algorithm(config, build_model(config, dataset), dataset)


def run_client(config, client_id=1):
    """Runs a client's work; returns its output and inputs, the model and the algorithm."""
    dataset = build_dataset(config)
    model = build_model(config, dataset)
    algorithm = build_algorithm(config, model, dataset)
    client = tf.constant(client_id), algorithm.client_init(client_id, 0)
    examples = tf.nest.map_structure(tf.constant, dataset.examples(client_id))
    context = ClientContext(tf.constant(0), client[0], tf.constant([1, 2]))
    received = model.init(0)
    output = algorithm.exchanges[0].client_work(received, client[1], examples, context)
    return output, received, examples, context, model, algorithm
