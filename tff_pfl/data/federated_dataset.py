"""A data set that is spread over clients: the arrays once, and who owns which rows.

The clients of FedPG's Table 1, for example:

    images = load("cifar10")
    dataset = federate(
        images,
        num_clients=100,
        partitioner="dirichlet",
        partition_args={"alpha": 0.1, "min_examples": images.num_classes},
        seed=1,
    )
    dataset.examples(client_id=7, split="test")
"""

import functools
import mmap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tff_pfl.data import partition as partitioners
from tff_pfl.data.checks import ExamplesError, check_examples, checked_images
from tff_pfl.data.client_rows import ClientRows
from tff_pfl.data.imbalance import long_tailed
from tff_pfl.data.partition import PARTITIONERS, PartitionError
from tff_pfl.data.partition_file import SPLITS, Partition, digest, label_digest
from tff_pfl.data.sources import LabelledImages
from tff_pfl.generators import made_of_shared_draws
from tff_pfl.local.examples import Examples
from tff_pfl.names import check_names
from tff_pfl.ranges import at_least, takes, whole

_FINGERPRINTED = 256  # rows


class FederatedDataset:
    """The examples of all clients: the arrays are held once, a client's rows gathered when asked.

    A client may have no examples in a split; every row belongs to at most one client and split.

    Inputs need not fit into memory: arrays may be memory-mapped, as of `np.load(path,
    mmap_mode="r")`, and of the inputs only a client's are read, in a copy; the kernel is told not
    to read ahead of them. But inputs of floats are read once when the data set is made, to find out
    that they are finite; labels, and the rows of clients, are read then in any case.

    Attributes:
        x: `[n, ...]` inputs as they are stored.
        y: int32 `[n]` class labels.
        num_classes: Number of classes.
        partition: Who owns which rows.
        name: The name of the data set, for titles and reports.
    """

    def __init__(
        self,
        x: np.ndarray,
        y: np.ndarray,
        num_classes: int,
        partition: Partition,
        name: str = "custom",
    ):
        """Checks the arrays and the partition.

        Raises:
            ExamplesError: See `check_examples`.
            PartitionError: A row of the partition does not exist, or is used twice.
        """
        check_examples(x, y, num_classes, name)
        self._hold(x, y, num_classes, partition, name)

    @classmethod
    def _of_checked(cls, x, y, num_classes, partition, name) -> "FederatedDataset":
        """That of arrays that were checked, which may take a while to read."""
        dataset = cls.__new__(cls)
        dataset._hold(x, y, num_classes, partition, name)
        return dataset

    def _hold(self, x, y, num_classes, partition, name):
        partition.check(len(y))
        self.x = np.asarray(x)
        _advise_random(self.x)
        self.y = np.asarray(y).astype(np.int32, copy=False)
        self.num_classes = num_classes
        self.partition = partition
        self.name = name

    @classmethod
    def from_client_arrays(
        cls,
        clients: Iterable[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]],
        num_classes: int,
        name: str = "custom",
    ) -> "FederatedDataset":
        """A data set from `(x_train, y_train, x_test, y_test)` of each client.

        Raises:
            ExamplesError: See `check_examples`; or inputs differ in shape or data type.
        """
        clients = list(clients)
        for i, arrays in enumerate(clients):
            is_sequence = isinstance(arrays, tuple | list)
            if not is_sequence or len(arrays) != 4:
                found = f"{len(arrays)} values" if is_sequence else type(arrays).__name__
                raise ExamplesError(
                    f"client {i} must be (x_train, y_train, x_test, y_test), found {found}. "
                    "Validation examples are a matter of the partition: FederatedDataset(x, y, "
                    "num_classes, Partition(train, validation, test))."
                )
        pairs = [pair for c in clients for pair in ((c[0], c[1]), (c[2], c[3]))]
        # Masks stay, to be refused.
        pairs = [
            (np.asanyarray(x), np.asanyarray(y, None if np.size(y) else np.int32)) for x, y in pairs
        ]
        if not pairs:
            raise ExamplesError("There are no clients: pass at least one tuple of arrays.")
        is_list = [x.shape == (0,) for x, _ in pairs]  # which is of the inputs that others have
        known = is_list.index(False) if False in is_list else 0
        first = pairs[known][0]
        pairs = [
            (np.empty((0, *first.shape[1:]), first.dtype) if empty else x, y)
            for empty, (x, y) in zip(is_list, pairs, strict=True)
        ]
        for i, (x, y) in enumerate(pairs):
            where = f"client {i // 2}, {'test' if i % 2 else 'train'}"
            check_examples(x, y, num_classes, where)
            if (x.shape[1:], x.dtype) != (first.shape[1:], first.dtype):
                raise ExamplesError(
                    f"{where}: inputs are {x.dtype} of shape {x.shape[1:]}, those of client "
                    f"{known // 2} {first.dtype} of shape {first.shape[1:]}. All clients need the "
                    "same."
                )
        sizes = [len(y) for _, y in pairs]
        rows = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
        none = tuple(np.empty(0, np.int64) for _ in clients)
        partition = Partition(tuple(rows[0::2]), none, tuple(rows[1::2]))
        xs, ys = zip(*pairs, strict=True)
        labels = np.concatenate(ys, dtype=np.int32, casting="unsafe")  # they were checked
        return cls(np.concatenate(xs), labels, num_classes, partition, name)

    @property
    def num_clients(self) -> int:
        return self.partition.num_clients

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Shape of one input, `(height, width, channels)` for images."""
        return self.x.shape[1:]

    @property
    def x_dtype(self) -> np.dtype:
        return self.x.dtype

    @functools.cached_property
    def fingerprint(self) -> str:
        """16 hex digits of the inputs' shape and type, the labels, and who owns which rows."""
        about = f"{self.x.shape} {self.x.dtype.str} {self.num_classes}"
        parts = self.partition.flat().values()
        return digest(np.frombuffer(about.encode(), np.uint8), self.y, *parts)

    @functools.cached_property
    def inputs_fingerprint(self) -> str:
        """16 hex digits of some inputs, which tell those that were prepared in another way.

        They are those of 256 rows from the first to the last, so that it takes no longer for data
        that do not fit in memory. Other inputs of single rows it may not see.
        """
        rows = np.linspace(0, max(len(self.x) - 1, 0), min(len(self.x), _FINGERPRINTED))
        return digest(self.x[rows.astype(np.int64)])

    def sizes(self, split: str = "train") -> np.ndarray:
        """int64 `[N]`, the number of examples of each client."""
        return self._rows(split).sizes

    def class_counts(self, split: str = "train") -> np.ndarray:
        """int64 `[N, C]`, the number of examples of each client in each class."""
        return partitioners.class_counts(self.y, self._rows(split), self.num_classes)

    def examples(self, client_id: int, split: str = "train") -> Examples:
        """The examples of one client, without padding; `x` as stored, `y` int32, `size` int32.

        Raises:
            IndexError: There is no such client.
            ValueError: There is no such split.
        """
        if not 0 <= client_id < self.num_clients:
            raise IndexError(
                f"Client {client_id} does not exist: ids are 0..{self.num_clients - 1}."
            )
        rows = self._rows(split)[client_id]
        return Examples(self.x[rows], self.y[rows], np.int32(len(rows)))

    def of(self, client_ids: Sequence[int], **metadata: Any) -> "FederatedDataset":
        """The data of some of the clients, by their `Partition.of`; nothing is copied."""
        partition = self.partition.of(client_ids, **metadata)
        return self._of_checked(self.x, self.y, self.num_classes, partition, self.name)

    def _rows(self, split):
        check_names("split", [split], SPLITS)
        return getattr(self.partition, split)


