"""Spreads a data set over clients, by the protocols of the papers.

For example, makes the clients of FedPG's Table 1:

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

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import tree

from tff_pfl.arguments.names import check_names
from tff_pfl.arguments.ranges import at_least, takes, whole
from tff_pfl.arguments.recipes import Recipe, remember
from tff_pfl.data import partition as partitioners
from tff_pfl.data.client_rows import ClientRows
from tff_pfl.data.data_frames import FRACTIONS
from tff_pfl.data.federated_dataset import FederatedDataset
from tff_pfl.data.imbalance import long_tailed
from tff_pfl.data.labelled_images import LabelledImages, checked_images, without_splits
from tff_pfl.data.partition import PARTITIONERS, PartitionError
from tff_pfl.data.partition_file import Partition, label_digest
from tff_pfl.tracing.generators import uses_global_randomness


@takes(
    num_clients=whole(1),
    fractions=partitioners.FRACTIONS,
    num_validation=whole(0),
    imbalance=at_least(1),
    seed=whole(0),
)
def federate(
    images: LabelledImages | tuple[Any, Any],
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
    """Spreads a data set over clients, by the protocols of the papers.

    With `merge`, the training and test splits are pooled, the pool is partitioned, and each
    client's examples are shuffled and cut by `fractions` (FedPG: in the original ratio of train
    to test; PGFed: 75 % to 25 %).

    Without `merge`, a validation split of `num_validation` examples is cut off the training split,
    and the rest is partitioned. The validation and test splits are then distributed in the same
    proportions, class by class (pFedMB: 40,000 / 10,000 / 10,000 of CIFAR-10). Natural clients keep
    their own rows of every split instead.

    With an `imbalance`, the classes of the data set are made long-tailed first; see
    `long_tailed_sizes`.

    Example:
        >>> images = tff_pfl.load("digits")
        >>> dataset = tff_pfl.federate(images, num_clients=20, partitioner="iid", seed=1)
        >>> dataset.num_clients, int(dataset.sizes("train").sum())
        (20, 1437)
        >>> x, y = np.random.default_rng(0).normal(size=[90, 4]), np.arange(90) % 3
        >>> dataset = tff_pfl.federate((x, y), num_clients=5, partitioner="dirichlet", seed=1)

    Args:
        images: The data set; or `(x, y)`, inputs and labels without splits: arrays, or a data frame
            of pandas and a column, or its name in the frame. Labels that are whole numbers, text or
            categories are classes.
        num_clients: N; `None` for natural clients, whose number follows from the data set.
        partitioner: A name in `PARTITIONERS`: `"dirichlet"`, `"classes_per_client"`, `"iid"`,
            `"natural"`, or a partitioner that you registered.
        partition_args: The partitioner's options, such as `{"alpha": 0.1}`; missing options have
            their defaults.
        merge: Whether to pool the original splits.
        fractions: With `merge`, the relative sizes of a client's (train, validation, test) parts.
            By default the ratio of the original splits, without validation; without such splits
            (0.8, 0, 0.2).
        num_validation: Without `merge`, the size of the validation split.
        imbalance: The number of examples of the first class divided by the number of the last, in
            the training split, or with `merge` in the pool. With 1, classes stay as they are.
        imbalanced_test: Whether the test split is made long-tailed too, by a separate draw, so that
            classes are equally frequent in training and test. Otherwise it is left whole, which
            requires `merge=False`.
        seed: A non-negative integer; the same seed gives the same partition.

    Raises:
        ValueError: The partitioner is unknown, its options are unknown or missing, or arguments
            contradict each other.
        ExamplesError: See `checked_images`.
        PartitionError: The partition cannot be made.
    """
    args, names = dict(partition_args or {}), None
    if isinstance(images, tuple) and len(images) == 2:
        images, names = without_splits(*images)
        fractions = fractions or (FRACTIONS if merge else None)
    images = checked_images(images, takes_original_split=not merge or fractions is None)
    number = _checked_num_clients(images, partitioner, args, num_clients)
    spec = {
        "num_clients": number,
        "partitioner": partitioner,
        "partition_args": args,
        "merge": merge,
        "fractions": fractions,
        "num_validation": num_validation,
        "imbalance": imbalance,
        "imbalanced_test": imbalanced_test,
        "seed": seed,
    }
    _check_splits(merge, fractions, num_validation, imbalance, imbalanced_test)
    if imbalance > 1 and images.num_classes is None:
        raise ValueError(
            f"imbalance={imbalance:g} makes classes long-tailed, but {images.name!r} has no class "
            "labels: its num_classes is None. Set imbalance=1."
        )
    draw = _Draw(images, partitioner, args, number, imbalance, seed)
    if merge:
        splits = draw.merged(fractions)
    else:
        splits = draw.original_splits(num_validation, imbalanced_test)
    metadata = {"dataset": images.name, "labels": label_digest(images.y), "spec": spec}
    partition = Partition(*map(tuple, splits), metadata=metadata)
    dataset = FederatedDataset._of_checked(
        images.x, images.y, images.num_classes, partition, images.name, names
    )
    remember(dataset, Recipe("data", images.name, spec, __name__))
    return dataset


@dataclasses.dataclass(frozen=True)
class _Draw:
    """A random partition; see `federate`. Its methods return the rows of each client."""

    images: LabelledImages
    partitioner: str
    args: Mapping[str, Any]
    num_clients: int
    imbalance: float
    seed: int

    @property
    def num_rows(self):
        """The number of examples."""
        return len(tree.flatten(self.images.x)[0])

    @property
    def classes(self):
        """The class of each example; without class labels, all examples are of one class."""
        if self.images.num_classes is None:
            return np.zeros(self.num_rows, np.int32)
        return self.images.y

    def merged(self, fractions):
        """Partitions the pool of all examples, and cuts each client's part into splits."""
        num_rows, num_train = self.num_rows, self.images.num_train
        ratio = (num_train, 0, num_rows - num_train) if fractions is None else fractions
        parts = self._distributed(self._thinned(np.arange(num_rows), 6))
        cut = [partitioners.split(part, ratio, self._rng(2, i)) for i, part in enumerate(parts)]
        return zip(*cut, strict=True)

    def original_splits(self, num_validation, imbalanced_test):
        """Partitions the training split, and distributes the other splits in proportion to it."""
        pool, test = np.split(np.arange(self.num_rows), [self.images.num_train])
        pool = self._thinned(pool, 6)
        if imbalanced_test:
            test = self._thinned(test, 7)
        if num_validation >= max(len(pool), 1):
            raise PartitionError(
                f"num_validation={num_validation} must be fewer than the {len(pool)} examples that "
                f"the training split has with imbalance={self.imbalance:g}."
            )
        if num_validation:
            pool = self._rng(3).permutation(pool)
        validation, pool = np.split(pool, [num_validation])
        train = self._distributed(pool)
        return train, self._like(train, validation, 4), self._like(train, test, 5)

    def _rng(self, *stage):
        return np.random.default_rng([self.seed, *stage])

    def _thinned(self, rows, stage):
        if self.imbalance == 1:
            return rows
        return rows[long_tailed(self.classes[rows], self.imbalance, self._rng(stage))]

    def _distributed(self, rows):
        if self.partitioner == "natural":
            parts = partitioners.natural(self.images.writer[rows], self.num_clients)
            return [rows[part] for part in parts]
        deal = PARTITIONERS[self.partitioner]

        def dealt():
            labels = tree.map_structure(lambda array: array[rows], self.images.y)
            parts = deal(labels, self.num_clients, self._rng(1), **self.args)
            return self._checked_parts(parts, len(rows))

        parts, drawn = uses_global_randomness(dealt, lambda parts: [*map(bytes, parts)])
        if drawn:
            raise PartitionError(
                f"The partitioner {self.partitioner!r} draws from NumPy's, or Python's, global "
                "generator, so that no run could be repeated, resumed or evaluated. Draw from the "
                "generator that is passed in, `rng`."
            )
        return [rows[part] for part in parts]

    def _checked_parts(self, parts, num_rows) -> ClientRows:
        """Checks the result of a partitioner for `num_rows` rows; it may be a user's function."""
        if parts is None:  # a user's function without `return`
            raise PartitionError(
                f"The partitioner {self.partitioner!r} must return the rows of each client, got "
                "None."
            )
        parts = ClientRows.of(parts)
        if len(parts) != self.num_clients or not parts.are_within(num_rows):
            raise PartitionError(
                f"The partitioner {self.partitioner!r} must give {self.num_clients} clients rows "
                f"within 0..{num_rows - 1}, but gave {len(parts)} clients rows within "
                f"{parts.rows.min(initial=0)}..{parts.rows.max(initial=0)}."
            )
        return parts

    def _like(self, train, rows, stage):
        """Distributes rows over clients in the proportions of `train`."""
        if self.partitioner == "natural":
            return self._distributed(rows)
        classes = self.classes
        parts = partitioners.by_reference(classes[rows], classes, train, self._rng(stage))
        return [rows[part] for part in parts]


