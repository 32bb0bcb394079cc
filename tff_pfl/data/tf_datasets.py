"""Reads `tf.data` data sets of clients, and those of `tff.simulation.datasets`, into arrays."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tree

from tff_pfl.arguments.kinds import check_kind
from tff_pfl.data.checks import ExamplesError, check_same
from tff_pfl.data.client_rows import ClientRows
from tff_pfl.data.partition_file import Partition
from tff_pfl.data.pipelines import check_pipelines
from tff_pfl.models.example_weights import have_weights, with_weights
from tff_pfl.tracing.structures import normalized

_AT_A_TIME = 4096  # examples
_MUST = (
    "Examples must be (x, y), (x, y, weight) or mappings of 'x' and 'y', with tensors of known "
    "shapes"
)
_TIP = "For a function f of one example, write preprocess=lambda data: data.map(f)."


class ClientExamples(NamedTuple):
    """The examples of several clients, one client after the other.

    Attributes:
        clients: Their names.
        x: Inputs `[n, ...]`, a structure of arrays.
        y: Labels `[n, ...]`, a structure of arrays, with the weights of examples that have some.
        owners: int64 `[n]`, the place of the client of each example.
    """

    clients: Sequence[int | str]
    x: Any
    y: Any
    owners: np.ndarray


def read_client_data(
    client_data: tff.simulation.datasets.ClientData,
    preprocess: Callable[[tf.data.Dataset], tf.data.Dataset] | None,
) -> ClientExamples:
    """Reads the examples of clients; see `FederatedDataset.from_client_data`."""
    tip = "tff.simulation.datasets has some."
    check_kind("The client data", client_data, tff.simulation.datasets.ClientData, tip)
    ids = list(client_data.client_ids)
    dataset_of, keys = client_data.serializable_dataset_fn, ids
    if isinstance(client_data, tff.simulation.datasets.TestClientData):
        # The function above would compare the id with those of all clients, for each client.
        datasets = [client_data.create_tf_dataset_for_client(i) for i in ids]
        dataset_of, keys = _of_variants(datasets), _variants(datasets)

    def examples_of(key):
        dataset = dataset_of(key)
        if preprocess is None:
            return dataset
        try:
            dataset = preprocess(dataset)
        except Exception as error:
            raise ExamplesError(
                f"preprocess, which must map a client's tf.data.Dataset to another one, fails: "
                f"{error} {_TIP}"
            ) from error
        if not isinstance(dataset, tf.data.Dataset):
            raise ExamplesError(
                "preprocess must map a client's tf.data.Dataset to another one, but returned "
                f"{dataset!r:.80}. {_TIP}"
            )
        return dataset

    with tf.__internal__.eager_context.eager_mode():
        check_pipelines(
            {client: examples_of(key) for client, key in zip(ids[:1], keys[:1], strict=True)}
        )
    return _read(ids, keys, examples_of)


def joined(pools: Sequence[ClientExamples], num_classes: int | None) -> tuple[Any, Any, Partition]:
    """Joins the examples of the pool for training and perhaps of the pool for testing.

    Args:
        pools: The examples.
        num_classes: The number of classes, whose labels may be integers of different types.

    Returns:
        `(x, y, partition)`: the examples of one pool after the other, and those of each client, in
        the order of the pools.

    Raises:
        ExamplesError: The pools differ in the data type or the shape of an example.
    """
    names = list(dict.fromkeys(client for pool in pools for client in pool.clients))
    ids = {client: i for i, client in enumerate(names)}
    pairs = [(normalized(pool.x), normalized(pool.y)) for pool in pools]
    for x, y in pairs[1:]:
        check_same("inputs", x, pairs[0][0], "test", "train")
        if have_weights(y) != have_weights(pairs[0][1]):
            raise ExamplesError(
                "Only the training or only the test examples have weights. Give all of them "
                "weights, (x, y, weight), or none."
            )
        if num_classes is None:
            check_same("labels", y, pairs[0][1], "test", "train")
    x, y = tree.map_structure(lambda *parts: np.concatenate(parts), *pairs)
    rows, start = [ClientRows.of([np.empty(0, np.int64)] * len(names))] * 3, 0
    for split, pool in zip((0, 2), pools, strict=False):
        owners = np.array([ids[client] for client in pool.clients], np.int64)[pool.owners]
        rows[split] = ClientRows.by_owner(start + np.arange(len(owners)), owners, len(names))
        start += len(owners)
    return x, y, Partition(*rows, names=names)


def read_datasets(datasets: Mapping[Any, tf.data.Dataset]) -> ClientExamples:
    """Reads the examples of clients; see `FederatedDataset.from_datasets`."""
    for name, dataset in datasets.items():
        check_kind(f"The data of client {name!r}", dataset, tf.data.Dataset)
    (first, dataset), *others = datasets.items()
    for name, other in others:
        if other.element_spec != dataset.element_spec:
            raise ExamplesError(
                f"All clients need examples of the same types: client {first!r} has "
                f"{dataset.element_spec}, and client {name!r} has {other.element_spec}."
            )
    check_pipelines(datasets)
    every = list(datasets.values())
    return _read(list(datasets), _variants(every), _of_variants(every))


def _variants(datasets) -> tf.Tensor:
    return tf.stack([tf.data.experimental.to_variant(dataset) for dataset in datasets])


def _of_variants(datasets):
    spec = datasets[0].element_spec
    return lambda variant: tf.data.experimental.from_variant(variant, spec)


def _read(clients, keys, examples_of) -> ClientExamples:
    """Reads all clients in one `tf.data` pipeline, since thousands of small pipelines are slow.

    Args:
        clients: Their names.
        keys: `[clients]`, the arguments of `examples_of`.
        examples_of: Returns the data set of a client.
    """

    @tf.autograph.experimental.do_not_convert
    def numbered(number, key):
        dataset = examples_of(key)
        _check(dataset.element_spec)
        return dataset.map(lambda *example: (*_pair(example), number))

    # In programs of absl, tables of preprocess would otherwise be put into another graph.
    with tf.__internal__.eager_context.eager_mode():
        rows = tf.data.Dataset.from_tensor_slices((np.arange(len(clients)), keys))
        rows = rows.flat_map(numbered)
    none = tree.map_structure(
        lambda spec: np.zeros([0, *spec.shape], spec.dtype.as_numpy_dtype), rows.element_spec
    )
    # Optimizations lose the sizes of batches that preprocess makes of a client's examples.
    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = False
    # Some of TFF's preprocessing yields examples as they are ready; one thread keeps their order.
    options.threading.private_threadpool_size = 1
    batches = rows.with_options(options).batch(_AT_A_TIME).prefetch(1).as_numpy_iterator()
    columns = tree.map_structure(lambda *parts: np.concatenate(parts), none, *batches)
    return ClientExamples(clients, *columns)


def _pair(example):
    """Returns `(x, y)` of the arguments with which `tf.data` calls a function of an example."""
    if len(example) == 1:
        return example[0]["x"], example[0]["y"]
    x, y, *weight = example
    return x, with_weights(y, *(tf.cast(it, tf.float32) for it in weight)) if weight else y


def _check(spec) -> None:
    is_pair = isinstance(spec, tuple) and len(spec) in (2, 3)
    if not (is_pair or (isinstance(spec, Mapping) and set(spec) == {"x", "y"})):
        raise ExamplesError(f"{_MUST}; they are {spec}. Let preprocess return such examples.")
    for leaf in tree.flatten(spec):
        if not isinstance(leaf, tf.TensorSpec) or leaf.dtype == tf.string:
            raise ExamplesError(f"Examples must be tensors of numbers, found {leaf}.")
        if leaf.shape.rank is None or None in leaf.shape:
            raise ExamplesError(
                f"{_MUST}, found {leaf}. Pad sequences to one length, or, if these are batches, "
                "unbatch them: data.unbatch()."
            )
