"""Tests the federated data set and the protocols that make it."""

import random

import numpy as np
import pytest

from tests.marks import together
from tests.own_modules import own_modules
from tff_pfl.arguments.names import UnknownNameError
from tff_pfl.data import ExamplesError, FederatedDataset, LabelledImages, federate
from tff_pfl.data.partition import PARTITIONERS, PartitionError
from tff_pfl.data.partition_file import SPLITS, Partition
from tff_pfl.datasets import load

N_TRAIN, N_TEST = 500, 100
LABELS = (np.arange(600) % 5).astype(np.int32)
# Every pixel of image i is i % 251, which identifies the rows of each client.
PIXELS = np.broadcast_to(
    (np.arange(600) % 251).astype(np.uint8)[:, None, None, None], (600, 4, 4, 1)
)
WRITER = (np.arange(600) % 7).astype(np.int32)
IMAGES = LabelledImages("toy", PIXELS, LABELS, 5, N_TRAIN, WRITER)
DIRICHLET = {"partitioner": "dirichlet", "partition_args": {"alpha": 0.5, "min_examples": 6}}


def rows(dataset, split):
    return np.concatenate(getattr(dataset.partition, split))


def all_rows(dataset):
    return np.sort(np.concatenate([rows(dataset, split) for split in SPLITS]))


@together(
    ("how", "merge"),
    [
        ({"num_clients": 8, **DIRICHLET}, True),
        ({"num_clients": 8, **DIRICHLET}, False),
        ({"num_clients": 6, "partitioner": "iid"}, True),
        ({"partitioner": "natural"}, False),
    ],
)
def test_every_example_is_used_once_and_seeds_reproduce(how, merge):
    more = {"fractions": (4, 1, 1)} if merge else {"num_validation": 60}
    first, again, other = (federate(IMAGES, merge=merge, seed=s, **more, **how) for s in (1, 1, 2))
    np.testing.assert_array_equal(all_rows(first), np.arange(600))
    assert first.fingerprint == again.fingerprint != other.fingerprint
    assert len(first.fingerprint) == 16
    assert sum(first.sizes(split).sum() for split in SPLITS) == 600
    assert (first.sizes("validation").sum() > 0) and (first.sizes() > 0).all()


def test_merged_splits_are_cut_in_the_original_ratio():
    dataset = federate(IMAGES, num_clients=5, partitioner="iid", seed=0)
    assert dataset.num_clients == 5
    np.testing.assert_array_equal(dataset.sizes("train"), [100] * 5)  # 120 each, 5:1
    np.testing.assert_array_equal(dataset.sizes("test"), [20] * 5)
    assert (rows(dataset, "train") >= N_TRAIN).any() and (rows(dataset, "test") < N_TRAIN).any()


def test_original_splits_are_distributed_in_the_same_proportions():
    dataset = federate(IMAGES, num_clients=8, merge=False, num_validation=100, seed=3, **DIRICHLET)
    assert (rows(dataset, "test") >= N_TRAIN).all()
    assert (rows(dataset, "train") < N_TRAIN).all()
    assert [len(rows(dataset, split)) for split in SPLITS] == [400, 100, 100]
    train = dataset.class_counts("train")
    for split in ("validation", "test"):
        counts = dataset.class_counts(split)
        # Cumulative shares are rounded: a cell is off by less than one.
        assert (abs(counts - train / train.sum(axis=0) * counts.sum(axis=0)) < 1 + 1e-9).all()


def test_natural_clients_keep_their_own_splits():
    dataset = federate(IMAGES, partitioner="natural", merge=False, seed=0)
    assert dataset.num_clients == 7
    for client in range(7):
        train, test = dataset.partition.train[client], dataset.partition.test[client]
        np.testing.assert_array_equal(np.sort(train), np.flatnonzero(WRITER[:N_TRAIN] == client))
        np.testing.assert_array_equal(test, N_TRAIN + np.flatnonzero(WRITER[N_TRAIN:] == client))


