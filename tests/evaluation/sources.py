"""Makes data sets and sources to evaluate, and the numbers of Keras to compare with."""

import tensorflow as tf

from tff_pfl.clients import ClientStateStore, CohortDataSource
from tff_pfl.data import FederatedDataset


class CountingStore(ClientStateStore):
    """Client states with the number of states of each read, `read`."""

    def __init__(self, *args):
        super().__init__(*args)
        self.read = []

    def get(self, client_ids):
        self.read.append(len(client_ids))
        return super().get(client_ids)


def dataset_of(pairs):
    """Makes a data set of three classes from the training and test examples of each client."""
    return FederatedDataset.from_client_arrays([(a.x, a.y, b.x, b.y) for a, b in pairs], 3)


def source_of(process, dataset, **options):
    store = CountingStore(process.initialize_clients, process.client_state_type)
    return CohortDataSource(dataset, store, process.client_type, seed=0, **options)


def after_a_round(process, source, number=None):
    """Returns the server's state after a round of some clients, by default of all."""
    iterator = source.iterator()
    output = process.next(process.initialize(), iterator.select(number))
    iterator.update(output.clients)
    return output.state


def scores(model, weights, examples):
    """Returns the loss and the accuracy of each example, with Keras's functions."""
    logits = model.apply(weights, examples.x)
    loss = tf.keras.losses.sparse_categorical_crossentropy(examples.y, logits, from_logits=True)
    accuracy = tf.keras.metrics.sparse_categorical_accuracy(examples.y, logits)
    return {"loss": loss.numpy(), "accuracy": accuracy.numpy()}
