"""Records the outputs of every client's models on each of its examples."""

import collections
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import tensorflow as tf
import tree

from tff_pfl.data import FederatedDataset
from tff_pfl.local import Examples, num_rows, scan_batches
from tff_pfl.models import Model, Weights
from tff_pfl.models.example_weights import labels_of

_map = tf.nest.map_structure


class Prediction(NamedTuple):
    """The predictions of one model for `rows` inputs.

    Attributes:
        outputs: float32 `[rows, ...]`, the model's outputs, such as a logit for each class, or a
            structure of such tensors.
        loss: float32 `[rows]`, the loss of each example.
    """

    outputs: Any
    loss: Any


class Predictions(NamedTuple):
    """The predictions of clients' models, with a row for each example of each client.

    Attributes:
        client_ids: int `[n]`, the client that owns the example.
        examples: int64 `[n]`, the example's row in the data set, as in `Partition`.
        labels: `[n, ...]`, in the structure of the data set.
        models: The `Prediction` of each model, `n` rows each: `personalized`, the further models
            and, if the algorithm has a global model, `global`.
        names: `[n]`, the name of the client, or `None` if clients have none.
        class_names: The names of the classes, or `None` if they have none.
    """

    client_ids: np.ndarray
    examples: np.ndarray
    labels: Any
    models: Mapping[str, Prediction]
    names: np.ndarray | None = None
    class_names: np.ndarray | None = None

    @classmethod
    def of(
        cls,
        results: Iterable[Mapping[str, Prediction]],
        dataset: FederatedDataset,
        split: str,
        client_ids: np.ndarray,
    ) -> "Predictions":
        """Joins the results of `predicted` for some clients, by model.

        Args:
            results: The predictions for each client's examples and their padding.
            dataset: The data set of the examples.
            split: The split of the examples.
            client_ids: The clients.
        """
        sizes, parts = dataset.sizes(split)[client_ids], collections.defaultdict(list)
        for size, models in zip(sizes.tolist(), results, strict=True):
            for name, prediction in models.items():
                parts[name].append(_map(lambda rows, size=size: rows[:size], prediction))
        owned = getattr(dataset.partition, split)
        examples = np.concatenate([owned[client_id] for client_id in client_ids])
        owners = np.repeat(client_ids, sizes)
        return cls(
            owners,
            examples,
            _map(lambda leaf: leaf[examples], dataset.y),
            {name: _map(lambda *rows: np.concatenate(rows), *of) for name, of in parts.items()},
            None if dataset.names is None else dataset.names[owners],
            dataset.class_names,
        )

    def columns(self) -> dict[str, Any]:
        """Returns the columns of a table: `client_id`, `example`, `label` and those of each model.

        `client_id` has the names of clients, if they have any, and `label` those of classes: as a
        pandas Categorical, whose categories are in the order of the logits.
        A model has the columns `MODEL`, its outputs, and `MODEL_loss`. If its outputs are several
        tensors, these are `MODEL/NAME`, or `MODEL/0`, `MODEL/1` and so on; labels likewise.
        """
        clients = self.client_ids if self.names is None else self.names
        columns: dict[str, Any] = {"client_id": clients, "example": self.examples}
        if self.class_names is None:
            columns |= _columns("label", self.labels)
        else:
            columns["label"] = pd.Categorical.from_codes(self.labels, self.class_names)
        for name, prediction in self.models.items():
            columns |= _columns(name, prediction.outputs)
            columns[f"{name}_loss"] = prediction.loss
        return columns


def _columns(name: str, arrays: Any) -> dict[str, np.ndarray]:
    """Returns the arrays of a structure by the name and their paths."""
    found = tree.flatten_with_path(arrays)
    return {"/".join(map(str, (name, *path))): array for path, array in found}


def predicted(model: Model, weights: Weights, examples: Examples, *, batch_size: int) -> Prediction:
    """Predicts all rows of a client's examples; predictions for padding have no meaning."""

    def predict(x, y, seed):
        outputs = model.apply(weights, x, training=False, seed=seed)
        prediction = Prediction(outputs, model.task.example_loss(labels_of(y), outputs))
        return _map(lambda leaf: tf.cast(leaf, tf.float32), prediction)

    def put_batch(carry, batch):
        index, batches = carry
        found = predict(batch.x, batch.y, batch.seed)
        return index + 1, _map(
            lambda stack, leaf: tf.tensor_scatter_nd_update(stack, [[index]], [leaf]),
            batches,
            found,
        )

    rows = num_rows(examples)
    num_batches = (rows + batch_size - 1) // batch_size
    # Only the shapes of these predictions are used.
    x, y = _map(lambda leaf: leaf[:1], (examples.x, examples.y))
    shapes = predict(x, y, tf.zeros([2], tf.int32))
    batches = _map(lambda leaf: tf.zeros([num_batches, batch_size, *leaf.shape[1:]]), shapes)
    _, batches = scan_batches(
        put_batch, (0, batches), examples, epochs=1, batch_size=batch_size, seed=None
    )
    return _map(lambda stack: tf.reshape(stack, [-1, *stack.shape[2:]])[:rows], batches)
