"""Tests of `tff_pfl.algorithms.fedpg.gradient_memory`."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.marks import slow
from tff_pfl.algorithms.fedpg.gradient_memory import absent, empty_memory, gram_matrices, remember

NUM_CLIENTS = 9
NUM_WEIGHTS = 5
INTS = tf.TensorSpec([None], tf.int32)
SCALAR = tf.TensorSpec([], tf.int32)


@functools.cache
def traced(size):
    """Traces `(memory, gradients, ids, live, round) -> (memory, grams)` for a memory's size."""
    memory = tf.nest.map_structure(tf.type_spec_from_value, empty_memory(size, NUM_WEIGHTS))
    gradients = tf.TensorSpec([None, NUM_WEIGHTS], tf.float32)

    @tf.function(input_signature=[memory, gradients, INTS, tf.TensorSpec([None], tf.bool), SCALAR])
    def step(memory, gradients, ids, live, round_num):
        grams = gram_matrices(gradients, memory)
        return remember(memory, gradients, grams, ids, live, round_num), grams

    return step


def gradients_of(*numbers):
    """Makes a gradient for each number."""
    return np.array([[n, 1.0, -n, 0.0, 0.5] for n in numbers], np.float32).reshape(-1, NUM_WEIGHTS)


def after(size, *cohorts, start=0):
    """Returns the memory after rounds with these clients, all live."""
    memory = empty_memory(size, NUM_WEIGHTS)
    for round_num, ids in enumerate(cohorts, start=start):
        ids = np.array(ids, np.int32)
        gradients = gradients_of(*(10 * round_num + ids))
        memory, _ = traced(size)(memory, gradients, ids, np.ones(len(ids), bool), round_num)
    return memory


def rounds_by_client(memory):
    ids, rounds = memory.client_ids.numpy(), memory.rounds.numpy()
    np.testing.assert_array_equal(ids < 0, rounds < 0)
    taken = ids[ids >= 0]
    assert len(set(taken)) == len(taken)
    return dict(zip(taken, rounds[ids >= 0], strict=True))


def assert_gram_is_of_the_gradients(memory):
    gradients = memory.gradients.numpy().astype(np.float64)
    np.testing.assert_allclose(memory.gram, gradients @ gradients.T, rtol=1e-12, atol=1e-12)


class TestSequencesOfCohorts:
    """Compares the memory with a dictionary of each client's last gradient and round."""

    @pytest.mark.thorough
    @pytest.mark.parametrize("seed", [0, slow(1), slow(2)])
    @pytest.mark.parametrize("size", [12, 4, 1])
    def test_newest_gradients_are_remembered(self, size, seed):
        rng = np.random.default_rng([size, seed])
        memory, received = empty_memory(size, NUM_WEIGHTS), {}
        for round_num in range(25):
            k = rng.integers(0, 7)
            ids = rng.permutation(NUM_CLIENTS)[:k].astype(np.int32)
            gradients = rng.normal(size=(k, NUM_WEIGHTS)).astype(np.float32)
            live = rng.random(k) < 0.8
            before = rounds_by_client(memory)
            old_gradients = memory.gradients.numpy()

            memory, grams = traced(size)(memory, gradients, ids, live, round_num)

            exact = gradients.astype(np.float64)
            np.testing.assert_allclose(grams.online, exact @ exact.T, atol=1e-12)
            np.testing.assert_allclose(grams.cross, exact @ old_gradients.T, atol=1e-12)
            received |= {
                i: (round_num, gradient)
                for i, gradient in zip(ids[live], gradients[live], strict=True)
            }
            known = rounds_by_client(memory)
            done = set(ids[~live])
            candidates = {i: last for i, last in before.items() if i not in done}
            candidates |= dict.fromkeys(ids[live], round_num)
            assert known.items() <= candidates.items()
            newest_first = sorted(candidates.values(), reverse=True)
            assert sorted(known.values(), reverse=True) == newest_first[:size]
            for slot, i in enumerate(memory.client_ids.numpy()):
                expected = received[i][1] if i >= 0 else np.zeros(NUM_WEIGHTS)
                np.testing.assert_array_equal(memory.gradients[slot], expected)
            assert_gram_is_of_the_gradients(memory)


@pytest.mark.parametrize("live", [[True, False], [False, True]])
def test_ids_need_to_be_distinct_only_if_live(live):
    memory = after(3, [4])
    new, _ = traced(3)(memory, gradients_of(5, 6), np.array([4, 4], np.int32), np.array(live), 1)
    assert rounds_by_client(new) == {4: 1}
    np.testing.assert_array_equal(new.gradients[0], gradients_of(5, 6)[live][0])


class TestAbsent:
    def absent(self, memory, cohort, round_num, window):
        mask = absent(memory, tf.constant(cohort, tf.int32), round_num, tf.constant(window))
        return sorted(memory.client_ids.numpy()[mask.numpy()])

    def test_clients_of_the_cohort_are_not_absent(self):
        memory = after(5, [3, 0], [7])
        assert self.absent(memory, [], 2, 99.0) == [0, 3, 7]
        assert self.absent(memory, [3, 8, -1], 2, 99.0) == [0, 7]
        assert self.absent(memory, [7, 3, 0], 2, 99.0) == []

    @pytest.mark.parametrize("window", [4.0, 4.75])
    def test_gradient_counts_up_to_the_age_of_the_window(self, window):
        memory = after(2, [3], start=10)
        assert self.absent(memory, [], 14, window) == [3]
        assert self.absent(memory, [], 15, window) == []

    @pytest.mark.parametrize("size", [0, 2])
    def test_free_slots_do_not_count(self, size):
        mask = absent(empty_memory(size, 3), tf.constant([0]), tf.constant(0), tf.constant(99.0))
        np.testing.assert_array_equal(mask, np.zeros(size, bool))


class TestGramMatrices:
    @pytest.mark.parametrize("num_weights", [16384, 40_000])
    def test_inner_products_are_summed_over_blocks_of_columns(self, num_weights):
        rng = np.random.default_rng(num_weights)
        new, old = (rng.normal(size=(k, num_weights)).astype(np.float32) for k in (3, 4))
        memory = empty_memory(4, num_weights)._replace(gradients=old, gram=tf.eye(4))
        grams = gram_matrices(tf.constant(new), memory)
        new, old = new.astype(np.float64), old.astype(np.float64)
        np.testing.assert_allclose(grams.online, new @ new.T, rtol=1e-10)
        np.testing.assert_allclose(grams.cross, new @ old.T, rtol=1e-10)
        np.testing.assert_array_equal(grams.absent, np.eye(4))

    def test_inner_products_have_double_precision(self):
        """The sum of squares is 2^24 + 20,000; float32 cannot add a 1 to 2^24."""
        gradients = np.ones((1, 20_001), np.float32)
        gradients[0, 0] = 2**12
        grams = gram_matrices(tf.constant(gradients), empty_memory(2, 20_001))
        np.testing.assert_array_equal(grams.online, [[2**24 + 20_000]])
        np.testing.assert_array_equal(grams.cross, [[0.0, 0.0]])
