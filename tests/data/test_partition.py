"""Tests partitioners: their invariants, golden values computed with NumPy, and every error."""

import functools
import time

import numpy as np
import pytest

from tests.marks import together
from tff_pfl.data import partition
from tff_pfl.data.partition import PartitionError

LABELS = np.arange(1000) % 10


def rng(seed=0):
    return np.random.default_rng(seed)


def assert_partition(parts, num_examples):
    """Asserts that the parts are disjoint, complete and int64."""
    assert all(part.dtype == np.int64 for part in parts)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(num_examples))


def counts(parts, labels=LABELS):
    return partition.class_counts(labels, parts, labels.max() + 1)


def make_dirichlet(labels=LABELS, num_clients=20, seed=0):
    return partition.dirichlet(labels, num_clients, rng(seed), alpha=0.3, min_examples=10)


def make_of_classes(classes=2, num_clients=20, seed=0, **options):
    return partition.classes_per_client(LABELS, num_clients, rng(seed), classes=classes, **options)


@together(
    "make",
    [
        make_dirichlet,
        make_of_classes,
        functools.partial(make_of_classes, assignment="random"),
        lambda seed: partition.iid(LABELS, 20, rng(seed)),
    ],
)
def test_seed_determines_the_partition(make):
    first, again, other = (make(seed=seed) for seed in (3, 3, 4))
    assert len(first) == 20
    assert_partition(first, 1000)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_dirichlet_equals_the_procedure_of_the_paper():
    """Compares with a textbook version that starts again until the minimum is met."""
    labels, clients, alpha = np.arange(90) % 3, 4, 0.5
    sizes = np.bincount(labels)
    generator, redraws = rng(1), -1
    table = np.zeros((3, clients))
    while table.sum(axis=0).min() < 12:
        redraws += 1
        table = np.zeros((3, clients))
        draws = generator.dirichlet([alpha] * clients, size=3)
        for c in range(3):
            p = draws[c] * (table.sum(axis=0) < 90 / clients)
            cut = np.floor(np.cumsum(p / p.sum()) * sizes[c] + 1e-9)
            table[c] = np.diff(cut, prepend=0)
    assert redraws > 0  # otherwise the loop is not tested
    parts = partition.dirichlet(labels, clients, rng(1), alpha=alpha, min_examples=12)
    np.testing.assert_array_equal(counts(parts, labels), table.T)


@together(
    ("num_examples", "num_classes", "num_clients", "alpha", "least"),
    [
        (70_000, 10, 100, 0.1, 10),  # FedPG, Fashion-MNIST
        (60_000, 100, 100, 0.1, 100),  # FedPG, CIFAR-100
        (60_000, 10, 100, 0.3, 40),  # PGFed
    ],
)
def test_dirichlet_finds_the_partitions_of_the_papers(
    num_examples, num_classes, num_clients, alpha, least
):
    labels = np.arange(num_examples) % num_classes
    parts = partition.dirichlet(labels, num_clients, rng(), alpha=alpha, min_examples=least)
    assert_partition(parts, num_examples)
    assert min(map(len, parts)) >= least


def test_dirichlet_stops_searching_in_time():
    start = time.monotonic()
    message = (
        r"None of \d+ draws of .* in 0.2 s gave .*; the best draw had \d+. "
        "Lower min_examples or num_clients, or raise"
    )
    with pytest.raises(PartitionError, match=message):
        partition.dirichlet(LABELS, 100, rng(), alpha=1e-6, min_examples=10, max_seconds=0.2)
    assert time.monotonic() - start < 2


def test_dirichlet_redraws_when_only_full_clients_have_a_share():
    class Scripted:
        """A generator that first gives one client all of class 0 and the shares of class 1."""

        def __init__(self):
            self.draws = [[[1.0, 0.0], [1.0, 0.0]], [[0.5, 0.5], [0.5, 0.5]]]

        def dirichlet(self, alpha, size):
            return np.array(self.draws.pop(0))

        def permutation(self, x):
            return x

    labels = np.array([0, 0, 1, 1])
    parts = partition.dirichlet(labels, 2, Scripted(), alpha=1.0, min_examples=1)
    np.testing.assert_array_equal(counts(parts, labels), [[1, 1], [1, 1]])
    stuck = Scripted()
    stuck.draws = stuck.draws[:1] * 3
    with pytest.raises(PartitionError, match="no draw could be completed"):
        partition.dirichlet(labels, 2, stuck, alpha=1.0, min_examples=1, max_seconds=0)


def test_classes_per_client_makes_pat_2_of_fedpg():
    labels = np.arange(6000) % 10
    parts = partition.classes_per_client(labels, 100, rng(), classes=2)
    # np.kron(np.eye(5), np.full((20, 2), 600 / 20)): clients 0..19 have classes 0 and 1, ...
    expected = np.kron(np.eye(5), np.full((20, 2), 30))
    np.testing.assert_array_equal(counts(parts, labels), expected)


def test_classes_per_client_draws_the_unequal_amounts_of_fedpg():
    """A client has 6000 / 20 = 300 on average: 30 to 299, except the last one of each class."""
    labels = np.arange(60_000) % 10
    parts = partition.classes_per_client(labels, 100, rng(), classes=2, amounts="unequal")
    assert_partition(parts, len(labels))
    table = counts(parts, labels)
    owned = np.kron(np.eye(5), np.ones((20, 2))) > 0
    assert ((table > 0) == owned).all()
    amounts = np.stack([column[column > 0] for column in table.T])
    assert ((amounts[:, :-1] >= 30) & (amounts[:, :-1] < 300)).all()
    assert np.ptp(amounts[:, :-1], axis=1).min() > 150
    assert (amounts[:, -1] > 300).all()
    assert abs(amounts[:, :-1].mean() - (30 + 299) / 2) < 20  # 190 draws of a deviation of 78