def test_examples_are_the_rows_of_the_client():
    dataset = federate(IMAGES, num_clients=8, seed=0, **DIRICHLET)
    examples = dataset.examples(3, "test")
    own = dataset.partition.test[3]
    np.testing.assert_array_equal(examples.x[:, 0, 0, 0], own % 251)
    np.testing.assert_array_equal(examples.y, own % 5)
    assert (examples.x.dtype, examples.y.dtype) == (np.uint8, np.int32)
    assert type(examples.size) is np.int32 and examples.size == len(own)
    assert dataset.image_shape == (4, 4, 1) and dataset.x_dtype == np.uint8
    assert dataset.sizes().dtype == np.int64
    counts = dataset.class_counts("test")
    np.testing.assert_array_equal(counts[3], np.bincount(own % 5, minlength=5))
    assert counts.shape == (8, 5)


@pytest.mark.parametrize("client_id", [-1, 8])
def test_unknown_clients_and_splits_are_refused(client_id):
    dataset = federate(IMAGES, num_clients=8, seed=0, **DIRICHLET)
    with pytest.raises(IndexError, match=rf"Client {client_id} does not exist: ids are 0..7"):
        dataset.examples(client_id)
    with pytest.raises(UnknownNameError, match="'trian'"):
        dataset.sizes("trian")


def test_fingerprint_depends_on_labels_classes_type_and_partition():
    base = federate(IMAGES, num_clients=4, partitioner="iid", seed=0)
    p = base.partition
    changed = LABELS.copy()
    changed[0] = 1
    swapped = Partition(p.train[::-1], p.validation, p.test)
    others = [
        FederatedDataset(IMAGES.x, changed, 5, p),
        FederatedDataset(IMAGES.x, LABELS, 6, p),
        FederatedDataset(IMAGES.x.astype(np.float32), LABELS, 5, p),
        FederatedDataset(IMAGES.x, LABELS, 5, swapped),
    ]
    assert len({base.fingerprint, *(other.fingerprint for other in others)}) == 5
    assert FederatedDataset(IMAGES.x, LABELS.astype(np.int64), 5, p).fingerprint == base.fingerprint


def test_examples_are_checked_only_once():
    """Makes them invalid afterwards; reading a memory-mapped file again would take long."""
    x = np.zeros([600, 3], np.float32)
    dataset = federate(IMAGES._replace(x=x), num_clients=4, partitioner="iid", seed=0)
    x[:] = np.nan
    part = dataset.of([1, 2]).of([1])
    np.testing.assert_array_equal(part.examples(0).y, dataset.examples(2).y)


def test_inputs_fingerprint_covers_all_rows_but_those_of_memory_maps(tmp_path):
    x, y = np.arange(2000.0).reshape(1000, 2), np.zeros(1000, np.int64)
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="c")  # writes stay in memory
    rows = np.arange(1000)
    for inputs, row, is_noticed in [(x, 1, True), (mapped, 1, False), (mapped, 999, True)]:
        dataset = FederatedDataset(inputs, y, 1, Partition((rows,), (rows[:0],), (rows[:0],)))
        before = dataset.inputs_fingerprint
        inputs[row] += 1
        assert (dataset.inputs_fingerprint != before) == is_noticed
    empty = FederatedDataset(x[:0], y[:0], 1, Partition(*[(rows[:0],)] * 3))
    assert len(empty.inputs_fingerprint) == len(before) == 32


@pytest.mark.parametrize(("type_", "merge"), [(list, True), (np.uint64, False)])
def test_labels_and_writers_may_have_any_integer_type(type_, merge):
    def convert(array):
        return array.tolist() if type_ is list else array.astype(type_)

    writer = convert(WRITER % 7)
    images = IMAGES._replace(y=convert(LABELS), writer=writer)
    for how in ({"partitioner": "natural"}, {"num_clients": 3, **DIRICHLET}):
        expected = federate(IMAGES._replace(writer=WRITER % 7), merge=merge, seed=0, **how)
        dataset = federate(images, merge=merge, seed=0, **how)
        assert dataset.fingerprint == expected.fingerprint
        assert dataset.examples(0).y.dtype == np.int32


def test_original_split_is_not_needed_with_fractions():
    images = IMAGES._replace(num_train=0)
    dataset = federate(images, num_clients=3, partitioner="iid", fractions=(4, 1, 1), seed=0)
    assert dataset.sizes().sum() == pytest.approx(400, abs=3)
    empty = images._replace(x=PIXELS[:0], y=LABELS[:0], writer=WRITER[:0])
    with pytest.raises(ExamplesError, match="toy: there are no examples"):
        federate(empty, partitioner="natural", fractions=(4, 1, 1), seed=0)


