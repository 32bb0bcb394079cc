"""Tests client work on CPUs that XLA compiles as loops over clients."""

import logging

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.federation import assert_close
from tests.marks import slow
from tests.runtime.conformance.cases import at_clients, mapped, tensor
from tests.runtime.graph.clients.training import CLIENT, COHORT, EXAMPLES, WEIGHTS, one_round
from tests.runtime.graph.clients.vectorizing import run
from tff_pfl import runtime
from tff_pfl.local import Examples
from tff_pfl.runtime.graph import devices
from tff_pfl.runtime.graph.clients.groups import Rows, in_parts

COMPILED = "a loop over clients, compiled by XLA"


@pytest.fixture(autouse=True)
def log(caplog):
    """Logs how clients are computed."""
    caplog.set_level(logging.INFO, logger="absl")


@pytest.mark.thorough
@pytest.mark.parametrize(
    "options", [{}, slow({"devices": ["CPU:0"] * 2}), slow({"vectorize": "never"})]
)
def test_results_equal_those_of_tensorflow(caplog, options):
    expected = run(one_round, WEIGHTS, COHORT, vectorize="never")
    assert_close(run(one_round, WEIGHTS, COHORT, jit_compile=True, **options), expected)
    assert sum(message.endswith(f"CPU:0: {COMPILED}.") for message in caplog.messages) == 2
    assert not any("fails when it runs" in message for message in caplog.messages)


def halved(x):
    """Divides by 2 in a loop, which is compiled."""
    return tf.while_loop(lambda x: tf.reduce_max(x) > 1, lambda x: [x / 2], [x])[0]


def test_rows_without_their_number_are_not_padded(caplog):
    """Computes the rows alone, whose padding work could not tell from them."""
    count = tff.tensorflow.computation(lambda x: tf.shape(halved(x))[0], EXAMPLES.x)

    @tff.federated_computation(at_clients(CLIENT))
    def counts(clients):
        return tff.federated_map(count, clients["data"].x)

    assert run(counts, COHORT[3:], jit_compile=True) == [16, 17]
    assert any("without their number" in message for message in caplog.messages)


@pytest.mark.thorough
def test_data_may_be_tensors():
    work = mapped(
        lambda client: halved(tf.reduce_sum(client["data"].x[: client["data"].size])), CLIENT
    )
    data = Examples(tf.fill([3, 3], 2.0), tf.zeros([3], tf.int32), np.int32(2))
    assert run(work, [{"id": np.int32(0), "data": data}], jit_compile=True) == [0.75]


@pytest.mark.thorough
def test_failing_work_raises_the_error_of_its_operation(caplog):
    work = mapped(lambda x: halved(tf.gather([[4.0], [6.0]], x)), np.int32)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"indices = 2 is not in \[0, 2\)"):
        run(work, [np.int32(0), np.int32(2)], jit_compile=True)
    message, _ = [message for message in caplog.messages if "fails when it runs" in message]
    assert "Client work fails in GatherV2" in message and message.endswith("without XLA.")


@pytest.mark.thorough
def test_eigenvalues_are_not_compiled(caplog):
    work = mapped(lambda x: halved(tf.linalg.eigvalsh(x)), tensor(np.float32, 2, 2))
    matrices = [np.diag([4, 8]).astype(np.float32)]
    assert_close(run(work, matrices, jit_compile=True), [np.float32([0.5, 1])])
    assert any("XLA's SelfAdjointEigV2 is slow" in message for message in caplog.messages)


def test_convolutions_are_not_compiled(caplog):
    shape = 1, 1, 1, 1
    work = mapped(
        lambda x: halved(tf.nn.conv2d(x, tf.ones(shape), 1, "VALID")), tensor(np.float32, *shape)
    )
    images = [np.full(shape, 6, np.float32)]
    assert_close(run(work, images, jit_compile=True), [0.75 * np.ones([1, 1, 1, 1])])
    assert any("XLA's convolutions are slow on CPUs" in message for message in caplog.messages)


