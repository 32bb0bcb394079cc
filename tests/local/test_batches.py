"""Tests `tff_pfl.local.batches`."""

import numpy as np
import pytest
import tensorflow as tf

from tests.marks import together
from tff_pfl.local import Examples, scan_batches

SEED = np.array([3, 4], np.int32)
# In batches of 3: no example, less than a batch, one batch, one and a part, two batches.
SIZES = [0, 1, 2, 3, 4, 6]


def make_examples(size, capacity=None):
    """Returns examples `k` with label `k` and input `[k, -k]`, and invalid padding."""
    capacity = size if capacity is None else capacity
    x = np.full([capacity, 2], np.nan, np.float32)
    y = np.full([capacity], -7, np.int32)
    x[:size], y[:size] = np.arange(size)[:, None] * [1, -1], np.arange(size)
    return Examples(tf.constant(x), tf.constant(y), tf.constant(size))


def scan(examples, length, *, batch_size=3, seed=SEED, **kwargs):
    """Records each batch in a row: its labels (-1 for surplus rows), inputs and seed."""

    def step(carry, batch):
        count, labels, xs, seeds = carry
        row = tf.one_hot(count, length, dtype=tf.int32)[:, tf.newaxis]
        counted = tf.cast(batch.weight, tf.int32)
        labels += row * (batch.y * counted + counted - 1)
        xs += tf.cast(row, tf.float32) * batch.x[:, 0]
        return count + 1, labels, xs, seeds + row * batch.seed

    carry = (
        0,
        tf.zeros([length, batch_size], tf.int32),
        tf.zeros([length, batch_size]),
        tf.zeros([length, 2], tf.int32),
    )
    return scan_batches(step, carry, examples, batch_size=batch_size, seed=seed, **kwargs)


def epochs_of(labels, count, epochs):
    """Returns the labels visited in each epoch, in order."""
    labels = np.asarray(labels)[: int(count)].reshape([epochs, -1])
    return [[int(label) for label in epoch if label >= 0] for epoch in labels]