def test_unequal_amounts_give_every_client_an_example():
    labels = np.arange(20) % 2
    parts = partition.classes_per_client(labels, 9, rng(), amounts="unequal")
    assert_partition(parts, len(labels))
    assert counts(parts, labels).min() >= 1


@pytest.mark.parametrize("assignment", ["ordered", "random"])
def test_classes_per_client_always_finds_an_assignment(assignment):
    for num_clients in range(1, 10):
        for num_classes in range(1, 7):
            labels = np.arange(num_classes * 23) % num_classes
            for k in range(-(-num_classes // num_clients), num_classes + 1):
                parts = partition.classes_per_client(
                    labels, num_clients, rng(k), classes=k, assignment=assignment
                )
                assert_partition(parts, len(labels))
                table = counts(parts, labels)
                assert (np.count_nonzero(table, axis=1) == k).all()
                owners = np.count_nonzero(table, axis=0)
                assert owners.max() - owners.min() <= 1
                for column in table.T:
                    assert np.ptp(column[column > 0]) <= 1


def test_random_assignment_pairs_classes_uniformly():
    owners = [
        counts(make_of_classes(num_clients=100, seed=s, assignment="random")) for s in range(60)
    ]
    pairs = sum((table > 0).T.astype(int) @ (table > 0) for table in owners) / len(owners)
    off_diagonal = pairs[~np.eye(10, dtype=bool)]
    # 100 clients, 45 pairs of classes; a mean of 60 draws has a standard error of about 0.17.
    assert abs(off_diagonal - 100 / 45).max() < 0.6


ONE_EACH = [np.array([0]), np.array([1])]


@together(
    ("make", "message"),
    [
        (lambda: make_dirichlet(np.zeros((4, 1), int)), "must be integers of shape"),
        (lambda: make_dirichlet(np.zeros(4)), "must be integers of shape"),
        (lambda: make_dirichlet(num_clients=102), "takes 1020 examples, the pool has 1000.*most 9"),
        (lambda: make_of_classes(11), "cannot hold 11 classes: the labels have 10.*1..10"),
        (lambda: make_of_classes(num_clients=4), "some of the 10 classes without a client"),
        (lambda: make_of_classes(num_clients=600), "Class 0 has 100 examples for 120 clients"),
        (lambda: make_of_classes(assignment="randon"), "assignment 'randon'"),
        (lambda: make_of_classes(amounts="unequl"), "amounts 'unequl'"),
        (lambda: partition.split(np.arange(4), (1, 1), rng()), "fractions must be"),
        (
            lambda: partition.by_reference(np.array([0, 7]), np.zeros(2, int), ONE_EACH, rng()),
            "Class 7 is in the pool.*no client has it",
        ),
    ],
)
def test_impossible_partitions_are_refused(make, message):
    with pytest.raises(PartitionError, match=message):
        make()


def test_by_reference_takes_an_empty_pool():
    empty = partition.by_reference(np.empty(0, int), np.zeros(2, int), ONE_EACH, rng())
    assert list(map(len, empty)) == [0, 0]


def test_natural_groups_rows_by_client():
    parts = partition.natural(np.array([2, 0, 2, 0, 3]), num_clients=5)
    assert [part.tolist() for part in parts] == [[1, 3], [], [0, 2], [4], []]
    assert len(partition.natural(np.array([2, 0]))) == 3


def test_by_reference_keeps_the_shares_of_each_class():
    train = make_dirichlet(num_clients=10)
    test_labels = np.arange(2000) % 10
    test = partition.by_reference(test_labels, LABELS, train, rng(1))
    assert_partition(test, 2000)
    # The test pool has twice as many examples of every class, so that shares are whole numbers.
    np.testing.assert_array_equal(counts(test, test_labels), 2 * counts(train))


def test_by_reference_rounds_cumulative_shares():
    reference = [np.array([0]), np.array([1]), np.array([2])]
    parts = partition.by_reference(np.zeros(4, int), np.zeros(3, int), reference, rng())
    # np.diff(np.rint(np.cumsum([1, 1, 1]) / 3 * 4), prepend=0) = diff of 1, 3, 4
    assert list(map(len, parts)) == [1, 2, 1]


@together(
    ("size", "fractions", "expected"),
    [
        (60, (5, 0, 1), (50, 0, 10)),
        (2, (0.98, 0, 0.02), (1, 0, 1)),  # one test example even for a small fraction
        (3, (0.01, 0.98, 0.01), (1, 1, 1)),
        (1, (5, 0, 1), (1, 0, 0)),
        (0, (5, 0, 1), (0, 0, 0)),
        (9, (1, 0, 0), (9, 0, 0)),
    ],
)
def test_split_rounds_sizes(size, fractions, expected):
    rows = np.arange(100, 100 + size)
    parts = partition.split(rows, fractions, rng())
    assert tuple(map(len, parts)) == expected
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), rows)


def test_split_shuffles():
    train, _, test = partition.split(np.arange(100), (1, 0, 1), rng(2))
    np.testing.assert_array_equal(np.r_[train, test], rng(2).permutation(np.arange(100)))
