"""Tests of `tff_pfl.algorithms.fedpg.step_ladder`."""

import math

import numpy as np
import pytest
import tensorflow as tf

from tests.marks import together
from tff_pfl.algorithms.fedpg.step_ladder import FAILED, choose_step, make_ladder

RATE = np.float32(0.1)
MAX_TRIALS = 30


def ladder_of(sigma, doublings=0, max_trials=MAX_TRIALS):
    sigma = tf.constant(sigma, tf.float64)
    return make_ladder(tf.constant(RATE), sigma, doublings=doublings, max_trials=max_trials)


def admissible(sigma, doublings, max_trials=MAX_TRIALS):
    """Returns the steps that a search tries if it accepts no step."""
    steps = [2.0**doublings * float(RATE)]
    while steps[-1] / 2 >= 0.5**doublings * float(RATE) / sigma and len(steps) < max_trials:
        steps.append(steps[-1] / 2)
    return steps


class TestLadder:
    @together(("doublings", "max_trials"), [(0, MAX_TRIALS), (5, MAX_TRIALS), (1, 4)])
    @together("sigma", [1.0, 3.999, 4.0])
    def test_steps_are_halved_down_to_the_lower_bound(self, sigma, doublings, max_trials):
        ladder = ladder_of(sigma, doublings, max_trials)
        assert ladder.steps.dtype == tf.float32 and ladder.steps.shape == [max_trials]
        expected = admissible(sigma, doublings, max_trials)
        np.testing.assert_array_equal(ladder.steps[: ladder.count], np.float32(expected))
        np.testing.assert_array_equal(ladder.steps[1:], ladder.steps[:-1] / 2)
        assert len(expected) <= 2 * doublings + 1 + math.ceil(math.log2(sigma))

    @together("sigma", [0.0, 1e-300, 0.5])
    def test_ladder_has_at_least_one_step(self, sigma):
        assert ladder_of(sigma).count == 1
        assert ladder_of(sigma, doublings=2).count == 5


def fairness_gradient(losses, live):
    """Computes the fairness gradient of the live losses; it is 0 for all others."""
    gradient, losses = np.zeros(len(losses)), losses.astype(np.float64)
    norm, total, root = np.linalg.norm(losses[live]), np.sum(losses[live]), math.sqrt(np.sum(live))
    gradient[live] = total * losses[live] / (root * norm**3) - 1.0 / (root * norm)
    return gradient


def choose_simply(losses, slopes, trial_losses, live=None, beta=0.5):
    """Chooses among steps 0.1, 0.05, 0.025; fairness must only not get worse."""
    losses = np.array(losses, np.float32)
    live = np.ones(len(losses), bool) if live is None else np.array(live)
    index, accepted = choose_step(
        ladder_of(4.0, max_trials=5),
        losses,
        np.array(slopes, np.float64),
        live,
        np.zeros(len(losses)),
        np.pad(np.array(trial_losses, np.float32), [[0, 0], [0, 2]]),
        sufficient_decrease=beta,
    )
    return index.numpy(), accepted.numpy()


class TestByHand:
    def test_largest_accepted_step_is_chosen(self):
        # Losses must be at most 1 - 0.5 eta: 0.95, 0.975, 0.9875.
        assert choose_simply([1.0], [-1.0], [[0.94, 0.0, 0.0]]) == (0, True)
        assert choose_simply([1.0], [-1.0], [[0.96, 0.97, 0.9]]) == (1, True)
        assert choose_simply([1.0], [-1.0], [[0.96, 0.98, 0.98]]) == (2, True)

    def test_all_clients_must_descend(self):
        first, second = [0.8, 0.9, 0.95], [0.99, 0.99, 0.98]
        assert choose_simply([1.0, 1.0], [-1.0, -1.0], [first, second]) == (0, False)
        assert choose_simply([1.0, 1.0], [-1.0, -1.0], [first, second], [True, False]) == (0, True)

    def test_unfair_step_is_not_accepted(self):
        losses, slopes = [1.0, 2.0], [-1.0, -1.0]
        trials = [[0.5, 0.9, 0.97], [1.9, 1.8, 1.9]]  # ratios 3.8, 2, 1.96
        assert choose_simply(losses, slopes, trials) == (1, True)

    @pytest.mark.parametrize(
        "slopes, trials, sign",
        [
            # Both losses decrease enough, and 1.77 / 0.92 < 2 is fairer, but not by enough.
            ([-1.0, -4.0], [[0.92, 0.95], [1.77, 1.80]], -1.0),
            # Fairness must not get worse even if its gradient predicts it.
            ([-4.0, -1.0], [[0.79, 0.8], [1.78, 1.5]], 1.0),
        ],
    )
    def test_fairness_must_decrease_with_its_gradient(self, slopes, trials, sign):
        losses, slopes, live = np.array([1.0, 2.0]), np.array(slopes), np.ones(2, bool)
        gradient = fairness_gradient(losses, live)
        assert np.sign(gradient @ slopes) == sign
        ladder = ladder_of(2.0, max_trials=2)
        index, accepted = choose_step(
            ladder,
            np.float32(losses),
            slopes,
            live,
            gradient,
            np.float32(trials),
            sufficient_decrease=0.5,
        )
        assert (index, accepted) == (1, True)

    def test_first_fallback_is_the_largest_step_that_lowers_the_sum(self):
        trials = [[1.5, 1.1, 1.2], [0.6, 0.8, 0.5]]
        assert choose_simply([1.0, 1.0], [-1.0, -1.0], trials) == (1, False)

    def test_second_fallback_is_the_step_with_the_smallest_sum(self):
        assert choose_simply([1.0], [-1.0], [[1.5, 1.1, 1.2]]) == (1, False)
        assert choose_simply([1.0], [-1.0], [[FAILED, FAILED, 1.2]]) == (2, False)
        assert choose_simply([1.0], [-1.0], [[FAILED, FAILED, FAILED]]) == (0, False)
