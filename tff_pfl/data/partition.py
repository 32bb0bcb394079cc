"""Partitioners, which assign the rows of a data set to clients, in pure NumPy.

A partitioner, `(labels, num_clients, rng, *, <options>) -> rows`, takes the labels of a pool, which
are classes for most partitioners, and returns one int64 array of row numbers per client. The arrays
are disjoint and together hold every row of the pool. The order of rows within an array has no
meaning. All randomness comes from `rng`. `PARTITIONERS` has the partitioners by name. Only
`natural` has a different first argument.
"""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import tree

from tff_pfl.arguments.names import check_names
from tff_pfl.arguments.ranges import Range, at_least, each, takes, whole
from tff_pfl.arguments.registry import Registry

PARTITIONERS = Registry("partitioner", "labels", "num_clients", "rng")

OF_CLASSES = ("dirichlet", "classes_per_client")
"""The partitioners that deal out classes; others take labels of any structure."""


class PartitionError(ValueError):
    """An error for a partition that cannot be made; the message says what to change."""


@PARTITIONERS.register("dirichlet")
@takes(
    PartitionError,
    num_clients=whole(1),
    alpha=at_least(1e-6),  # gives each class to one client; smaller values take seconds a draw
    min_examples=whole(0),
    max_seconds=at_least(0),
)
def dirichlet(
    labels: np.ndarray,
    num_clients: int,
    rng: np.random.Generator,
    *,
    alpha: float = 0.3,
    min_examples: int = 10,
    max_seconds: float = 10.0,
) -> list[np.ndarray]:
    """Splits every class in proportions drawn from a Dirichlet distribution.

    For each class: draw proportions p ~ Dirichlet(alpha * 1_N), set the proportions of clients
    that already own n/N examples or more to zero, renormalise, and cut the shuffled class at the
    cumulative proportions. The whole draw is repeated until every client has `min_examples`.
    FedPG's experiments use this procedure with alpha 0.1 and a minimum of one example per class of
    the data set, PGFed's with alpha 0.3 and a minimum of 40.

    Args:
        labels: int `[n]` class labels of the pool.
        num_clients: N.
        rng: Source of all randomness.
        alpha: Concentration, 1e-6 or more. Small values give each client few classes, large
            values come close to IID.
        min_examples: The fewest examples a client may have.
        max_seconds: The time after which no new draw is made, in seconds.

    Returns:
        N int64 arrays of row numbers.

    Raises:
        PartitionError: A number is out of range, `min_examples` is more than n/N, or no draw
            reached it in time.
    """
    labels = _checked(labels)
    if min_examples * num_clients > len(labels):
        raise PartitionError(
            f"min_examples={min_examples} for {num_clients} clients takes "
            f"{min_examples * num_clients} examples, the pool has {len(labels)}. Lower "
            f"min_examples to at most {len(labels) // num_clients}, or lower num_clients."
        )
    classes, class_sizes = np.unique(labels, return_counts=True)
    best, draws = -1, 0
    deadline = time.monotonic() + max_seconds
    while not draws or time.monotonic() < deadline:
        draws += 1
        # Redraws are cheap: only counts are drawn again, and rows are shuffled once at the end.
        cuts = _dirichlet_cuts(class_sizes, num_clients, alpha, rng)
        if cuts is None:
            continue
        smallest = int(np.diff(cuts, axis=1, prepend=0).sum(axis=0).min())
        if smallest >= min_examples:
            return _cut_classes(labels, classes, cuts, rng)
        best = max(best, smallest)
    found = f"the best draw had {best}" if best >= 0 else "no draw could be completed"
    raise PartitionError(
        f"None of {draws} draws of Dirichlet({alpha}) in {max_seconds:g} s gave each of "
        f"{num_clients} clients {min_examples} of {len(labels)} examples; {found}. Lower "
        "min_examples or num_clients, or raise alpha."
    )


