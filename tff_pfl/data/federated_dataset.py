"""A data set spread over clients: its arrays, and the rows that each client owns."""

import mmap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tree

from tff_pfl.arguments.names import check_names
from tff_pfl.arguments.ranges import takes, whole
from tff_pfl.data import data_frames, tf_datasets
from tff_pfl.data import partition as partitioners
from tff_pfl.data.checks import ExamplesError, check_examples, checked_weights, warn_of_rounding
from tff_pfl.data.class_labels import as_classes
from tff_pfl.data.client_arrays import joined_arrays
from tff_pfl.data.input_digest import digest_of_rows, memory_map_of
from tff_pfl.data.mapped import mapped
from tff_pfl.data.partition import PartitionError, class_counts
from tff_pfl.data.partition_file import SPLITS, Partition, digest
from tff_pfl.local.examples import Examples, type_of_examples
from tff_pfl.models.example_weights import labels_of, weights_of, with_weights
from tff_pfl.output.tables import aligned, to_html
from tff_pfl.tracing.structures import normalized, type_of_rows

_NAMED = 10  # the most classes whose names are shown


class FederatedDataset:
    """The examples of all clients, stored as whole arrays and a `Partition` of their rows.

    A client may have no examples in a split. Every row belongs to at most one client and split.

    Inputs are one array, or a structure (mappings and tuples) of arrays with a row for each
    example. Labels are classes, or with `num_classes=None` any numbers, also in a structure:

        FederatedDataset({"user": users, "item": items}, ratings, None, partition)

    Inputs need not fit into memory: arrays may be memory-mapped, for example by `np.load(path,
    mmap_mode="r")`. Then a client's inputs are copied when they are needed, and the kernel is
    advised not to read ahead. Labels, the rows of clients and inputs of floats, which must be
    finite, are also read once when the data set is made.

    Inputs reach a model's `preprocess` as they are stored. A warning names numbers whose different
    values float32 merges, such as milliseconds since 1970.

    Attributes:
        x: `[n, ...]` inputs as they are stored. Mappings are `OrderedDict`s in sorted order.
        y: int32 `[n]` class labels, also of whole floats, truth values or text; without
            `num_classes`, `[n, ...]` labels as they are stored.
        num_classes: The number of classes, or `None` if labels are not classes.
        class_names: The names of the classes by number, or `None`: in sorted order if labels were
            text, "2" before "10"; the categories in their order if they were a pandas Categorical.
        partition: The rows that each client owns.
        weights: float32 `[n]`, the weight of each example in losses and metrics, or `None`. The
            loss of a batch is `sum(weight * loss) / sum(weight)`, so a weight of 2 counts like two
            rows, and one of 0 like none.
        name: The name of the data set, for titles and reports.
    """

    def __init__(
        self,
        x: Any,
        y: Any,
        num_classes: int | None,
        partition: Partition,
        name: str = "custom",
        weights: Any = None,
    ):
        """Checks the arrays and the partition.

        Raises:
            ExamplesError: See `check_examples`; or all weights of a split are 0.
            PartitionError: A row of the partition does not exist or is used twice.
        """
        (y,), class_names = as_classes([y], num_classes)
        check_examples(x, y, num_classes, name)
        warn_of_rounding(x, y, name)
        if weights is not None:
            weights = checked_weights(weights, len(tree.flatten(y)[0]), name)
        self._hold(x, y, num_classes, partition, name, class_names, weights)
        for split in SPLITS if weights is not None else ():
            rows = self._rows(split).rows
            if len(rows) and not self.weights[rows].any():
                raise ExamplesError(
                    f"{name}: the weights of all {split} examples are 0, so none would count. Give "
                    "some a weight above 0."
                )

    @classmethod
    def _of_checked(
        cls, x, y, num_classes, partition, name, names=None, weights=None
    ) -> "FederatedDataset":
        """Makes a data set of checked arrays without reading them again, which may be slow."""
        dataset = cls.__new__(cls)
        dataset._hold(x, y, num_classes, partition, name, names, weights)
        return dataset

    def _hold(self, x, y, num_classes, partition, name, class_names, weights):
        self.x, self.y = (normalized(rows, np.asarray) for rows in (x, y))
        partition.check(len(tree.flatten(self.x)[0]))
        if num_classes is not None:
            self.y = self.y.astype(np.int32, copy=False)
        for array in tree.flatten(self.x if num_classes is not None else (self.x, self.y)):
            # Reading megabytes ahead for each client would take much longer than reading it.
            if (mapped_file := memory_map_of(array)) is not None:
                mapped_file.madvise(mmap.MADV_RANDOM)
        self.num_classes = num_classes
        self.class_names = class_names
        self.weights = weights
        self.partition = partition
        self.name = name

    @classmethod
    def from_client_arrays(
        cls,
        clients: Iterable[tuple[Any, ...]] | Mapping[int | str, tuple[Any, ...]],
        num_classes: int | None = None,
        name: str = "custom",
    ) -> "FederatedDataset":
        """Makes a data set from `(x_train, y_train, x_test, y_test)` of each client.

        With weights of examples: `(x_train, y_train, weight_train, x_test, y_test, weight_test)`.
        A mapping `{name: arrays}` names the clients: text, or whole numbers such as a user's id.

        Raises:
            ExamplesError: See `check_examples`; or inputs, or labels that are not classes, differ
                in shape or data type, or there are no clients.
        """
        x, y, partition, class_names, weights = joined_arrays(clients, num_classes)
        dataset = cls(x, y, num_classes, partition, name, weights)
        dataset.class_names = class_names
        return dataset

    @classmethod
    def from_client_data(
        cls,
        train: tff.simulation.datasets.ClientData,
        test: tff.simulation.datasets.ClientData | None = None,
        *,
        preprocess: Callable[[tf.data.Dataset], tf.data.Dataset] | None = None,
        num_classes: int | None = None,
        name: str = "custom",
    ) -> "FederatedDataset":
        """Reads the training and the test examples of TFF's `ClientData` into memory.

        Clients are those of `train`, then those that only `test` has. They keep their ids of TFF
        as names.

        Example:
            >>> client = collections.OrderedDict(x=np.ones([2, 3], np.float32), y=[0, 1])
            >>> data = tff.simulation.datasets.TestClientData({"ann": client, "bob": client})
            >>> tff_pfl.FederatedDataset.from_client_data(data, num_classes=2).names
            array(['ann', 'bob'], dtype='<U3')

        Args:
            train: The training examples.
            test: The test examples, or `None`.
            preprocess: A transformation of a client's data set, as `ClientData.preprocess` takes
                it; the results are single examples, not batches. Examples are `(x, y)`, `(x, y,
                weight)` or mappings of "x" and "y"; inputs and labels are tensors of known shapes,
                or structures of them.
            num_classes: The number of classes, or `None` if labels are not classes.
            name: The name of the data set.

        Raises:
            ExamplesError: `preprocess` fails; a data set never ends, or is shuffled without a seed;
                examples have another form; or see `check_examples`.
        """
        parts = (train,) if test is None else (train, test)
        pools = [tf_datasets.read_client_data(part, preprocess) for part in parts]
        x, y, partition = tf_datasets.joined(pools, num_classes)
        return cls(x, labels_of(y), num_classes, partition, name, weights_of(y))

    @classmethod
    def from_datasets(
        cls,
        train: Mapping[int | str, tf.data.Dataset],
        test: Mapping[int | str, tf.data.Dataset] | None = None,
        *,
        num_classes: int | None = None,
        name: str = "custom",
    ) -> "FederatedDataset":
        """Reads `{client: tf.data.Dataset}` of training and test examples into memory.

        Clients are those of `train`, then those that only `test` has; the keys are their names. For
        examples and the other arguments see `from_client_data`.

        Raises:
            ExamplesError: Examples differ in type or shape, or see `from_client_data`.
        """
        pools = [tf_datasets.read_datasets(part) for part in (train, test) if part]
        x, y, partition = tf_datasets.joined(pools, num_classes)
        return cls(x, labels_of(y), num_classes, partition, name, weights_of(y))

    @classmethod
    @takes(PartitionError, fractions=partitioners.FRACTIONS, seed=whole(0))
    def from_dataframe(
        cls,
        frame: Any,
        *,
        client: Any,
        x: Any,
        y: Any,
        weight: Any = None,
        split: Any = None,
        fractions: Sequence[float] | None = None,
        seed: int = 0,
        num_classes: int | None = None,
        name: str = "custom",
    ) -> "FederatedDataset":
        """Makes a data set of the columns of a pandas data frame, with a row for each example.

        Example:
            >>> import pandas as pd
            >>> frame = pd.DataFrame({"user": [7, 7, 9], "age": [1, 2, 3], "rating": [4., 5., 1.]})
            >>> dataset = tff_pfl.FederatedDataset.from_dataframe(
            ...     frame, client="user", x=["age"], y="rating")
            >>> dataset.names, dataset.x.shape
            (array([7, 9]), (3, 1))

        Args:
            frame: The data frame. A level of its index counts as a column.
            client: The column of the clients' names: numbers, text or times, which become text.
            x: The columns of inputs. One column gives an array `[n]`, a list or an index of columns
                one array `[n, k]`, and a mapping a structure: `{"id": "id", "both": ["a", "b"]}`.
            y: The columns of labels, likewise. A column of text or of categories has the names of
                classes; see `class_names`.
            weight: The column of the weights of examples, or `None`.
            split: A column with "train", "validation" or "test".
            fractions: Without `split`, the sizes of (train, validation, test) relative to each
                other, into which the rows of each client are cut at random. Default: (0.8, 0, 0.2).
            seed: The seed of these cuts.
            num_classes: The number of classes, or `None` if labels are not classes.
            name: The name of the data set.

        Raises:
            ExamplesError: A column does not exist, lacks values or is not of numbers; a label or
                the weight is also an input; `split` and `fractions` are both given; or see
                `check_examples`.
        """
        partition = data_frames.partition_of_frame(frame, client, split, fractions, seed)
        inputs, labels, weights = data_frames.examples_of_frame(frame, x, y, weight)
        return cls(inputs, labels, num_classes, partition, name, weights)

    @property
    def num_clients(self) -> int:
        """The number of clients."""
        return self.partition.num_clients

    @property
    def names(self) -> np.ndarray | None:
        """The names of the clients by id, `[N]` of int64 or text; `None` if they have none."""
        return self.partition.names

    def ids_of(self, clients: Iterable[int | str]) -> list[int]:
        """Returns the ids of clients that are given by name; see `Partition.ids_of`."""
        return self.partition.ids_of(clients)

    @property
    def image_shape(self) -> Any:
        """The shape of one input, `(height, width, channels)` for images; or their structure."""
        return tree.map_structure(lambda array: array.shape[1:], self.x)

    @property
    def x_dtype(self) -> Any:
        """The data type of the inputs as they are stored; or the structure of data types."""
        return tree.map_structure(lambda array: array.dtype, self.x)

    @property
    def examples_type(self) -> tff.types.StructWithPythonType:
        """The TFF type of a client's `Examples`, with an open number of rows.

        With weights of examples, `y` is a mapping of "label" and "sample_weight".

        Example:
            >>> ids, prices = np.zeros([5, 2], np.int64), np.ones(5, np.float32)
            >>> client = {"ids": ids}, prices, {"ids": ids[:1]}, prices[:1]
            >>> dataset = tff_pfl.FederatedDataset.from_client_arrays([client])
            >>> str(dataset.examples_type)
            '<x=<ids=int64[?,2]>,y=float32[?],size=int32>'
        """
        specs = tf.nest.map_structure(
            lambda array: tf.TensorSpec(array.shape[1:], array.dtype), (self.x, self._y)
        )
        return type_of_examples(*map(type_of_rows, map(tff.types.tensorflow_to_type, specs)))

    @property
    def fingerprint(self) -> str:
        """A digest of the inputs' shape and type, the labels, their names, weights and partition.

        It has 16 hex digits.
        """
        if isinstance(self.x, np.ndarray) and self.num_classes is not None:
            about = f"{self.x.shape} {self.x.dtype.str} {self.num_classes}"
        else:
            about = f"{len(tree.flatten(self.x)[0])} {self.examples_type} {self.num_classes}"
        if self.class_names is not None:
            about += f" {self.class_names.tolist()}"
        parts = self.partition.flat().values()
        return digest(np.frombuffer(about.encode(), np.uint8), *tree.flatten(self._y), *parts)

    @property
    def inputs_fingerprint(self) -> str:
        """A digest of the inputs, 32 hex digits.

        It covers every bit of inputs in memory, but only 256 evenly spaced rows of memory-mapped
        inputs, whose other rows may change unseen.
        """
        return digest_of_rows(tree.flatten(self.x))

    def sizes(self, split: str = "train") -> np.ndarray:
        """Returns int64 `[N]`, the number of examples of each client."""
        return self._rows(split).sizes

    def class_counts(self, split: str = "train") -> np.ndarray:
        """Returns int64 `[N, C]`, the number of examples of each client in each class.

        Raises:
            ExamplesError: Labels are not classes.
        """
        if self.num_classes is None:
            raise ExamplesError(
                f"class_counts needs class labels, but {self.name!r} has num_classes=None. Use "
                "sizes for the number of examples of each client."
            )
        return class_counts(self.y, self._rows(split), self.num_classes)

    def examples(self, client_id: int, split: str = "train") -> Examples:
        """Returns a client's examples without padding: `x` and `y` as stored, `size` int32.

        With weights of examples, `y` is a mapping of "label" and "sample_weight".

        Raises:
            IndexError: The client does not exist.
            ValueError: The split is unknown.
        """
        if not 0 <= client_id < self.num_clients:
            raise IndexError(
                f"Client {client_id} does not exist: ids are 0..{self.num_clients - 1}."
            )
        rows = self._rows(split)[client_id]
        return Examples(_rows_of(self.x, rows), _rows_of(self._y, rows), np.int32(len(rows)))

    def of(self, client_ids: Sequence[int], **metadata: Any) -> "FederatedDataset":
        """Returns the data set of some of the clients without a copy; see `Partition.of`."""
        partition = self.partition.of(client_ids, **metadata)
        about = (self.x, self.y, self.num_classes, partition, self.name)
        return self._of_checked(*about, self.class_names, self.weights)

    @takes(batch_size=whole(1))
    def map(self, function: Callable[[Any], Any], *, batch_size: int = 256) -> "FederatedDataset":
        """Returns the data set of a function's results, with the same labels and partition.

        The function is applied once to all inputs, such as a frozen backbone to images. Exported
        models take its results, without the function.

        The results are held in memory. The fingerprint of inputs covers every bit of them, so a run
        is resumed only with equal results: save results that other machines or devices compute
        differently.

        Example:
            >>> images = tff_pfl.federate(tff_pfl.load("digits"), num_clients=3,
            ...                           partitioner="iid", seed=0)
            >>> images.map(lambda x: x.reshape(len(x), -1) / np.float32(16)).image_shape
            (64,)

        Args:
            function: `(inputs) -> results`, row by row: a Keras model, or a function of TensorFlow
                or NumPy. Inputs are NumPy arrays `[batch, ...]` as stored, in the structure of `x`;
                results are an array or a tensor `[batch, ...]`, or a structure of them. A Keras
                model is called as in inference.
            batch_size: The number of rows in a call; the last call may have fewer.

        Raises:
            ExamplesError: There is no result for each row; the results of a row depend on the other
                rows of its batch; or see `check_examples`.
        """
        results = mapped(self.x, function, batch_size)
        about = (self.y, self.num_classes, self.partition, self.name, self.weights)
        dataset = FederatedDataset(results, *about)
        dataset.class_names = self.class_names
        return dataset

    def __repr__(self) -> str:
        """Returns the numbers of clients and examples as text."""
        title, rows = self._numbers()
        return "\n".join([f"FederatedDataset {title}", *aligned(rows)])

    def _repr_html_(self) -> str:
        """Returns the numbers of clients and examples for notebooks."""
        return to_html(*self._numbers())

    def _numbers(self) -> tuple[str, list[list[str]]]:
        """Returns the title and the rows of a table of the data set."""
        classes = "" if self.num_classes is None else f", {self.num_classes} classes"
        if self.class_names is not None:
            named = [f"{number} {name}" for number, name in enumerate(self.class_names[:_NAMED])]
            classes += f" ({', '.join([*named, *['...'] * (self.num_classes > _NAMED)])})"
        rows = [["", "examples", "least a client", "median", "most"]]
        for split in SPLITS:
            if (sizes := self.sizes(split)).any():
                numbers = sizes.sum(), sizes.min(), np.median(sizes), sizes.max()
                rows.append([split, *(f"{number:,.1f}".removesuffix(".0") for number in numbers)])
        return f"{self.name}: {self.num_clients} clients{classes}", rows

    @property
    def _y(self):
        """The labels, with the weights of examples if there are any."""
        return with_weights(self.y, self.weights)

    def _rows(self, split):
        check_names("split", [split], SPLITS)
        return getattr(self.partition, split)


def _rows_of(arrays: Any, rows: np.ndarray) -> Any:
    if isinstance(arrays, np.ndarray):  # `tree` takes longer than the copy of the rows
        return arrays[rows]
    return tree.map_structure(lambda array: array[rows], arrays)
