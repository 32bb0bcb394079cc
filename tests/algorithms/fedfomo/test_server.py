"""Tests FedFomo's server: the models that clients receive, and the effect of ratings."""

import dataclasses

import numpy as np
import pytest
import scipy.special
import scipy.stats
import tensorflow as tf

from tests.federation import assert_equal
from tests.marks import together
from tff_pfl.aggregators import Stack
from tff_pfl.algorithms.fedfomo import FedFomoServer, Ratings
from tff_pfl.local import trees
from tff_pfl.local.seeds import run_seed

N, M = 8, 3
SERVER = FedFomoServer(N, M, 0.0, 0.0, "all", "normalized")
WEIGHTS = {"a": tf.zeros([2, 1]), "b": tf.constant(0.0)}
NUM_ROUNDS = 400


def with_options(**options):
    return dataclasses.replace(SERVER, **options)


def random_rows(number, seed):
    rng = np.random.default_rng(seed)
    return {
        "a": tf.constant(rng.normal(size=[number, 2, 1]), tf.float32),
        "b": tf.constant(rng.normal(size=[number]), tf.float32),
    }


def random_state(round_num=0, fresh=()):
    affinity = np.random.default_rng(7).normal(size=[N, N])
    return SERVER.init(WEIGHTS, seed=1)._replace(
        models=random_rows(N, 3),
        affinity=tf.constant(affinity, tf.float32),
        is_fresh=tf.constant([i in fresh for i in range(N)]),
        round_num=tf.constant(round_num),
    )


def choices(server, state, rounds=NUM_ROUNDS, clients=(3,)):
    """Returns the ids that clients receive in several rounds: int `[rounds * clients, m]`."""

    def of_round(arguments):
        round_num, client_id = arguments
        received = server.own(state._replace(round_num=round_num), client_id)
        return received.client_ids, received.exists

    grid = np.array([(t, i) for t in range(rounds) for i in clients], np.int32)
    signature = (tf.TensorSpec([M], tf.int32), tf.TensorSpec([M], tf.bool))
    ids, exists = tf.function(
        lambda: tf.map_fn(of_round, (grid[:, 0], grid[:, 1]), fn_output_signature=signature)
    )()
    assert np.all(exists)
    return ids.numpy()


def best_of_client_3(state):
    """Returns the `M` others with the largest affinity, in order."""
    return [j for j in np.argsort(-state.affinity[3].numpy()) if j != 3][:M]


def assert_distinct_others(ids, client_id):
    assert np.all((ids >= 0) & (ids < N))
    assert np.all(ids != client_id)
    assert all(len(set(row)) == M for row in ids)


class TestWithoutExploration:
    def test_clients_receive_the_others_with_the_largest_affinity(self):
        state = random_state()
        for i in range(N):
            others = [j for j in np.argsort(-state.affinity[i].numpy()) if j != i]
            for round_num in range(3):
                received = SERVER.own(state._replace(round_num=tf.constant(round_num)), i)
                assert sorted(received.client_ids.numpy()) == sorted(others[:M])
                assert np.all(received.exists)

    def test_models_belong_to_the_ids(self):
        state = random_state()
        received = SERVER.own(state, tf.constant(4))
        assert_equal(received.models, trees.row(state.models, received.client_ids))
        assert len(set(received.models["b"].numpy())) == M

    @pytest.mark.thorough
    def test_own_affinity_does_not_count(self):
        """Tests the initial affinities, of which a client's own is the largest."""
        ids = choices(SERVER, SERVER.init(WEIGHTS, seed=1), 5, range(N))
        for i in range(N):
            assert_distinct_others(ids[i::N], i)

    def test_chance_decides_only_between_equal_affinities(self):
        """Tests one better client, four that share two places, and two worse ones."""
        affinity = np.zeros([N, N], np.float32)
        affinity[3] = [0.5, 0.2, 0.5, 9.0, 0.5, 0.1, 0.5, 0.7]
        ids = choices(SERVER, SERVER.init(WEIGHTS, seed=1)._replace(affinity=tf.constant(affinity)))
        counts = np.bincount(np.ravel(ids), minlength=N)
        assert counts[7] == NUM_ROUNDS
        assert counts[1] == counts[3] == counts[5] == 0
        # Binomial(400, 1/2): mean 200, standard deviation 10.
        np.testing.assert_allclose(counts[[0, 2, 4, 6]], NUM_ROUNDS / 2, atol=45)


