"""Tests client work that is computed side by side, with each client's own number of steps."""

import logging

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from benchmarks.contestants.common import lognormal_sizes
from tests.federation import EXAMPLES_TYPE, assert_close, local_sgd, make_clients, tiny_model
from tests.runtime.conformance.cases import mapped
from tests.runtime.graph.clients.training import CLIENT, COHORT, WEIGHTS, client, one_round
from tests.runtime.graph.clients.vectorizing import run
from tests.runtime.graph.subprocesses import run_script
from tff_pfl import algorithms, runtime
from tff_pfl.runtime.graph.clients.cohorts import Cohorts, Forms, in_lanes
from tff_pfl.runtime.graph.clients.groups import Rows
from tff_pfl.runtime.graph.clients.lanes import prefixes
from tff_pfl.runtime.graph.clients.pfor_rules import NotVectorizableError

JIT = pytest.mark.parametrize("jit_compile", [False, True])


@pytest.fixture(autouse=True)
def log(caplog):
    """Logs how clients are computed."""
    caplog.set_level(logging.INFO, logger="absl")


def assert_in_lanes(caplog, number, jit_compile):
    """Checks how many functions were computed in lanes; the one with loops may be compiled."""
    ways = [message.partition("CPU:0: ")[2] for message in caplog.messages]
    compiled = ways.count("clients side by side, compiled by XLA.")
    assert compiled == jit_compile
    assert compiled + ways.count("clients side by side.") == number
    assert not any("fails when it runs" in message for message in caplog.messages)


def in_lanes_and_in_a_loop(computation, *args, jit_compile):
    found = run(computation, *args, vectorize="always", jit_compile=jit_compile)
    return found, run(computation, *args, vectorize="never", jit_compile=False)


@JIT
def test_results_equal_those_of_a_loop(caplog, jit_compile):
    assert_close(*in_lanes_and_in_a_loop(one_round, WEIGHTS, COHORT, jit_compile=jit_compile))
    assert_in_lanes(caplog, 2, jit_compile)


@JIT
@pytest.mark.thorough
@pytest.mark.parametrize("options", [{"max_concurrent_clients": 2}, {"devices": ["CPU:0"] * 2}])
def test_clients_may_be_in_parts(caplog, options, jit_compile):
    found = run(one_round, WEIGHTS, COHORT, vectorize="always", jit_compile=jit_compile, **options)
    assert_close(found, run(one_round, WEIGHTS, COHORT, vectorize="never"))
    assert_in_lanes(caplog, 2, jit_compile)


def test_nobody_may_be_in_a_cohort():
    with runtime.compiling(False, runtime.Cohorts(3, 60, 100.0)):
        kernels, loss, *_ = run(one_round, WEIGHTS, [], vectorize="always", jit_compile=False)
    assert (kernels, loss) == ([], 0)


@pytest.mark.thorough
@pytest.mark.parametrize("cohort", [COHORT[:1], COHORT[2:3], [client(i, 12) for i in range(7)]])
def test_few_and_equal_clients(caplog, cohort):
    assert_close(*in_lanes_and_in_a_loop(one_round, WEIGHTS, cohort, jit_compile=True))
    assert_in_lanes(caplog, 2, True)


def counted(client, steps):
    """Sums examples in loops within a loop; of each, a client makes its own number of steps."""
    x = client["data"].x

    def inner(i):
        return tf.while_loop(
            lambda j, _: j < steps - i, lambda j, s: (j + 1, s + x[j % 7, 0]), (0, 0.0)
        )

    def outer(i, last, total):
        last, added = inner(i)
        return i + 1, last, total + added

    return tf.while_loop(lambda i, *_: i * 2 < steps, outer, (0, -1, 0.0))


@JIT
@pytest.mark.thorough
def test_clients_may_leave_loops_in_any_order(caplog, jit_compile):
    """The largest client makes the fewest steps, and one makes none; counts are each client's."""
    cohort = [client(i, size) for i, size in enumerate((20, 8, 12, 16, 10, 24))]
    work = mapped(lambda client: counted(client, 24 - client["data"].size), CLIENT)
    assert_close(*in_lanes_and_in_a_loop(work, cohort, jit_compile=jit_compile))
    assert_in_lanes(caplog, 1, jit_compile)