@PARTITIONERS.register("classes_per_client")
@takes(PartitionError, num_clients=whole(1), classes=whole(1))
def classes_per_client(
    labels: np.ndarray,
    num_clients: int,
    rng: np.random.Generator,
    *,
    classes: int = 2,
    assignment: str = "ordered",
    amounts: str = "equal",
) -> list[np.ndarray]:
    """Gives every client examples of exactly `classes` classes ("Pat-k", k labels per client).

    Each of the C classes goes to N*k/C clients, rounded up or down. FedPG (Pat-2, ordered), PLGU
    (3 or 10 labels) and pFedMB (2 random classes) use this partition. The pairs of clients of
    pFedMB's toy study are N = C = 10, k = 2, ordered.

    Args:
        labels: int `[n]` class labels of the pool.
        num_clients: N.
        rng: Source of all randomness.
        classes: k, the number of classes of a client.
        assignment: With `"ordered"`, class after class goes to the lowest client ids that have
            slots left: for N = 100, k = 2, C = 10, clients 0..19 hold classes 0 and 1. With
            `"random"`, each client's classes are a random subset.
        amounts: With `"equal"`, the clients of a class have equally many of its examples, up to
            one. With `"unequal"`, each of them draws an amount between a tenth of the equal amount
            and the equal amount, except the client of the highest id, which has the rest. The
            generator of FedPG's authors has both.

    Returns:
        N int64 arrays of row numbers.

    Raises:
        PartitionError: k is not within 1..C, N*k < C leaves a class without a client, a class
            has fewer examples than clients, or `assignment` or `amounts` is unknown.
    """
    labels = _checked(labels)
    names, class_sizes = np.unique(labels, return_counts=True)
    num_classes = len(names)
    check_names("assignment", [assignment], ("ordered", "random"), error=PartitionError)
    check_names("amounts", [amounts], ("equal", "unequal"), error=PartitionError)
    if classes > num_classes:
        raise PartitionError(
            f"A client cannot hold {classes} classes: the labels have {num_classes}, so classes "
            f"must be within 1..{num_classes}."
        )
    if num_clients * classes < num_classes:
        raise PartitionError(
            f"{num_clients} clients with {classes} classes each leave some of the {num_classes} "
            f"classes without a client: num_clients * classes must be at least {num_classes}."
        )
    owners = _assign_classes(
        num_clients, num_classes, classes, rng if assignment == "random" else None
    )
    num_owners = owners.sum(axis=1)
    if (class_sizes < num_owners).any():
        short = int(np.flatnonzero(class_sizes < num_owners)[0])
        raise PartitionError(
            f"Class {names[short]} has {class_sizes[short]} examples for {num_owners[short]} "
            "clients. Lower num_clients or classes."
        )
    if amounts == "unequal":
        cuts = _unequal_cuts(owners, class_sizes, rng)
    else:  # owner j of the m owners of a class of s examples gets rows j*s/m to (j+1)*s/m
        cuts = np.cumsum(owners, axis=1) * class_sizes[:, None] // num_owners[:, None]
    return _cut_classes(labels, names, cuts, rng)


