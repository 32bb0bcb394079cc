"""Trains a method, data set and model of your own, or the library's methods beside it.

    python programs/train.py --config=examples/own_method/config.py --output_dir=runs/own
    python programs/train.py --config=examples/own_method/config.py:ditto --output_dir=runs/ditto

The folder may lie anywhere. A finished run records the modules that it needs, and their folder.
"""

import tff_pfl


def get_config(algorithm="mixed_start"):
    """Returns the config of an algorithm."""
    config = tff_pfl.default_config(algorithm, imports=("mixed_start", "stripes", "small_network"))
    config.rounds = 10
    config.clients_per_round = 5
    config.data.name = "stripes"
    config.data.num_clients = 10
    config.data.partitioner = "classes_per_client"
    config.data.classes_per_client.classes = 2
    config.model.name = "small_network"
    config.local.epochs = 2
    config.local.batch_size = 10
    return config