def _checked_num_clients(images, partitioner, args, num_clients) -> int:
    """Checks the options of a partitioner, and returns the number of clients."""
    own = PARTITIONERS.parameters(partitioner)
    check_names(f"option of partitioner {partitioner!r}", args, own)
    missing = [n for n, p in own.items() if p.default is p.empty and n not in args]
    if missing:
        raise ValueError(f"Partitioner {partitioner!r} needs partition_args for {missing}.")
    is_natural = partitioner == "natural"
    if partitioner in partitioners.OF_CLASSES and images.num_classes is None:
        raise ValueError(
            f"Partitioner {partitioner!r} deals out classes, but {images.name!r} has no class "
            "labels: its num_classes is None. Choose 'iid', or 'natural' with natural clients."
        )
    if is_natural and images.writer is None:
        raise ValueError(f"Data set {images.name!r} has no natural clients: its writer is None.")
    if is_natural != (num_clients is None):
        raise ValueError(
            "The number of natural clients follows from the data set: leave num_clients None."
            if is_natural
            else f"Partitioner {partitioner!r} needs num_clients."
        )
    return int(images.writer.max()) + 1 if is_natural else num_clients


def _check_splits(merge, fractions, num_validation, imbalance, imbalanced_test):
    """Checks that the options of splits do not contradict each other."""
    if merge and num_validation:
        raise ValueError("num_validation has no effect with merge=True: set fractions instead.")
    if not merge and fractions is not None:
        raise ValueError("fractions has no effect with merge=False, which keeps original splits.")
    if merge and imbalance > 1 and not imbalanced_test:
        raise ValueError(
            f"imbalanced_test=False is impossible with imbalance={imbalance:g} and merge=True, "
            "where a client's training and test examples are cut from one pool. Set merge=False, "
            "which leaves the original test split whole."
        )
