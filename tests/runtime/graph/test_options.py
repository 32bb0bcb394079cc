"""Tests the options of `create_graph_context`, its log messages and its errors."""

import logging
import pathlib

import grpc
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from google.protobuf import any_pb2

from tests.federation import assert_close, assert_equal
from tests.marks import together
from tests.runtime.conformance.cases import at_clients, identity, mapped, tensor
from tests.runtime.graph.clients.vectorizing import in_loop, run
from tff_pfl import runtime
from tff_pfl.arguments.names import UnknownNameError
from tff_pfl.runtime.graph.clients import loops
from tff_pfl.runtime.graph.clients.pfor_rules import NotVectorizableError
from tff_pfl.runtime.graph.values import CannotLowerError

VECTOR = tensor(np.float32, 3)
CLIENTS = [np.float32([i, 2 * i, -i]) for i in range(7)]


@pytest.fixture(autouse=True)
def log(caplog):
    """Logs how clients are computed."""
    caplog.set_level(logging.INFO, logger="absl")


@pytest.mark.thorough
@pytest.mark.parametrize(("vectorize", "max_concurrent_clients"), [("always", 3), ("never", 1)])
def test_max_concurrent_clients_does_not_change_results(vectorize, max_concurrent_clients):
    """Uses clients that need different numbers of steps."""

    def work(x):
        step = lambda x: [2 * tf.abs(x) + 1]  # noqa: E731
        (x,) = tf.while_loop(lambda x: tf.reduce_sum(x) < 100.0, step, [x])
        return x, tf.reduce_sum(x)

    train = mapped(work, VECTOR)
    options = {"vectorize": vectorize, "max_concurrent_clients": max_concurrent_clients}
    assert_close(run(train, CLIENTS, **options), run(train, CLIENTS))


# Vectorized client work that XLA compiles, as on GPUs.
XLA = {"vectorize": "always", "jit_compile": True}


def checked(x):
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(x < 9), [x])]):
        return tf.identity(x)


def second_derivative_of_pooling(x):
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            total = tf.reduce_sum(tf.nn.max_pool1d(x[tf.newaxis, :, tf.newaxis], 2, 1, "SAME") ** 3)
        gradient = tape.gradient(total, x)
    return outer.gradient(gradient, x)


@together(
    ("work", "reason"),
    [
        (checked, "XLA drops Assert"),
        (
            lambda x: x + tf.random.stateless_truncated_normal([3], [1, 2]),
            "XLA draws other numbers for StatelessTruncatedNormalV2",
        ),
        (lambda x: tf.math.bessel_i0(x), "XLA has no BesselI0"),
        (second_derivative_of_pooling, "XLA rounds the inputs of MaxPoolGradGrad"),
    ],
)
def test_work_that_xla_would_change_is_not_compiled(caplog, work, reason):
    computation, clients = mapped(lambda x: in_loop(work)(1, x), VECTOR), CLIENTS[:2]
    assert_equal(run(computation, clients, **XLA), run(computation, clients))
    assert any(f"not compiled by XLA ({reason})" in message for message in caplog.messages)


def convolved(x):
    images, filters = tf.reshape(x, [1, 1, 3, 1]), tf.reshape(x[:2], [1, 2, 1, 1])
    branches = (lambda: tf.nn.conv2d(images, filters, 1, "SAME"), lambda: images)
    return tf.reshape(tf.cond(x[0] > 1e6, *branches), [3])


def test_branches_that_convolve_are_not_compiled(caplog):
    """Compiles none, because XLA would end the process where no client takes the branch."""
    reason = "convolutions in a branch that perhaps no client takes"
    with pytest.raises(NotVectorizableError):
        run(mapped(lambda x: in_loop(convolved)(1, x), VECTOR), CLIENTS[:1], **XLA)
    assert any(reason in message for message in caplog.messages)


def test_work_whose_compilation_fails_runs_without_xla(caplog):
    """Compiles a loop whose tensor grows, which XLA finds out while it compiles."""
    computation = mapped(lambda x: appended_ones(2) + x, np.float32)
    clients = [np.float32(1), np.float32(2)]
    assert run(computation, clients, **XLA) == [4.0, 5.0]
    (message,) = [message for message in caplog.messages if "fails when it runs" in message]
    assert message.startswith("A round with compiled client work")
    assert message.endswith("without XLA.")