@pytest.mark.thorough
def test_contexts_that_leave_it_open_compile_where_that_pays(caplog):
    work, context = mapped(halved, np.float32), runtime.create_graph_context()
    for pays, way in [(False, "vectorized over clients"), (True, COMPILED)]:
        with tff.framework.get_context_stack().install(context), runtime.compiling(pays):
            assert work([np.float32(6), np.float32(1)]) == [0.75, 1.0]
            assert runtime.pads_clients() == pays
        assert caplog.messages[-1].endswith(f"CPU:0: {way}.")


def test_parts_have_clients_of_similar_numbers_of_rows(monkeypatch):
    monkeypatch.setattr(devices, "num_cores", lambda: 4)
    shard = Rows("CPU:0", np.arange(2, 8, dtype=np.int32))
    rows = [9, 9, 16, 300, 65, 17, 0, 64]
    found = in_parts(shard, [(number,) for number in rows], size=150_000)
    (buffer,) = found.parts.buffers
    assert found.clients.tolist() == [3, 4, 7, 5, 2, 6]
    # Each core has two parts, and an eighth of the work is 58 rows.
    assert found.ends.tolist() == [1, 2, 3, 6]
    assert found.parts.places.tolist() == [1, 2, 10, 10]
    assert buffer.capacities.tolist() == [1024, 256, 64, 64]


def test_parts_have_buffers_for_training_and_test_examples():
    shard = Rows("CPU:0", np.arange(3, dtype=np.int32))
    found = in_parts(shard, [(10, 70), (100, 5), (64, 90)], size=1)
    assert found.clients.tolist() == [1, 2, 0]
    assert found.ends.tolist() == [1, 3]
    train, test = found.parts.buffers
    assert (train.capacities.tolist(), test.capacities.tolist()) == ([256, 64], [64, 256])
    assert found.parts.buffer([5, 90, 70]) is test


@pytest.mark.thorough
def test_draws_in_branches_are_those_of_each_client(caplog):
    def draw(x):
        seed = tf.stack([x, 1])
        number = tf.cond(
            x > 0, lambda: tf.random.stateless_uniform([], seed), lambda: tf.cast(x, tf.float32)
        )
        return halved(number + 1)

    work, cohort = mapped(draw, np.int32), [np.int32(number) for number in range(4)]
    expected = run(work, cohort, vectorize="never")
    np.testing.assert_allclose(run(work, cohort, jit_compile=True), expected, rtol=1e-6)
    assert caplog.messages[-1].endswith(f"CPU:0: {COMPILED}.")


@pytest.mark.thorough
def test_failures_in_branches_are_raised():
    def work(x):
        return halved(tf.cond(x > 0, lambda: tf.gather([4.0, 6.0], x), lambda: 2.0))

    with pytest.raises(tf.errors.InvalidArgumentError, match=r"indices = 2 is not in \[0, 2\)"):
        run(mapped(work, np.int32), [np.int32(0), np.int32(2)], jit_compile=True)


@pytest.mark.thorough
@pytest.mark.parametrize("function", [tf.sqrt, tf.math.rsqrt, tf.math.reciprocal])
def test_functions_of_complex_numbers_are_those_of_tensorflow(function):
    """XLA leaves out the conjugate in these gradients, and has another branch of `acosh`."""

    def gradient(x):
        z = tf.complex(halved(x), 1.0)
        with tf.GradientTape() as tape:
            tape.watch(z)
            imaginary = tf.math.imag(function(z))
        return tf.math.real(tape.gradient(imaginary, z))

    work, cohort = mapped(gradient, np.float32), [np.float32(3), np.float32(5)]
    expected = run(work, cohort, vectorize="never")
    np.testing.assert_allclose(run(work, cohort, jit_compile=True), expected, rtol=1e-6)
