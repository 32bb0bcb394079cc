"""The data of TFF's benchmark tasks, with TFF's preprocessing."""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.data.sources import LabelledImages
from tff_pfl.data.tf_datasets import read_client_data
from tff_pfl.structures import normalized

_CLASSES = {"cifar100": 100, "emnist": 62}
_MOST_CLIENTS = 1000  # The posts of the 342,477 clients of Stack Overflow do not fit into memory.


def read_task(name: str, task: tff.simulation.baselines.BaselineTask, title: str) -> LabelledImages:
    """Reads all training examples of a task, then all test examples.

    At most 1,000 clients are read, the first ones.

    Args:
        name: One of `TFF_TASKS`.
        task: The task, with batches of one example in stored order.
        title: The name of the data set.
    """
    datasets = task.datasets

    def preprocess(data):
        return datasets.train_preprocess_fn(data).unbatch()

    train, test = (
        read_client_data(_first_clients(clients), preprocess)
        for clients in (datasets.train_data, datasets.test_data)
    )
    ids = {client: i for i, client in enumerate(dict.fromkeys([*train.clients, *test.clients]))}
    owners = [
        np.array([ids[client] for client in pool.clients], np.int32)[pool.owners]
        for pool in (train, test)
    ]
    x, y = tf.nest.map_structure(
        lambda *parts: np.concatenate(parts),
        *((normalized(pool.x), normalized(pool.y)) for pool in (train, test)),
    )
    return LabelledImages(
        title, x, y, _CLASSES.get(name), len(train.owners), np.concatenate(owners)
    )


def _first_clients(clients: tff.simulation.datasets.ClientData):
    ids = clients.client_ids[:_MOST_CLIENTS]
    if len(ids) == len(clients.client_ids):
        return clients
    dataset_of = clients.serializable_dataset_fn
    return tff.simulation.datasets.ClientData.from_clients_and_tf_fn(ids, dataset_of)