@JIT
def test_clients_that_left_a_loop_are_not_in_those_within(caplog, jit_compile):
    """In the step after its last, a client would never leave the inner loop."""

    def work(client):
        size = client["data"].size

        def inner(i, total):
            return tf.while_loop(
                lambda left, _: tf.not_equal(left, 0),
                lambda left, total: (left - 1, total + left),
                (size - i - 1, total),
            )[1]

        return tf.while_loop(
            lambda i, _: i < size, lambda i, total: (i + 1, inner(i, total)), (0, 0)
        )[1]

    cohort = [client(i, size) for i, size in enumerate((3, 1, 5))]
    found = in_lanes_and_in_a_loop(mapped(work, CLIENT), cohort, jit_compile=jit_compile)
    assert found == ([4, 0, 20], [4, 0, 20])
    assert_in_lanes(caplog, 1, jit_compile)


def test_refusal_says_why():
    def convolved(client):
        x = client["data"].x
        images, filters = tf.reshape(x, [1, -1, 3, 1]), tf.reshape(x[0], [1, 3, 1, 1])
        return tf.reduce_sum(tf.nn.conv2d(images, filters, 1, "SAME"))

    with pytest.raises(NotVectorizableError, match=r"requires: Conv2D: .* has a filter"):
        run(mapped(convolved, CLIENT), COHORT[:2], vectorize="always", jit_compile=False)


