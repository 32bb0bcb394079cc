"""Tests of `tff_pfl.templates.averaging`: weights, aggregators and server optimizers."""

import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.federation import (
    COHORTS,
    assert_close,
    assert_equal,
    leaves,
    local_sgd,
    run_rounds,
    traced,
)
from tests.marks import slow, together
from tests.quadratics import objectives, quadratic_clients, quadratic_model, vector_of
from tests.templates.mean_process import EXAMPLES_TYPE, Visits, clients, examples, mean_value
from tff_pfl import templates
from tff_pfl.templates import ClientOutput, SharedPart, averaging, errors
from tff_pfl.testing.eager import EagerProcess
from tff_pfl.tracing.errors import TemplateError

pytestmark = pytest.mark.usefixtures("clients_in_a_loop")

build_sgdm, build_adam = tff.learning.optimizers.build_sgdm, tff.learning.optimizers.build_adam
START = np.array([1.0, 2.0])


def mean_algorithm(**options):
    """Makes an algorithm whose uploads and personal models contain a client's mean value."""

    def client_work(weights, state, data, context):
        return ClientOutput(Visits(state.count + 1), mean_value(data) - weights)

    return averaging(
        lambda seed: tf.constant(START, tf.float32),
        client_work,
        personalize=lambda weights, state, data, context: weights + mean_value(data),
        client_init=lambda client_id, seed: Visits(tf.constant(0)),
        **{"global_weights": lambda weights: 10.0 * weights, **options},
    )


DATA = examples(3.0, 5.0, 4.0), examples(8.0)  # means of 4 and 8


def after_a_round(algorithm, data=DATA):
    process = EagerProcess(algorithm)
    return process.next(process.initialize(), clients(process, *data))


class TestWeighting:
    @pytest.mark.parametrize(
        ("weighting", "mean"),
        [
            ("num_examples", 5.0),
            ("uniform", 6.0),
            (lambda data: tf.reduce_max(data.x), (5.0 * 4.0 + 8.0 * 8.0) / 13.0),
        ],
    )
    def test_clients_weigh_by_examples_or_uniformly_or_by_a_function(self, weighting, mean):
        output = after_a_round(mean_algorithm(weighting=weighting))
        np.testing.assert_allclose(output.state.algorithm.weights, [mean, mean], rtol=1e-6)
        assert [own.count for own in output.clients] == [1, 1]

    @pytest.mark.parametrize("weight", [2.0, tf.constant(1.0)], ids=str)
    def test_client_work_must_not_set_a_weight(self, weight):
        def client_work(weights, state, data, context):
            return ClientOutput(state, mean_value(data) - weights, weight=weight)

        with pytest.raises(errors.BlockResultError, match="`averaging` sets .* by its `weighting`"):
            after_a_round(averaging(lambda seed: tf.constant([1.0, 2.0]), client_work, None))


@together(
    ("returned", "message"),
    [
        (lambda state, change: ClientOutput(state), "(?s)upload the change .*expected: .*float32"),
        (lambda state, change: ClientOutput(state, change[:1]), r"(?s)found: .*float32\[1\]"),
        (lambda state, change: (state, change), "not ClientOutput"),
    ],
)
def test_upload_must_be_a_change_of_the_shared_part(returned, message):
    def client_work(weights, state, data, context):
        return returned(state, mean_value(data) - weights)

    algorithm = averaging(
        lambda seed: tf.constant([1.0, 2.0]), client_work, lambda weights, *rest: weights
    )
    with pytest.raises(TemplateError, match=message):
        templates.compose(algorithm, EXAMPLES_TYPE)


def test_algorithm_has_the_given_parts():
    algorithm = mean_algorithm(client_snapshot=lambda state: {"count": state.count})
    process = EagerProcess(algorithm)
    state = process.initialize()
    assert isinstance(state.algorithm, SharedPart)
    assert state.algorithm.optimizer == ()
    cohort = clients(process, *DATA)
    np.testing.assert_allclose(process.personalize(state, cohort), [[5.0, 6.0], [9.0, 10.0]])
    np.testing.assert_allclose(process.global_weights(state), [10.0, 20.0])
    assert process.client_snapshot([Visits(3)]) == [{"count": 3}]
    without = averaging(lambda seed: 0.0, lambda *args: None, personalize=lambda *args: 0.0)
    assert without.global_weights is without.client_snapshot is None
    assert without.client_init(0, 1) == ()


