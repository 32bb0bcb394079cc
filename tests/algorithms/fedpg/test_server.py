"""Tests of `tff_pfl.algorithms.fedpg.server`, mainly of the direction in single precision."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.federation import assert_equal
from tests.marks import slow, together
from tff_pfl.aggregators.stack import Stack
from tff_pfl.algorithms.fedpg.common_descent import fairness_weights
from tff_pfl.algorithms.fedpg.search import Search, Trials, take_step
from tff_pfl.algorithms.fedpg.server import FedPGServer, Upload
from tff_pfl.algorithms.fedpg.step_ladder import make_ladder
from tff_pfl.local import LocalTraining

NUM_WEIGHTS = 40


LOCAL = LocalTraining(tff.learning.optimizers.build_sgdm(1.0))
SERVER = FedPGServer(LOCAL, fairness=False, memory_size=4, outlier_ratio=None)


def find_direction(state, gradients, client_ids, round_num, are_new=True):
    """Returns the server's state and metrics after uploads; `None` is the initial state."""
    k = len(client_ids)
    uploads = Upload(
        client_id=tf.constant(client_ids),
        is_new=tf.broadcast_to(are_new, [k]),
        gradient=tf.constant(gradients),
        loss=tf.ones([k]),
    )
    state = SERVER.init({"w": tf.zeros([NUM_WEIGHTS])}) if state is None else state
    return SERVER.take_direction(state, Stack(uploads, tf.ones([k])), tf.constant(round_num))


def nearly_opposite(angle, seed):
    """Makes gradients of two clients that are almost opposite, and of one between them.

    The shortest convex combination is half as long as the angle, so that sigma is its inverse times
    2/3, for the mean of the three.
    """
    columns = np.array([[1.0, 0.0, 0.0], [-1.0, angle, 0.0], [0.6, 0.8, 0.0]])
    if seed is None:
        return np.pad(columns, [(0, 0), (0, NUM_WEIGHTS - 3)]).astype(np.float32)
    rng = np.random.default_rng(seed)
    turned = np.linalg.qr(rng.normal(size=(NUM_WEIGHTS, 3)))[0] @ columns.T
    return (turned * rng.uniform(0.3, 3.0, size=3)).T.astype(np.float32)


@pytest.mark.parametrize("absent", [False, True])
@pytest.mark.parametrize("seed", [slow(None), 0])
@pytest.mark.parametrize("angle", [1e-1, 1e-4, 4e-6, 1e-6, 1e-7])
def test_direction_descends_for_every_gradient(angle, seed, absent):
    gradients = nearly_opposite(angle, seed)
    state = None
    if absent:
        state, _ = find_direction(None, gradients[1:2], [5], 0)
        state, metrics = find_direction(state, gradients[::2], [3, 4], 1)
        assert metrics["num_absent"] == 1
    else:
        state, metrics = find_direction(None, gradients, [3, 4, 5], 0)
    direction = state.plan.direction.numpy().astype(np.float64)
    slopes = gradients.astype(np.float64) @ direction
    if angle < 1e-6:  # below the resolution, there is no direction
        assert metrics["sigma"] == 0.0
        np.testing.assert_array_equal(direction, np.zeros(NUM_WEIGHTS))
    elif angle > 2e-6:
        assert metrics["sigma"] > 0.3 / angle
        assert np.all(slopes < 0.0)
    else:
        assert np.all(slopes < 0.0) or metrics["sigma"] == 0.0


@together("loss", [1e-9, 0.3, 7.0, 0.0, -1.0])
def test_equal_losses_have_no_weight_in_fairness(loss):
    """Tests exact zeros: rounding errors could point against the mean gradient."""
    for number in range(6):
        losses = tf.constant([loss] * number + [2.0], tf.float32)
        live = tf.constant([True] * number + [False])
        weights = fairness_weights(losses, live)
        np.testing.assert_array_equal(weights, np.zeros(number + 1))


def unit_vectors(*lengths):
    return (np.eye(NUM_WEIGHTS)[: len(lengths)] * np.array(lengths)[:, np.newaxis]).astype(
        np.float32
    )


@pytest.mark.thorough
def test_client_with_gradient_0_is_not_counted_until_it_returns():
    """Tests that it also leaves the memory, and that the window depends on the other clients."""
    state, seen, absent = None, [], []
    for round_num, (ids, lengths, are_new) in enumerate(
        [
            ([0, 1], [1, 1], [True, True]),
            ([2, 3], [1, 1], [True, True]),
            ([1, 2], [0, 0], [False, False]),
            ([3, 4], [1, 1], [False, True]),
            ([1, 2], [1, 0], [True, True]),
        ]
    ):
        state, metrics = find_direction(state, unit_vectors(*lengths), ids, round_num, are_new)
        seen.append(int(state.clients_seen))
        absent.append(int(metrics["num_absent"]))
    assert seen == [2, 4, 2, 3, 4]  # clients 01, 0123, 03, 034, 0134
    # tau is half of that: the gradient of client 0, from 3 rounds ago, does not count any more.
    assert absent == [0, 2, 1, 0, 2]


def test_client_dropped_from_the_memory_counts_until_its_gradient_is_0():
    """Tests six clients with a memory of four."""
    state = None
    for client_id in range(6):
        state, _ = find_direction(state, unit_vectors(1), [client_id], client_id)
    assert state.clients_seen == 6
    state, _ = find_direction(state, unit_vectors(1), [0], 6, are_new=False)
    assert state.clients_seen == 6
    state, _ = find_direction(state, unit_vectors(0), [1], 7, are_new=False)
    assert state.clients_seen == 5


def test_client_with_a_false_is_new_does_not_count():
    """Tests an attacker that sends 0 instead of the gradient it found."""
    state, _ = find_direction(None, unit_vectors(0, 1), [0, 1], 0)
    for round_num in (1, 2):
        state, _ = find_direction(state, unit_vectors(0, 1), [0, 1], round_num, are_new=False)
        assert state.clients_seen == 1


def test_plan_of_an_earlier_round_takes_no_step():
    """An earlier plan remains if this round's direction was not finite, and the state was kept."""
    state, _ = find_direction(None, unit_vectors(1, 1), [0, 1], 0)
    ladder = make_ladder(tf.constant(1.0), tf.constant(1.0), doublings=1, max_trials=4)
    search = Search(
        ladder,
        losses=tf.ones([2]),
        slopes=-tf.ones([2], tf.float64),
        live=tf.constant([True, True]),
        fairness_gradient=tf.zeros([2], tf.float64),
    )
    state = state._replace(plan=state.plan._replace(step=tf.constant(0.0), search=search))
    losses = Trials(tf.constant([0, 1]), tf.fill([2, 4], 0.5))  # they descend
    trials = Stack(losses, tf.ones([2]))
    moved, metrics = take_step(state, trials, tf.constant(0), 1e-4)
    assert metrics["accepted"] == 1
    assert metrics["step"] > 0.0
    assert np.any(moved.weights["w"] != state.weights["w"])
    kept, metrics = take_step(state, trials, tf.constant(1), 1e-4)
    assert metrics["accepted"] == 0
    assert metrics["step"] == 0.0
    assert_equal(kept, state)