def divided(client, over):
    """Divides by the number of examples that are left, up to `over` after the last."""
    size = client["data"].size
    return tf.while_loop(
        lambda i, _: i < size + over, lambda i, total: (i + 1, total + 60 // (size - i)), (0, 0)
    )[1]


def test_only_clients_in_a_loop_fail(caplog):
    """Others would divide by 0."""
    cohort = [client(i, size) for i, size in enumerate((3, 1, 5))]
    found = run(
        mapped(lambda client: divided(client, 0), CLIENT),
        cohort,
        vectorize="always",
        jit_compile=True,
    )
    assert found == [20 + 30 + 60, 60, 12 + 15 + 20 + 30 + 60]
    assert_in_lanes(caplog, 1, True)


@pytest.mark.thorough
def test_clients_in_a_loop_fail(caplog):
    work = mapped(lambda client: divided(client, 1), CLIENT)
    with pytest.raises(tf.errors.InvalidArgumentError, match="[Dd]ivision by zero"):
        run(work, [client(0, 3), client(1, 1)], vectorize="always", jit_compile=True)
    assert any("an integer is divided by 0" in message for message in caplog.messages)


@JIT
@pytest.mark.thorough
def test_all_rows_of_a_client_may_be_used_at_once(caplog, jit_compile):
    def work(client):
        x, y, size = client["data"]
        is_example = tf.range(tf.shape(y)[0]) < size
        masked = tf.where(is_example[:, tf.newaxis], x, tf.zeros_like(x))
        added = tf.reduce_sum(masked, axis=0), tf.reduce_sum(tf.where(is_example, y, 0))
        return tf.while_loop(
            lambda i, *_: i < 2,
            lambda i, x, y: (i + 1, x + added[0], y + added[1]),
            (0, tf.zeros([3]), 0),
        )

    found, expected = in_lanes_and_in_a_loop(mapped(work, CLIENT), COHORT, jit_compile=jit_compile)
    assert_close(found, expected)
    assert_in_lanes(caplog, 1, jit_compile)


@pytest.mark.parametrize(
    ("lanes", "size", "expected"),
    [(1, 1, (1,)), (3, 1_000, (3, 1)), (100, 1_000, (100, 25, 7, 2)), (100, 20, (100,))],
)
def test_prefixes_are_a_quarter_each_while_that_saves_time(lanes, size, expected):
    assert prefixes(lanes, False, size, is_gpu=False) == expected
    assert prefixes(lanes, False, 500 * size, is_gpu=True) == expected
    assert prefixes(lanes, True, size, is_gpu=False) == (lanes,)


def sorted_for_lanes(clients, rows, forms=None, expected=None, limit=None):
    shard = Rows("CPU:0", np.arange(clients, dtype=np.int32))
    return in_lanes(shard, rows, forms or Forms(), 10_000, expected, limit).parts


@pytest.mark.parametrize(("is_known", "most"), [(True, 3), (False, 4)])
@pytest.mark.parametrize(("clients", "mean"), [(10, 60), (30, 60), (30, 500), (100, 60)])
def test_cohorts_of_unequal_clients_have_few_forms(clients, mean, is_known, most):
    """XLA compiles again for other lanes, rows of a client, and lengths of the buffer."""
    rng, population = np.random.default_rng(0), lognormal_sizes(1000, mean)
    forms, found = Forms(), set()
    expected = Cohorts.of(clients, population) if is_known else None
    for _ in range(20):
        number = rng.poisson(clients) if is_known else clients
        rows = [(size,) for size in rng.choice(population, number, replace=False).tolist()]
        parts = sorted_for_lanes(number, rows, forms, expected)
        (buffer,) = parts.buffers
        found.add((parts.prefixes, *buffer.capacities.tolist(), buffer.length))
    assert len(found) <= most


@pytest.mark.parametrize(
    ("expected", "clients", "lanes"),
    [
        (None, [1, 7, 16, 17, 30, 100, 128, 129], [1, 7, 16, 18, 30, 104, 128, 144]),
        (30, [1, 30, 31, 45, 46, 60, 61, 91], [30, 30, 45, 45, 60, 60, 90, 120]),
    ],
)
def test_numbers_of_clients_share_numbers_of_lanes(expected, clients, lanes):
    cohorts = expected and Cohorts(expected, 100, 500.0)
    found = [sorted_for_lanes(n, [(5,)] * n, expected=cohorts) for n in clients]
    assert [parts.prefixes[0] for parts in found] == lanes


@pytest.mark.parametrize(("clients", "limit", "places"), [(3, 2, [2, 2]), (3, 5, [5]), (3, 9, [8])])
def test_parts_have_at_most_as_many_lanes_as_the_limit(clients, limit, places):
    parts = sorted_for_lanes(clients, [(5,)] * clients, expected=Cohorts(8, 5, 40), limit=limit)
    assert parts.places.tolist() == places


@pytest.mark.parametrize(("expected", "capacity"), [(None, 4096), (500, 500), (250, 4096)])
def test_clients_have_the_most_expected_rows(expected, capacity):
    cohorts = expected and Cohorts(2, expected, 100.0)
    (buffer,) = sorted_for_lanes(2, [(20,), (300,)], expected=cohorts).buffers
    assert buffer.capacities == [capacity]


@pytest.mark.parametrize(
    ("examples", "rows", "length"),
    [(100.0, (20, 300), 1024), (1_400.0, (20, 300), 2048), (1_400.0, (2_000, 1_100), 4096)],
)
def test_buffers_have_room_for_most_cohorts(examples, rows, length):
    parts = sorted_for_lanes(2, [(n,) for n in rows], expected=Cohorts(2, 5_000, examples))
    assert parts.buffers[0].length == length


@pytest.mark.parametrize(
    ("sizes", "clients", "examples"),
    [([5] * 9, 4, 20), ([1, 3] * 50, 100, 200), ([1, 3] * 50, 4, 12), ([1, 3] * 50, 16, 40)],
)
def test_most_cohorts_have_two_deviations_more_examples_than_the_mean(sizes, clients, examples):
    """For sizes of 1 and 3: 2 * clients + 2 * sqrt(clients), and no more than the largest have."""
    assert Cohorts.of(clients, np.array(sizes)) == (clients, max(sizes), examples)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "options", "compiled"),
    [
        ("fedavg", {"epochs": None, "steps": 7}, ["Exchange 'train' of fedavg: client_work"]),
        (
            "per_fedavg",
            {"epochs": 2},
            ["Exchange 'train' of per_fedavg: client_work", "personalize of per_fedavg"],
        ),
    ],
)
def test_passes_over_examples_may_differ_in_number(caplog, name, options, compiled):
    """Loops over the examples of a client are within others, or follow one another."""
    process = algorithms.build(name, tiny_model(), EXAMPLES_TYPE, local_sgd(0.1, **options))
    clients = make_clients(process, [9, 0, 23])

    def trained(**way):
        with tff.framework.get_context_stack().install(runtime.create_graph_context(**way)):
            state, *_ = process.next(process.initialize(), clients)
            return state, process.personalize(state, clients)

    found = trained(vectorize="always", jit_compile=True)
    assert [
        message.split(", ")[1]
        for message in caplog.messages
        if message.endswith("clients side by side, compiled by XLA.")
    ] == compiled
    assert_close(found, trained(vectorize="never", jit_compile=False))


@pytest.mark.thorough
@pytest.mark.parametrize(("method", "sampling"), [("fedavg", "poisson"), ("pgfed", "fixed")])
def test_few_programs_are_compiled_in_a_training(tmp_path, method, sampling):
    """At most three for rounds, and one for the evaluation of each model."""
    flags = f"--xla_dump_to={tmp_path} --xla_dump_hlo_as_text"
    found = run_script("compilations", tmp_path, method, sampling, env={"XLA_FLAGS": flags})
    assert 3 <= int(found) <= 5