NATURAL = {"partitioner": "natural", "num_clients": None, "merge": False}


@together(
    ("changes", "how", "message"),
    [
        ({"y": LABELS + 1}, {}, "toy: label 5 of example 4"),
        ({"num_train": 601}, {}, "toy: num_train must be a whole number in 1 to 600, got 601"),
        ({"num_train": 0}, {}, "toy: num_train must be .*, got 0"),
        ({"writer": WRITER[:-1]}, NATURAL, r"toy: writer must be integers .*int32 of shape \(599,"),
        ({"writer": WRITER.astype(float)}, NATURAL, "toy: writer must be integers .* got float64"),
        ({"writer": WRITER - 1}, NATURAL, r"writers -1\.\.5 of 600 rows must .* without gaps"),
        ({"writer": WRITER + 594}, NATURAL, r"writers 594\.\.600 of 600 rows must .* without gaps"),
        ({}, {"partitioner": "dirichlett"}, "partitioner 'dirichlett'"),
        ({}, {"partition_args": {"alfa": 1}}, "partitioner 'iid' 'alfa'"),
        ({}, {"partitioner": "natural"}, "leave num_clients None"),
        ({}, {"num_validation": 5}, "num_validation has no effect"),
        ({}, {"merge": False, "fractions": (1, 0, 1)}, "fractions has no effect"),
        ({}, {"merge": False, "num_validation": 500}, "num_validation=500 must be fewer"),
    ],
)
def test_federate_refuses_wrong_images_and_contradictions(changes, how, message):
    with pytest.raises(ValueError, match=message):
        federate(
            IMAGES._replace(**changes), **{"partitioner": "iid", "num_clients": 4, "seed": 0} | how
        )


def test_federate_refuses_a_data_set_that_is_federated():
    dataset = federate(IMAGES, num_clients=2, partitioner="iid", seed=0)
    message = "or the LabelledImages .* got FederatedDataset toy: 2 clients"
    with pytest.raises(ExamplesError, match=message):
        federate(dataset, num_clients=2, partitioner="iid", seed=0)


@pytest.fixture
def federate_by():
    """A function that federates the images by a user's own partitioner."""
    with own_modules(__file__):

        def federated(partitioner, num_clients=2, **how):
            PARTITIONERS.register("mine")(partitioner)
            how |= {"partitioner": "mine", "num_clients": num_clients}
            return federate(IMAGES, seed=0, fractions=(1, 0, 0), **how)

        yield federated


def test_users_partitioner_takes_its_own_options(federate_by):
    def by_halves(labels, num_clients, rng, *, first):
        """Makes two clients, the first of `first` rows."""
        yield from np.split(rng.permutation(len(labels)), [first])

    dataset = federate_by(by_halves, partition_args={"first": 7})
    assert dataset.sizes("train").tolist() == [7, len(LABELS) - 7]
    with pytest.raises(ValueError, match=r"'mine' needs partition_args for \['first'\]"):
        federate_by(by_halves)
    with pytest.raises(PartitionError, match="'mine' must give 3 clients .* gave 2 clients"):
        federate_by(by_halves, num_clients=3, partition_args={"first": 7})


@pytest.mark.parametrize(("parts", "found"), [([[0, 600], [1]], "0..600"), ([[0, -1], [1]], "-1")])
def test_users_partitioner_must_return_existing_rows(federate_by, parts, found):
    with pytest.raises(PartitionError, match=rf"'mine' must give .* within 0\.\.599, .* {found}"):
        federate_by(lambda labels, num_clients, rng: parts)


@pytest.mark.parametrize("draw", [np.random.permutation, lambda n: random.sample(range(n), n)])
def test_users_partitioner_must_not_draw_from_global_generators(federate_by, draw):
    def irreproducible(labels, num_clients, rng):
        yield from np.split(np.array(draw(len(labels))), num_clients)

    with pytest.raises(PartitionError, match="'mine' draws from NumPy's, .* `rng`"):
        federate_by(irreproducible)


def test_golden_fingerprint_of_digits():
    """Fails if the clients of every saved run would change."""
    dataset = federate(load("digits"), num_clients=10, seed=1, **DIRICHLET)
    assert dataset.sizes("train").sum() + dataset.sizes("test").sum() == 1797
    assert dataset.fingerprint == "f893c3aa809c6a1c"