@takes(
    num_clients=whole(1),
    fractions=partitioners.FRACTIONS,
    num_validation=whole(0),
    imbalance=at_least(1),
    seed=whole(0),
)
def federate(
    images: LabelledImages,
    *,
    num_clients: int | None = None,
    partitioner: str,
    partition_args: Mapping[str, Any] | None = None,
    merge: bool = True,
    fractions: tuple[float, float, float] | None = None,
    num_validation: int = 0,
    imbalance: float = 1.0,
    imbalanced_test: bool = True,
    seed: int,
) -> FederatedDataset:
    """Spreads a data set over clients; realises the protocols of the papers.

    With `merge`, the training and test splits are pooled, the pool is partitioned, and each
    client's examples are shuffled and cut by `fractions` (FedPG: in the original ratio of train
    to test; PGFed: 75 % to 25 %). Without, the training split is partitioned, and the test split
    is distributed in the same way, class by class, as is a validation split of `num_validation`
    examples cut off the training split first (pFedMB: 40,000 / 10,000 / 10,000 of CIFAR-10).
    With natural clients each keeps its own rows of every split.

    With an `imbalance`, all of that is done with what is left of the data set when its classes have
    been made long-tailed; see `long_tailed_sizes`.

    Args:
        images: The data set.
        num_clients: N; `None` for natural clients, whose number the data set knows.
        partitioner: One of `PARTITIONERS`: `"dirichlet"`, `"classes_per_client"`, `"iid"`,
            `"natural"`, and what users register.
        partition_args: Those of the partitioner's options that are not to have their defaults,
            e.g. `{"alpha": 0.1}`.
        merge: Whether to pool the original splits.
        fractions: With `merge`: relative sizes of a client's (train, validation, test) parts;
            by default those of the original split, without validation.
        num_validation: Without `merge`: size of the validation split.
        imbalance: How many times the examples of the last class the first class has, in the
            training split, or with `merge` in the pool. 1: classes are as they are.
        imbalanced_test: Whether the test split is made long-tailed likewise, by a draw of its own,
            so that clients are tested on classes as frequent as those they train on. Otherwise it
            is left whole, which takes `merge=False`.
        seed: Non-negative; the same seed gives the same partition.

    Raises:
        ValueError: Unknown partitioner; arguments that it does not have, misses, or that do not
            go together.
        ExamplesError: See `checked_images`.
        PartitionError: The partition cannot be made.
    """
    args = dict(partition_args or {})
    images = checked_images(images, takes_original_split=not merge or fractions is None)
    _check_request(images, num_clients, partitioner, args, merge, fractions, num_validation)
    if merge and imbalance > 1 and not imbalanced_test:
        raise ValueError(
            f"imbalanced_test=False with imbalance={imbalance:g} and merge=True: there, a client's "
            "test examples are cut from the same pool as those it trains on. Set merge=False, "
            "which leaves the original test split whole."
        )
    if partitioner == "natural":
        num_clients = int(images.writer.max()) + 1
    spec = {
        "num_clients": num_clients,
        "partitioner": partitioner,
        "partition_args": args,
        "merge": merge,
        "fractions": fractions,
        "num_validation": num_validation,
        "imbalance": imbalance,
        "imbalanced_test": imbalanced_test,
        "seed": seed,
    }

    def rng(*stage):
        return np.random.default_rng([seed, *stage])

    def thinned(rows, stage):
        if imbalance == 1:
            return rows
        return rows[long_tailed(images.y[rows], imbalance, rng(stage))]

    def distribute(rows):
        if partitioner == "natural":
            parts = partitioners.natural(images.writer[rows], num_clients)
        else:

            def deal():
                parts = PARTITIONERS[partitioner](images.y[rows], num_clients, rng(1), **args)
                return _checked_parts(parts, partitioner, num_clients, len(rows))

            parts, drawn = made_of_shared_draws(deal, lambda parts: [*map(bytes, parts)])
            if drawn:
                raise PartitionError(
                    f"The partitioner {partitioner!r} draws from NumPy's, or Python's, own "
                    "generator: no run could be repeated, resumed or evaluated. Take the generator "
                    "that it is given, `rng`."
                )
        return [rows[part] for part in parts]

    def follow(rows, train, stage):
        if partitioner == "natural":
            return distribute(rows)
        parts = partitioners.by_reference(images.y[rows], images.y, train, rng(stage))
        return [rows[part] for part in parts]

    everything = np.arange(len(images.y))
    if merge:
        original = (images.num_train, 0, len(images.y) - images.num_train)
        ratio = original if fractions is None else fractions
        parts = distribute(thinned(everything, 6))
        cut = [partitioners.split(part, ratio, rng(2, i)) for i, part in enumerate(parts)]
        splits = zip(*cut, strict=True)
    else:
        pool, test = np.split(everything, [images.num_train])
        pool = thinned(pool, 6)
        if imbalanced_test:
            test = thinned(test, 7)
        if num_validation >= max(len(pool), 1):
            raise PartitionError(
                f"num_validation={num_validation} of {len(pool)} examples that imbalance="
                f"{imbalance:g} leaves of the training split: none are left to train on."
            )
        if num_validation:
            pool = rng(3).permutation(pool)
        validation, pool = np.split(pool, [num_validation])
        train = distribute(pool)
        splits = train, follow(validation, train, 4), follow(test, train, 5)
    metadata = {"dataset": images.name, "labels": label_digest(images.y), "spec": spec}
    partition = Partition(*map(tuple, splits), metadata)
    return FederatedDataset._of_checked(
        images.x, images.y, images.num_classes, partition, images.name
    )


