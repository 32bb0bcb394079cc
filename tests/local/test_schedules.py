"""Tests learning rates over rounds against closed forms."""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.local import SCHEDULES, LocalTraining

SGD = tff.learning.optimizers.build_sgdm(0.5)


def rates(**options):
    local = LocalTraining(SGD, **options)
    return [float(local.learning_rate(tf.constant(t))) for t in range(8)]


FACTORS = [
    (SCHEDULES["constant"](), [1] * 8),
    (SCHEDULES["cosine"](rounds=4), [1, 0.853553, 0.5, 0.146447, 0, 0, 0, 0]),
    (SCHEDULES["cosine"](rounds=2, least=0.2), [1, 0.6, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2]),
    (SCHEDULES["step"](every=3, factor=0.1), [1, 1, 1, 0.1, 0.1, 0.1, 0.01, 0.01]),
]


def test_schedules_have_the_documented_factors():
    for schedule, factors in FACTORS:
        np.testing.assert_allclose(rates(schedule=schedule), np.multiply(0.5, factors), atol=1e-6)
    assert rates() == rates(schedule=SCHEDULES["constant"]()) == [0.5] * 8


def test_step_schedule_is_exact_in_a_graph():
    """Uses divisors for which the graph's factor is slightly less than 1 / every."""
    for every in (41, 55):
        factor = tf.function(SCHEDULES["step"](every=every, factor=0.5), autograph=False)
        for number in range(1, 8):
            for round_num in (number * every - 1, number * every):
                assert factor(tf.constant(float(round_num))) == 0.5 ** (round_num // every)


def test_schedule_decay_and_warm_up_multiply():
    options = {"learning_rate_decay": 0.9, "warm_up_rounds": 4}
    expected = [0.5 * 0.9**t * min(1, (t + 1) / 4) * 0.1 ** (t // 2) for t in range(8)]
    found = rates(schedule=SCHEDULES["step"](every=2), **options)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