def test_aggregator_replaces_the_mean():
    """Tests that the server's step is the aggregator's result, here the sum of changes."""
    algorithm = mean_algorithm(aggregator=tff.aggregators.SumFactory())
    process = templates.compose(algorithm, EXAMPLES_TYPE)
    output = process.next(process.initialize(), clients(process, *DATA))
    changes = np.array([[3.0, 2.0], [7.0, 6.0]])
    np.testing.assert_allclose(output.state.algorithm.weights, START + sum(changes), rtol=1e-6)


# Server optimizers, for methods with quadratic clients.
MODEL, LOCAL = quadratic_model(2, 1), local_sgd(learning_rate=0.2, epochs=2, batch_size=1)


@functools.cache
def process_of(name, optimizer=None):
    return traced(name, MODEL, LOCAL, seed=2, server_optimizer=optimizer)


@functools.cache
def run(name, optimizer):
    """Returns `(state, clients)` before the first round and after each round."""
    process = process_of(name, optimizer)
    start = process.initialize(), quadratic_clients(process, *objectives(), [1] * 3)
    return [start, *run_rounds(process, start[1], COHORTS)]


def shared_of(state):
    return vector_of(state.algorithm.weights).astype(np.float64)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["fedavg", slow("ditto"), slow("fedper")])
def test_sgd_with_rate_1_equals_no_optimizer(name):
    expected, found = run(name, None), run(name, build_sgdm(1.0))
    for (state, ours), (plain, theirs) in zip(found, expected, strict=True):
        assert_equal(state.algorithm.weights, plain.algorithm.weights)
        assert_equal([c.state for c in ours], [c.state for c in theirs])


def fedavgm(rate=0.7, momentum=0.5):
    velocity = 0.0

    def step(w, change):
        nonlocal velocity
        velocity = momentum * velocity + change
        return w + rate * velocity

    return step


def fedadam(rate=0.1, beta_1=0.9, beta_2=0.999, epsilon=1e-3):
    m, v, t = 0.0, 0.0, 0

    def step(w, change):
        nonlocal m, v, t
        t += 1
        m = beta_1 * m + (1 - beta_1) * change
        v = beta_2 * v + (1 - beta_2) * change**2
        corrected = rate * np.sqrt(1 - beta_2**t) / (1 - beta_1**t)
        return w + corrected * m / (np.sqrt(v) + epsilon)

    return step


OPTIMIZERS = {
    "half": (build_sgdm(0.5), lambda: lambda w, change: w + 0.5 * change),
    "fedavgm": (build_sgdm(0.7, momentum=0.5), fedavgm),
    "fedadam": (build_adam(0.1, epsilon=1e-3), fedadam),
}


# The fast tests cover each method once, and each optimizer once.
ROUNDS = {("fedavg", "fedadam"), ("fedper", "half")}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pair if pair in ROUNDS else slow(*pair)
        for pair in itertools.product(("fedavg", "ditto", "fedper"), OPTIMIZERS)
    ],
)
def test_server_optimizer_agrees_with_numpy(name, kind):
    """Takes the mean change of a round from a server without optimizer at the same weights."""
    optimizer, by_hand = OPTIMIZERS[kind]
    step, plain, rounds = by_hand(), process_of(name), run(name, optimizer)
    for (before, all_clients), (after, _), cohort in zip(rounds, rounds[1:], COHORTS, strict=False):
        without = before.algorithm._replace(optimizer=())
        mean = plain.next(
            before._replace(algorithm=without), [all_clients[i] for i in cohort]
        ).state
        change = shared_of(mean) - shared_of(before)
        assert_close(shared_of(after), step(shared_of(before), change))


def test_optimizer_state_is_kept_if_no_client_is_accepted():
    process = EagerProcess(mean_algorithm(server_optimizer=build_sgdm(0.5, momentum=0.9)))
    state = process.next(process.initialize(), clients(process, *DATA)).state
    assert np.any(leaves(state.algorithm.optimizer)[-1] != 0)
    for data in ((examples(), examples()), (examples(np.nan),)):
        output = process.next(state, clients(process, *data))
        assert output.metrics["train"]["server_kept"] == 1
        assert_equal(output.state.algorithm, state.algorithm)
    again = process.next(output.state, clients(process, *DATA)).state
    direct = process.next(state, clients(process, *DATA)).state
    assert_equal(again.algorithm, direct.algorithm)
