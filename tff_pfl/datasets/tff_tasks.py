"""The data of TFF's benchmark tasks, with TFF's preprocessing."""

import numpy as np
import tensorflow_federated as tff

from tff_pfl.data.labelled_images import LabelledImages
from tff_pfl.data.tf_datasets import joined, read_client_data

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

    pools = [
        read_client_data(_first_clients(clients), preprocess)
        for clients in (datasets.train_data, datasets.test_data)
    ]
    num_classes = _CLASSES.get(name)
    x, y, partition = joined(pools, num_classes)
    clients = np.arange(partition.num_clients, dtype=np.int32)
    num_train, num_test = partition.train.sizes.sum(), partition.test.sizes.sum()
    writers = np.empty([num_train + num_test], np.int32)
    for rows in (partition.train, partition.test):
        writers[rows.rows] = np.repeat(clients, rows.sizes)
    return LabelledImages(title, x, y, num_classes, int(num_train), writers)


def _first_clients(clients: tff.simulation.datasets.ClientData):
    ids = clients.client_ids[:_MOST_CLIENTS]
    if len(ids) == len(clients.client_ids):
        return clients
    dataset_of = clients.serializable_dataset_fn
    return tff.simulation.datasets.ClientData.from_clients_and_tf_fn(ids, dataset_of)