def _checked_parts(parts, partitioner, num_clients, num_rows) -> ClientRows:
    """What a partitioner, perhaps of a user's own, made of so many rows."""
    if not isinstance(parts, Iterable):
        raise PartitionError(
            f"Partitioner {partitioner!r} must return the rows of each client, got {parts!r:.80}."
        )
    parts = list(parts)
    if len(parts) != num_clients:
        raise PartitionError(
            f"Partitioner {partitioner!r} made {len(parts)} clients, not {num_clients}."
        )
    parts = ClientRows.of(parts)
    if not parts.are_within(num_rows):
        raise PartitionError(
            f"Partitioner {partitioner!r} made rows {parts.rows.min()}..{parts.rows.max()}, which "
            f"are not all within 0..{num_rows - 1}."
        )
    return parts


def _advise_random(array: np.ndarray) -> None:
    """Tells the kernel that a memory-mapped array is read here and there.

    What it reads ahead, megabytes for each client, would take much longer than what is read.
    """
    while isinstance(array, np.ndarray):
        array = array.base
    if isinstance(array, mmap.mmap):
        array.madvise(mmap.MADV_RANDOM)


def _check_request(images, num_clients, partitioner, args, merge, fractions, num_validation):
    """The errors of `federate` that concern its arguments alone."""
    own = PARTITIONERS.parameters(partitioner)
    check_names(f"option of partitioner {partitioner!r}", args, own)
    missing = [n for n, p in own.items() if p.default is p.empty and n not in args]
    if missing:
        raise ValueError(f"Partitioner {partitioner!r} needs partition_args for {missing}.")
    if partitioner == "natural":
        if images.writer is None:
            raise ValueError(f"Data set {images.name!r} has no natural clients (writer is None).")
        if num_clients is not None:
            raise ValueError("Natural clients have their own number: leave num_clients None.")
    elif num_clients is None:
        raise ValueError(f"Partitioner {partitioner!r} needs num_clients.")
    if merge and num_validation:
        raise ValueError("With merge=True validation is a part of fractions, not num_validation.")
    if not merge and fractions is not None:
        raise ValueError("With merge=False the splits are the original ones: fractions is unused.")
    if not 0 <= num_validation < max(images.num_train, 1):
        raise ValueError(
            f"num_validation must be within 0..{images.num_train - 1}, the training split less "
            f"one; got {num_validation}."
        )