def test_every_epoch_visits_each_example_once():
    for size in SIZES:
        count, labels, xs, _ = scan(make_examples(size), 8, epochs=2)
        assert count == 2 * -(-size // 3)
        assert [sorted(epoch) for epoch in epochs_of(labels, count, 2)] == [list(range(size))] * 2
        visited = labels.numpy()[: int(count)]
        np.testing.assert_array_equal(xs.numpy()[: int(count)][visited >= 0], visited[visited >= 0])


@pytest.mark.parametrize("padding", [0, 4])
def test_drop_remainder_leaves_out_partial_batches(padding):
    for size in SIZES:
        examples = make_examples(size, size + padding)
        count, labels, _, _ = scan(examples, 12, epochs=2, drop_remainder=True)
        kept = size // 3 * 3 or size  # A client keeps its only batch even if it is partial.
        assert count == 2 * -(-kept // 3)
        full = epochs_of(*reversed(scan(make_examples(size), 8, epochs=2)[:2]), 2)
        assert epochs_of(labels, count, 2) == [epoch[:kept] for epoch in full]


@pytest.mark.parametrize("seed", [None, SEED])
def test_result_does_not_depend_on_padding(seed):
    expected = scan(make_examples(4), 6, epochs=3, seed=seed)
    assert np.all(np.isfinite(expected[2]))
    for capacity in (5, 7, 20):
        actual = scan(make_examples(4, capacity), 6, epochs=3, seed=seed)
        tf.nest.map_structure(np.testing.assert_array_equal, actual, expected)


@together("length", [{"epochs": 2}, {"epochs": 9}, {"steps": 20}, {"epochs": 0}, {"steps": 0}])
def test_carry_stays_without_examples_or_epochs(length):
    for capacity in (0, 1, 5):
        found = scan(make_examples(0, capacity), 4, **length)
        assert not any(np.any(leaf) for leaf in found)
    if 0 in length.values():
        assert scan(make_examples(5), 4, **length)[0] == 0


def test_orders_are_functions_of_the_seed_and_the_epoch():
    def orders(seed):
        count, labels, _, _ = scan(make_examples(12), 8, epochs=2, seed=tf.constant(seed))
        return epochs_of(labels, count, 2)

    assert orders([3, 4]) == orders([3, 4])
    several = [*orders([3, 4]), *orders([3, 5]), *orders([4, 4]), list(range(12))]
    assert len({tuple(order) for order in several}) == len(several)


def test_every_position_is_equally_likely():
    def first(seed):
        return scan(make_examples(4, 6), 2, epochs=1, seed=seed)[1][0, 0]

    seeds = tf.stack([tf.range(400), tf.ones([400], tf.int32)], axis=1)
    firsts = tf.function(lambda: tf.map_fn(first, seeds), autograph=False)()
    # Binomial(400, 1/4): mean 100, standard deviation 8.7.
    np.testing.assert_allclose(np.bincount(firsts, minlength=4), 100, atol=35)


def test_examples_keep_their_order_without_a_seed():
    count, labels, _, seeds = scan(make_examples(5), 4, epochs=2, seed=None)
    assert epochs_of(labels, count, 2) == [[0, 1, 2, 3, 4]] * 2
    assert not np.any(seeds)


def test_every_batch_has_its_own_seed():
    *_, seeds = scan(make_examples(7), 12, epochs=4)
    # Orders use `fold_in(seed, epoch)`, which no batch may use.
    orders = [tf.random.experimental.stateless_fold_in(SEED, epoch) for epoch in range(4)]
    several = {tuple(seed.tolist()) for seed in [*seeds.numpy(), *(o.numpy() for o in orders)]}
    assert len(several) == 4 * 3 + 4


def test_exactly_one_of_epochs_and_steps_is_required():
    for kwargs in ({}, {"epochs": 1, "steps": 1}):
        with pytest.raises(ValueError, match="either epochs or steps"):
            scan(make_examples(2), 2, **kwargs)


@pytest.mark.parametrize("drop_remainder", [False, True])
def test_steps_continue_over_epochs(drop_remainder):
    kwargs = {"drop_remainder": drop_remainder}
    per_epoch = 2 if drop_remainder else 3
    count, labels, xs, seeds = scan(make_examples(7, 11), 8, epochs=2, **kwargs)
    assert count == 2 * per_epoch
    for steps in (1, per_epoch, 2 * per_epoch - 1, 2 * per_epoch):
        stopped = scan(make_examples(7, 11), 8, steps=steps, **kwargs)
        assert stopped[0] == steps
        for found, expected in zip(stopped[1:3], (labels, xs), strict=True):
            np.testing.assert_array_equal(found[:steps], expected[:steps])
            assert not np.any(found[steps:])


@pytest.mark.parametrize("drop_remainder", [False, True])
def test_only_the_given_number_of_steps_is_computed(drop_remainder):
    """Skips batches of padding, of which there may be thousands."""
    for size, expected in ((0, 0), (1, 20), (7, 20)):
        computed = tf.Variable(0)

        def step(carry, batch, computed=computed):
            computed.assign_add(1)
            return carry + 1

        examples, options = make_examples(size, 1000), {"drop_remainder": drop_remainder}
        done = scan_batches(step, 0, examples, steps=20, batch_size=3, seed=SEED, **options)
        assert (done, computed) == (expected, expected)


@pytest.mark.parametrize("length", [{"steps": 1000}, {"epochs": 500}])
def test_graph_does_not_grow_with_the_length(length):
    @tf.function(autograph=False)
    def visit(x, y, size):
        return scan(Examples(x, y, size), 2, **length)

    graph = visit.get_concrete_function(*make_examples(4)).graph.as_graph_def()
    assert sum(len(function.node_def) for function in graph.library.function) < 600


def test_structures_have_zeros_as_labels_of_surplus_rows():
    """Visits rows whose arrays belong together, and never reads padding."""
    rows = np.arange(7)
    examples = Examples(
        x={"id": tf.constant(rows), "vector": tf.constant(rows[:, np.newaxis] * [1.0, -1.0])},
        y=(tf.constant(rows + 1, tf.uint8), tf.constant((rows[:, np.newaxis] + 1) * [1.0, 2.0])),
        size=tf.constant(5),
    )

    def step(seen, batch):
        is_example = batch.weight > 0
        tf.debugging.assert_less(batch.x["id"], np.int64(5))
        for labels, scale in zip(batch.y, ([[1]], [[1, 2]]), strict=True):
            expected = tf.cast(batch.x["id"][:, tf.newaxis] + 1, labels.dtype) * scale
            expected = tf.where(is_example[:, tf.newaxis], expected, tf.zeros([], labels.dtype))
            tf.debugging.assert_equal(tf.reshape(labels, [4, -1]), expected)
        vector = tf.cast(batch.x["id"][:, tf.newaxis], tf.float64) * [1.0, -1.0]
        tf.debugging.assert_equal(batch.x["vector"], vector)
        return seen + tf.math.bincount(
            tf.cast(batch.x["id"], tf.int32), batch.weight, minlength=7, dtype=tf.float32
        )

    seen = scan_batches(step, tf.zeros([7]), examples, epochs=2, batch_size=4, seed=SEED)
    np.testing.assert_array_equal(seen, [2, 2, 2, 2, 2, 0, 0])


def test_batches_have_no_more_rows_than_the_type_of_the_examples():
    """Visits 5 examples in the same order with 16 rows as with 128, in one batch a pass."""

    def scanned(capacity):
        rows = set()

        @tf.function(autograph=False, input_signature=[tf.TensorSpec([capacity, 2])])
        def labels(x):
            def step(carry, batch):
                rows.add(batch.y.shape[0])
                total = tf.reduce_sum(batch.weight * batch.x[:, 0])
                return 10 * carry[0] + total, tf.pad(batch.y, [[0, 128 - batch.y.shape[0]]])

            examples = Examples(x, tf.range(tf.shape(x)[0]), tf.constant(5))
            examples = examples._replace(y=tf.ensure_shape(examples.y, [capacity]))
            carry = (0.0, tf.zeros([128], tf.int32))
            return scan_batches(step, carry, examples, epochs=2, batch_size=128, seed=SEED)

        return labels(tf.random.stateless_normal([7, 2], SEED)), rows

    (few, rows_of_few), (all_rows, rows_of_all) = scanned(7), scanned(None)
    assert (rows_of_few, rows_of_all) == ({16}, {128})
    tf.nest.map_structure(np.testing.assert_array_equal, few, all_rows)


@together(("size", "rows"), [(0, 0), (2, 4), (4, 4), (5, 8), (8, 8), (9, 12), (13, 16)])
def test_last_batch_has_half_the_rows_if_they_suffice(size, rows):
    """Adds up the rows of batches of 8, and visits each example once."""

    def step(carry, batch):
        visited, number = carry
        visited += tf.math.bincount(batch.y, batch.weight, minlength=20, dtype=tf.float32)
        return visited, number + batch.x.shape[0]

    @tf.function(autograph=False)
    def scanned(*fields):
        examples, options = Examples(*fields), {"epochs": 1, "batch_size": 8, "halves": True}
        return scan_batches(step, (tf.zeros([20]), 0), examples, seed=SEED, **options)

    visited, number = scanned(tf.zeros([20, 2]), tf.range(20), tf.constant(size))
    assert number == rows
    np.testing.assert_array_equal(visited, np.arange(20) < size)