@PARTITIONERS.register("iid")
@takes(PartitionError, num_clients=whole(1))
def iid(labels: Any, num_clients: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Shuffles all rows and deals them out in N parts whose sizes differ by one at most."""
    return np.array_split(rng.permutation(len(tree.flatten(labels)[0])), num_clients)


@PARTITIONERS.register("natural")
def natural(
    writer: np.ndarray, num_clients: int | None = None, rng: np.random.Generator | None = None
) -> list[np.ndarray]:
    """Groups rows by their natural clients.

    Args:
        writer: int `[n]`, the client of each row, 0..N-1.
        num_clients: N; needed if the last clients may have no row in this pool. By default the
            highest client plus one.
        rng: Unused; nothing is random.

    Returns:
        N int64 arrays of row numbers, each in ascending order.
    """
    sizes = np.bincount(writer, minlength=num_clients or 0)
    return np.split(np.argsort(writer, kind="stable"), np.cumsum(sizes)[:-1])


def by_reference(
    labels: np.ndarray,
    reference_labels: np.ndarray,
    reference: Sequence[np.ndarray],
    rng: np.random.Generator,
) -> list[np.ndarray]:
    """Distributes another pool, such as the test split, in the proportions of a given partition.

    For each class: shuffle its rows, and cut them at the cumulative shares of the class that the
    clients have in the reference, rounded. pFedMB distributes its three splits "in the same way".

    Args:
        labels: int `[n]` class labels of the pool to distribute.
        reference_labels: int `[m]` class labels of the pool that is already distributed.
        reference: N arrays of row numbers into `reference_labels`.
        rng: Source of all randomness.

    Returns:
        N int64 arrays of row numbers into `labels`.

    Raises:
        PartitionError: A class of the pool has no example in the reference.
    """
    labels = np.asarray(labels)
    classes, class_sizes = np.unique(labels, return_counts=True)
    num_classes = max(np.max(reference_labels, initial=-1), np.max(labels, initial=-1)) + 1
    counts = class_counts(reference_labels, reference, num_classes)[:, classes]
    shares = np.cumsum(counts.T, axis=1)
    totals = shares[:, -1:]
    if (totals == 0).any():
        lost = classes[np.flatnonzero(totals == 0)[0]]
        raise PartitionError(
            f"Class {lost} is in the pool to distribute, but no client has it in the reference "
            "partition. Both pools must have the same classes."
        )
    # Rounding uses integers, since floats would sometimes put a row on the wrong side of a cut.
    cuts = (2 * shares * class_sizes[:, None] + totals) // (2 * totals)
    return _cut_classes(labels, classes, cuts, rng)


FRACTIONS = Range(
    "(train, validation, test), finite numbers >= 0 with train > 0, such as (5, 0, 1)",
    lambda values: each(at_least(0)).contains(values) and len(values) == 3 and values[0] > 0,
)
"""The relative sizes of the parts into which a client's examples are cut."""


@takes(PartitionError, fractions=FRACTIONS)
def split(
    indices: np.ndarray, fractions: Sequence[float], rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Shuffles a client's rows and cuts them into train, validation and test.

    Args:
        indices: int `[n]`, the rows of one client.
        fractions: Sizes of (train, validation, test) relative to each other: `(5, 0, 1)` and
            `(5/6, 0, 1/6)` are the same. Sizes are rounded to whole examples. Train has at least
            one example, and so has test if its fraction is positive and n >= 2.
        rng: Source of all randomness.

    Returns:
        The three parts. Every row is in exactly one of them.

    Raises:
        PartitionError: `fractions` are not three finite numbers >= 0, the first of them positive.
    """
    weights = np.asarray(fractions, np.float64)
    _, validation, test = np.rint(len(indices) * weights / weights.sum()).astype(int)
    spare = max(len(indices) - 1, 0)  # one example stays in train
    test = min(max(test, int(weights[2] > 0)), spare)
    validation = min(validation, spare - test)
    train = len(indices) - validation - test
    parts = np.split(rng.permutation(indices), [train, train + validation])
    return parts[0], parts[1], parts[2]


def class_counts(labels: np.ndarray, parts: Sequence[np.ndarray], num_classes: int) -> np.ndarray:
    """Returns int64 `[N, num_classes]`, the number of examples of each client in each class."""
    return np.stack([np.bincount(labels[part], minlength=num_classes) for part in parts])


def _checked(labels):
    """Returns `labels` as an array of integers."""
    labels = np.asarray(labels)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise PartitionError(
            f"labels must be integers of shape [n], got {labels.dtype} of shape {labels.shape}."
        )
    return labels


def _dirichlet_cuts(class_sizes, num_clients, alpha, rng):
    """Draws int64 `[C, N]` cumulative counts; returns `None` if only full clients got a share."""
    full = class_sizes.sum() / num_clients
    owned = np.zeros(num_clients, np.int64)
    cuts = np.empty((len(class_sizes), num_clients), np.int64)
    draws = rng.dirichlet(np.full(num_clients, alpha), size=len(class_sizes))
    for row, size, proportions in zip(cuts, class_sizes, draws, strict=True):
        cumulative = np.cumsum(np.where(owned < full, proportions, 0.0))
        if not cumulative[-1] > 0:
            return None
        row[:] = cumulative / cumulative[-1] * size
        owned += np.diff(row, prepend=0)
    return cuts


def _assign_classes(num_clients, num_classes, classes, rng):
    """Returns bool `[C, N]`, the owners of each class; each client owns `classes` classes.

    Class after class takes as many clients as its share of the slots. A client that has as many
    free slots as there are classes left must be taken now, or it would end up short. This rule
    always finds an assignment, since shares differ by one at most and larger shares come first.
    """
    shares = np.full(num_classes, num_clients * classes // num_classes)
    shares[: num_clients * classes % num_classes] += 1
    order = np.arange(num_classes) if rng is None else rng.permutation(num_classes)
    owners = np.zeros((num_classes, num_clients), bool)
    free = np.full(num_clients, classes)
    for position, (label, share) in enumerate(zip(order, shares, strict=True)):
        left = num_classes - position
        if rng is None:
            rank = np.where(free == left, -1.0, np.arange(num_clients))
        else:
            # A random subset of `free` of the `left` classes contains this class with odds
            # free : left - free. The clients with the smallest exponential times are taken.
            rank = rng.exponential(size=num_clients) * (left - free) / np.maximum(free, 1)
        rank[free == 0] = np.inf
        taken = np.argsort(rank, kind="stable")[:share]
        owners[label, taken] = True
        free[taken] -= 1
    return owners


def _unequal_cuts(owners, class_sizes, rng):
    """Draws int64 `[C, N]` cumulative counts."""
    counts = np.zeros(owners.shape, np.int64)
    for row, of_class, size in zip(counts, owners, class_sizes, strict=True):
        *others, last = np.flatnonzero(of_class)
        equal = size // (len(others) + 1)
        fewest = max(equal // 10, 1)
        row[others] = rng.integers(fewest, max(equal, fewest + 1), len(others))
        row[last] = size - row.sum()
    return np.cumsum(counts, axis=1)


def _cut_classes(labels, classes, cuts, rng):
    """Shuffles the rows of each class and cuts them at the cumulative counts `[C, N]`."""
    parts = [[np.empty(0, np.int64)] * cuts.shape[1]]  # for empty pools
    for label, row in zip(classes, cuts, strict=True):
        parts.append(np.split(rng.permutation(np.flatnonzero(labels == label)), row[:-1]))
    return [np.concatenate(client) for client in zip(*parts, strict=True)]