class TestExploration:
    def test_exploration_of_1_makes_others_equally_likely(self):
        ids = choices(with_options(exploration=1.0), random_state())
        assert_distinct_others(ids, 3)
        counts = np.bincount(np.ravel(ids), minlength=N)
        np.testing.assert_allclose(np.delete(counts, 3), NUM_ROUNDS * M / 7, atol=45)
        # Each pair is equally likely, too: Binomial(400, 1/7), mean 57, standard deviation 7.
        pairs = [sum(a in row and b in row for row in ids) for a, b in ((0, 1), (2, 7), (5, 6))]
        np.testing.assert_allclose(pairs, NUM_ROUNDS / 7, atol=32)

    @pytest.mark.thorough
    def test_exploration_decays_every_round(self):
        """Counts received clients that are not among the best."""
        server = with_options(exploration=0.75, exploration_decay=0.25)

        def mean_number(round_num):
            state = random_state(round_num)
            best = best_of_client_3(state)
            received = [
                server.own(state._replace(seed=run_seed(seed, 0)), tf.constant(3)).client_ids
                for seed in range(60)
            ]
            return np.mean([np.sum(~np.isin(ids, best)) for ids in received])

        first, second, last = map(mean_number, (0, 2, 3))
        assert first > 2 * second > last == 0.0

    def test_places_are_explored_independently(self):
        state = random_state()
        ids = choices(with_options(exploration=0.4), state)
        numbers = np.sum(~np.isin(ids, best_of_client_3(state)), axis=1)
        # If `r` places are explored, `r` clients are drawn from the remaining `rest + r`, of which
        # `r` are among the best.
        r, rest = np.arange(M + 1), N - 1 - M
        chance = scipy.stats.binom.pmf(r, M, 0.4)
        np.testing.assert_allclose(np.mean(numbers), chance @ (r * rest / (rest + r)), atol=0.15)
        only_best = chance @ (1 / scipy.special.comb(rest + r, r))
        np.testing.assert_allclose(np.mean(numbers == 0), only_best, atol=0.1)

    def test_exploration_replaces_the_worst_first(self):
        """Tests that exploration replaces the last of the best clients first."""
        state = random_state()
        best = best_of_client_3(state)
        ids = choices(with_options(exploration=0.3), state)
        counts = np.sum(ids[:, :, np.newaxis] == best, axis=(0, 1))
        assert np.all(np.diff(counts) < 0)

    @pytest.mark.thorough
    def test_choice_is_a_function_of_seed_round_and_client(self):
        server, state = with_options(exploration=0.5), random_state()

        def ids(seed=1, rounds=8, clients=(3, 4)):
            return choices(server, state._replace(seed=run_seed(seed, 0)), rounds, clients)

        first = ids()
        np.testing.assert_array_equal(ids(), first)
        np.testing.assert_array_equal(ids(clients=(4,)), first[1::2])
        np.testing.assert_array_equal(ids(rounds=3), first[:6])
        assert np.any(ids(seed=2) != first)
        assert len({tuple(row) for row in first[0::2]}) > 3  # choices of one client over rounds
        for seed in (-5, 2**31, 2**40 + 1):
            assert_distinct_others(ids(seed=seed, clients=(3,)), 3)


class TestLastCohort:
    @together(("exploration", "fresh"), [(0.0, (0, 1, 4, 6, 7)), (0.5, (1, 3)), (0.5, ())])
    def test_only_models_of_the_last_round_exist(self, fresh, exploration):
        server = with_options(candidates="last_cohort", exploration=exploration)
        state = random_state(fresh=fresh)
        others = sorted(set(fresh) - {3})
        for round_num in range(6):
            received = server.own(state._replace(round_num=tf.constant(round_num)), tf.constant(3))
            ids = received.client_ids.numpy()
            assert len(set(ids)) == M
            found = sorted(ids[received.exists.numpy()])
            assert len(found) == min(M, len(others))
            assert set(found) <= set(others)
            if exploration == 0.0:
                best = sorted(others, key=lambda j: -state.affinity[3, j].numpy())[:M]
                assert found == sorted(best)
            assert_equal(received.models, trees.row(state.models, received.client_ids))


RATED = ((1, [6, 0, 2], [0.5, -0.2, 0.0, 1.5]), (4, [0, 5, 1], [-0.3, 0.1, -2.0, 0.25]))


def uploads_of(ratings, weights=None):
    ids, rated, omega = zip(*ratings, strict=True)
    value = Ratings(
        tf.constant(ids, tf.int32),
        random_rows(len(ids), 5),
        tf.constant(rated, tf.int32),
        tf.constant(omega, tf.float32),
    )
    return Stack(value, tf.constant(weights or [1.0] * len(ids)))


def finalize(ratings, affinity="normalized", weights=None, state=None):
    state = state or random_state(round_num=6, fresh=(0, 1))
    server = with_options(affinity=affinity)
    return server.finalize(state, uploads_of(ratings, weights), tf.constant(0))


class TestFinalize:
    @together(
        ("affinity", "omega"),
        [
            ("normalized", [1.0, -1.0, 0.5, -0.5]),
            ("normalized", [0.0] * 4),
            ("raw", [0.0] * 4),
            ("clipped", [0.0] * 4),
            ("clipped", [-1.0, -3.0, 0.0, -0.5]),
        ],
    )
    def test_ratings_that_cannot_be_divided_add_nothing(self, affinity, omega):
        state, _ = finalize([(1, [6, 0, 2], omega)], affinity)
        assert_equal(state.affinity, random_state().affinity)

    @together("affinity", ["normalized", "raw", "clipped"])
    def test_rejected_clients_do_not_count(self, affinity):
        """Uploads of rejected clients are 0, ids included; client 0 does not take part here."""
        state = random_state()
        server = with_options(affinity=affinity)
        uploads = uploads_of(RATED)
        value = tf.nest.map_structure(
            lambda leaf: tf.concat([tf.zeros_like(leaf[:1]), leaf], axis=0), uploads.value
        )
        with_zeros = Stack(value, tf.constant([0.0, 1.0, 1.0]))
        expected = server.finalize(state, uploads, tf.constant(0))
        assert_equal(server.finalize(state, with_zeros, tf.constant(0)), expected)


def test_server_may_send_no_models():
    received = with_options(num_others=0, exploration=0.5).own(random_state(), tf.constant(3))
    assert received.client_ids.shape == received.exists.shape == [0]
    assert received.models["a"].shape == [0, 2, 1]