@pytest.mark.slow
def test_max_concurrent_clients_bounds_the_memory():
    """Runs 60 clients, each of which needs 16 MiB several times, one by one and at once.

    Only half of the memory for all clients must be new, since TensorFlow's allocator may have
    free memory from before.
    """

    def peak_mib(**options):
        def status(key):
            lines = pathlib.Path("/proc/self/status").read_text().splitlines()
            return next(int(line.split()[1]) for line in lines if line.startswith(key)) / 2**10

        pathlib.Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        before = status("VmRSS")
        clients = [np.float32([i, 0, 0]) for i in range(60)]
        run(mapped(work, VECTOR), clients, vectorize="always", **options)
        return status("VmHWM") - before

    def work(x):
        return tf.reduce_sum(tf.sin(x[0] + tf.linspace(0.0, 1.0, 2**22)))

    one_by_one = peak_mib(max_concurrent_clients=1)
    assert peak_mib() > 30 * 16 > 2 * one_by_one


@together(
    ("options", "error", "message"),
    [
        ({"vectorize": "allways"}, UnknownNameError, "vectorize"),
        ({"max_concurrent_clients": 0}, ValueError, "max_concurrent_clients"),
    ],
)
def test_unknown_options_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        runtime.create_graph_context(**options)


NOT_VECTORIZABLE = {
    "variable": (lambda x: tf.Variable(x).assign_add(x), np.float32, [1.0, 2.0], "Var"),
    "string": (lambda x: tf.strings.as_string(x), np.int32, [1, 2], "AsString"),
    "sequence": (
        lambda rows: rows.reduce(0.0, tf.add),
        tff.types.SequenceType(np.float32),
        [[1.0, 2.0], [3.0]],
        "sequences",
    ),
    "own sequence": (
        lambda x: tf.data.Dataset.range(3).reduce(x, lambda s, _: s + x),
        np.float32,
        [1.0, 2.0],
        "Dataset",
    ),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", NOT_VECTORIZABLE)
def test_unvectorizable_work_is_looped_or_refused(caplog, name):
    function, member, clients, reason = NOT_VECTORIZABLE[name]
    computation = mapped(function, member)
    with pytest.raises(NotVectorizableError, match=reason):
        run(computation, clients, vectorize="always")
    assert run(computation, clients) == run(computation, clients, vectorize="never")
    auto, never = [m for m in caplog.messages if m.startswith("Client work")]
    assert "a loop over clients (" in auto and reason in auto
    assert never.endswith("a loop over clients (vectorize='never').")


def test_log_names_devices_and_methods_once(caplog):
    double = mapped(lambda x: 2 * x, VECTOR)
    with tff.framework.get_context_stack().install(runtime.create_graph_context()):
        double(CLIENTS)
        double(CLIENTS[:3])
    assert any(m.startswith("Clients are computed on") and "PU" in m for m in caplog.messages)
    (work,) = [m for m in caplog.messages if m.startswith("Client work")]
    assert "float32[3]" in work and work.endswith("vectorized over clients.")


def appended_ones(number):
    """Appends a one in each of `number` steps, and returns the sum."""
    _, x = tf.while_loop(
        lambda i, _: i < number,
        lambda i, x: (i + 1, tf.concat([x, [1.0]], axis=0)),
        (0, tf.ones([1])),
        shape_invariants=(tf.TensorShape([]), tf.TensorShape([None])),
    )
    return tf.reduce_sum(x)


def losses_with_shared_labels(logits):
    labels = tf.nn.softmax(logits[:1])
    return tf.raw_ops.SoftmaxCrossEntropyWithLogits(features=logits, labels=labels).loss


LOGITS = [np.random.default_rng(i).normal(size=(3, 4)).astype(np.float32) for i in range(3)]


@pytest.mark.parametrize(
    ("function", "member", "clients"),
    [
        (appended_ones, np.int32, [np.int32(i) for i in (1, 3, 2)]),
        (losses_with_shared_labels, tensor(np.float32, 3, 4), LOGITS),
    ],
)
def test_work_whose_vectorized_graph_fails_is_looped(caplog, function, member, clients):
    """Tries functions of which TensorFlow's rule makes a graph that cannot run."""
    computation = mapped(function, member)
    expected = [function(tf.constant(client)).numpy() for client in clients]
    context = runtime.create_graph_context()
    with tff.framework.get_context_stack().install(context):
        for _ in range(2):
            assert_close(computation(clients), expected)
    assert sum("fails when it runs" in message for message in caplog.messages) == 1


@pytest.mark.parametrize("vectorize", ["auto", "never"])
def test_error_of_client_work_is_raised_and_does_not_persist(vectorize):
    """Checks that it is also an error of gRPC, as in the stock runtime."""

    def checked(x):
        assertion = tf.debugging.Assert(x < 2.0, ["the client's own mistake", x])
        with tf.control_dependencies([assertion]):
            return tf.identity(x)

    computation = mapped(checked, np.float32)
    context = runtime.create_graph_context(vectorize=vectorize)
    with tff.framework.get_context_stack().install(context):
        for _ in range(2):
            assert computation([np.float32(1)]) == [1.0]
            with pytest.raises(grpc.RpcError, match=r"own mistake\] \[3\]$") as raised:
                computation([np.float32(1), np.float32(3)])
            assert str(raised.value).startswith("assertion failed: [the client")
            assert isinstance(raised.value, tf.errors.InvalidArgumentError)
            assert raised.value.code() is grpc.StatusCode.INTERNAL
            assert "Failed to run computation: " in raised.value.details()


@pytest.mark.parametrize("number", [1, 3])
def test_cohort_of_another_size_is_refused(number):
    context = tff.framework.SyncExecutionContext(
        runtime.create_graph_context().executor_factory,
        cardinality_inference_fn=lambda *_: {tff.CLIENTS: number},
    )
    with (
        tff.framework.get_context_stack().install(context),
        pytest.raises(ValueError, match=f"values of {number} clients, the cohort, found 2"),
    ):
        identity(at_clients(np.float32))([1.0, 2.0])


def data_elsewhere():
    data = tff.framework.Data(any_pb2.Any(), tff.types.TensorType(np.int32))
    block = tff.framework.Lambda(None, None, data)
    return tff.framework.ConcreteComputation.from_building_block(block)


def jax_computation():
    return tff.jax.computation(lambda: np.float32(1))


@pytest.mark.parametrize(
    ("build", "message"),
    [(data_elsewhere, r"cannot lower Data.*--runtime=cpp"), (jax_computation, "not 'xla'")],
)
def test_error_names_an_unsupported_construct(build, message):
    with pytest.raises(CannotLowerError, match=message):
        run(build())


STRUCT = tff.types.to_type([("b", np.float32), ("a", np.int32)])


@together(
    ("value", "expected"),
    [
        ({"a": 1, "b": 2.5}, (2.5, 1)),
        ({"a": np.int64(7), "b": 2.5}, (2.5, 7)),
    ],
)
def test_structures_are_matched_by_name_and_accept_numpy_integers(value, expected):
    """Differs from the stock runtime, which matches by position only and confuses elements."""
    assert tuple(run(identity(at_clients(STRUCT)), [value])[0].values()) == expected


def test_integers_beyond_their_type_are_refused():
    with pytest.raises(TypeError, match="int32"):
        run(identity(at_clients(STRUCT)), [{"a": np.int64(2**31), "b": 2.5}])


def test_large_results_of_loops_are_mapped_and_summed_without_a_stack(monkeypatch):
    grow = tff.tensorflow.computation(lambda x: tf.range(16384.0) * x[0], VECTOR)
    halve = tff.tensorflow.computation(lambda y: y / 2, grow.type_signature.result)

    @tff.federated_computation(at_clients(VECTOR))
    def total(clients):
        return tff.federated_sum(tff.federated_map(halve, tff.federated_map(grow, clients)))

    monkeypatch.setattr(loops.Listed, "tensor", property(lambda leaf: pytest.fail("stacked")))
    expected = np.arange(16384) * sum(client[0] for client in CLIENTS) / 2
    np.testing.assert_allclose(run(total, CLIENTS, vectorize="never"), expected, rtol=1e-6)


def test_large_results_may_be_summed_before_they_are_returned():
    size = 1 << 14
    kind = tff.types.TensorType(np.float32, [size])
    grow = tff.tensorflow.computation(lambda x: (tf.range(float(size)) * x[0], x[0]), VECTOR)
    halve = tff.tensorflow.computation(
        lambda y: ((y[0] / 2, y[1]), y[0] > size / 2), (kind, np.float32)
    )
    first = tff.federated_computation(lambda it: it[0], halve.type_signature.result)

    @tff.federated_computation(at_clients(VECTOR))
    def both(clients):
        halves = tff.federated_map(halve, tff.federated_map(grow, clients))
        return tff.federated_sum(tff.federated_map(first, halves)), halves

    total, halves = run(both, CLIENTS, vectorize="never")
    for (found, is_more), client in zip(halves, CLIENTS, strict=True):
        np.testing.assert_allclose(found[0], np.arange(size) * client[0] / 2, rtol=1e-6)
        np.testing.assert_array_equal(is_more, found[0] > size / 4)
        assert found[1] == client[0]
    for leaf, summed in enumerate(total):
        np.testing.assert_allclose(summed, sum(found[leaf] for found, _ in halves), rtol=1e-6)
