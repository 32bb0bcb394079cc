"""The options of `create_graph_context`, and what the executor refuses."""

import asyncio
import logging
import pathlib

import grpc
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from google.protobuf import any_pb2

from tests.marks import slow
from tff_pfl import runtime
from tff_pfl.names import UnknownNameError
from tff_pfl.runtime.graph.pfor_rules import NotVectorizableError
from tff_pfl.runtime.graph.values import CannotLowerError

VECTOR = tff.types.TensorType(np.float32, [3])
CLIENTS = [np.float32([i, 2 * i, -i]) for i in range(7)]


def build(step, condition):
    """Sums, over clients, what a loop makes of their vectors."""

    @tff.tensorflow.computation(VECTOR)
    def work(x):
        _, x = tf.while_loop(condition, step, (0, x))
        return x, tf.reduce_sum(x)

    @tff.federated_computation(tff.types.FederatedType(VECTOR, tff.CLIENTS))
    def train(x):
        y = tff.federated_map(work, x)
        return y, tff.federated_sum(y)

    return train


STEP = lambda i, x: (i + 1, 2 * tf.abs(x) + 1)  # noqa: E731
train = build(STEP, lambda i, x: tf.reduce_sum(x) < 100.0)  # of more steps for some clients
train_alike = build(STEP, lambda i, x: i < 4)


def mapped(function, member):
    function = tff.tensorflow.computation(function, member)

    @tff.federated_computation(tff.types.FederatedType(member, tff.CLIENTS))
    def at_clients(x):
        return tff.federated_map(function, x)

    return at_clients


def run(computation, *args, **options):
    with tff.framework.get_context_stack().install(runtime.create_graph_context(**options)):
        return computation(*args)


def assert_same(actual, expected):
    tf.nest.map_structure(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), actual, expected
    )


@pytest.fixture(scope="module")
def expected():
    return run(train, CLIENTS, vectorize="never", max_concurrent_clients=1)


@pytest.mark.parametrize("vectorize", ["always", "never"])
@pytest.mark.parametrize("max_concurrent_clients", [1, 3, slow(7), 20])
def test_clients_at_a_time_do_not_change_results(expected, vectorize, max_concurrent_clients):
    options = {"vectorize": vectorize, "max_concurrent_clients": max_concurrent_clients}
    assert_same(run(train, CLIENTS, **options), expected)


def test_xla_does_not_change_results():
    options = {"vectorize": "always", "jit_compile": True}
    assert_same(run(train_alike, CLIENTS, **options), run(train_alike, CLIENTS))


def test_arrays_may_stay_tensors():
    @tff.federated_computation(tff.types.FederatedType(VECTOR, tff.SERVER))
    def identity(x):
        return x

    kept = run(identity, CLIENTS[2], keep_tensors=True)
    assert isinstance(kept, tf.Tensor)
    assert isinstance(run(identity, kept), np.ndarray)
    np.testing.assert_array_equal(kept, CLIENTS[2])


def test_what_always_refuses():
    @tff.tensorflow.computation(VECTOR)
    def with_variable(x):
        return tf.Variable(x).assign_add(x)

    @tff.federated_computation(tff.types.FederatedType(VECTOR, tff.CLIENTS))
    def compute(x):
        return tff.federated_map(with_variable, x)

    with pytest.raises(NotVectorizableError, match="VarHandleOp|Variable"):
        run(compute, CLIENTS, vectorize="always")
    assert_same(run(compute, CLIENTS), [2 * x for x in CLIENTS])
    with pytest.raises(NotVectorizableError, match="shapes differ by client"):
        ragged = tff.types.TensorType(np.float32, [None])

        @tff.federated_computation(tff.types.FederatedType(ragged, tff.CLIENTS))
        def total(x):
            summed = tff.tensorflow.computation(lambda x: tf.reduce_sum(x), ragged)
            return tff.federated_map(summed, x)

        run(total, [np.float32([1]), np.float32([1, 2])], vectorize="always")


def test_always_refuses_data_sets():
    sequence = tff.types.SequenceType(np.float32)
    compute = mapped(lambda rows: rows.reduce(0.0, tf.add), sequence)
    with pytest.raises(NotVectorizableError, match=r"cannot be vectorized, .*: sequences$"):
        run(compute, [[1.0, 2.0], [3.0]], vectorize="always")
    assert run(compute, [[1.0, 2.0], [3.0]]) == [3.0, 3.0]
    of_its_own = mapped(
        lambda x: tf.data.Dataset.range(3).reduce(x, lambda s, _: s + x), np.float32
    )
    with pytest.raises(NotVectorizableError, match="Dataset"):
        run(of_its_own, [np.float32(1)] * 2, vectorize="always")
    assert run(of_its_own, [np.float32(1)] * 2) == [4.0, 4.0]


def test_clients_at_a_time_bound_the_memory():
    """Of 60 clients that need 16 MiB several times each, one after another and at once.

    Of what they need at once, half has to be new: TensorFlow's allocator keeps what it has ever
    had, and some of that may be free.
    """

    def work(x):
        return tf.reduce_sum(tf.sin(x[0] + tf.linspace(0.0, 1.0, 2**22)))

    at_clients, clients = mapped(work, VECTOR), [np.float32([i, 0, 0]) for i in range(60)]
    one_by_one, expected = peak_mib(
        lambda: run(at_clients, clients, vectorize="always", max_concurrent_clients=1)
    )
    at_once, results = peak_mib(lambda: run(at_clients, clients, vectorize="always"))
    assert_same(results, expected)
    assert at_once > 30 * 16 > 2 * one_by_one


def peak_mib(function):
    """How much memory the process needs at most during a call, beyond what it had before."""

    def status(key):
        lines = pathlib.Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(key)) / 2**10

    pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak is what there is now
    before = status("VmRSS")
    result = function()
    return status("VmHWM") - before, result


def test_unknown_choices():
    with pytest.raises(UnknownNameError, match="Did you mean 'always'"):
        runtime.create_graph_context(vectorize="allways")
    with pytest.raises(UnknownNameError, match="Unknown vectorize None"):
        runtime.create_graph_context(vectorize=None)
    for number in (0, -3, 2.5, "2", True):
        message = f"max_concurrent_clients must be a whole number of at least 1, got {number!r}"
        with pytest.raises(ValueError, match=message):
            runtime.create_graph_context(max_concurrent_clients=number)


def test_the_log_says_once_where_and_how_clients_are_computed(caplog):
    with caplog.at_level(logging.INFO, logger="absl"):
        context = runtime.create_graph_context()
        with tff.framework.get_context_stack().install(context):
            train(CLIENTS)
            train(CLIENTS[:3])
    messages = [record.getMessage() for record in caplog.records]
    assert any(m.startswith("Clients are computed on") and "CPU" in m for m in messages)
    [work_line] = [m for m in messages if m.startswith("Client work")]
    assert "float32[3]" in work_line
    assert work_line.endswith("vectorized over clients.")


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: tf.Variable(x).assign_add(x), "Var"),
        (lambda x: tf.strings.length(tf.strings.as_string(x)), "AsString"),
    ],
)
def test_the_log_says_why_clients_are_computed_in_a_loop(caplog, function, reason):
    with caplog.at_level(logging.INFO, logger="absl"):
        run(mapped(function, VECTOR), CLIENTS)
        run(mapped(lambda x: x + 1, VECTOR), CLIENTS, vectorize="never")
    why, never = [
        record.getMessage()
        for record in caplog.records
        if record.getMessage().startswith("Client work")
    ]
    assert "a loop over clients (" in why
    assert reason in why
    assert never.endswith("a loop over clients (vectorize='never').")


def appended_ones(number):
    """How many numbers there are after one more in each of `number` steps."""
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
        (losses_with_shared_labels, tff.types.TensorType(np.float32, [3, 4]), LOGITS),
    ],
)
def test_what_fails_only_when_it_is_vectorized_is_a_loop(caplog, function, member, clients):
    """The rule of TensorFlow makes a graph of it that cannot be run."""
    computation = mapped(function, member)
    expected = [function(tf.constant(client)).numpy() for client in clients]
    with caplog.at_level(logging.WARNING, logger="absl"):
        context = runtime.create_graph_context()
        with tff.framework.get_context_stack().install(context):
            for _ in range(2):
                assert_same(computation(clients), expected)
    warnings = [record.getMessage() for record in caplog.records if record.name == "absl"]
    assert sum("fails when it is run" in warning for warning in warnings) == 1


@pytest.mark.parametrize("vectorize", ["auto", "never"])
def test_an_error_of_client_work_is_an_error_once(vectorize):
    def checked(x):
        assertion = tf.debugging.assert_less(x, 2.0, "the client's own mistake")
        with tf.control_dependencies([assertion]):
            return tf.identity(x)

    computation = mapped(checked, np.float32)
    context = runtime.create_graph_context(vectorize=vectorize)
    with tff.framework.get_context_stack().install(context):
        assert computation([np.float32(1)]) == [1.0]
        for _ in range(2):
            with pytest.raises(tf.errors.InvalidArgumentError, match="own mistake") as raised:
                computation([np.float32(1), np.float32(3)])
            assert "pfor" not in str(raised.value)
            assert raised.value.__context__ is None
        assert computation([np.float32(1)]) == [1.0]


def test_a_cohort_of_another_size_than_was_inferred_is_refused():
    @tff.federated_computation(tff.types.FederatedType(np.float32, tff.CLIENTS))
    def total(x):
        return tff.federated_sum(x)

    for number in (1, 3):
        context = tff.framework.SyncExecutionContext(
            runtime.create_graph_context().executor_factory,
            cardinality_inference_fn=lambda *_, number=number: {tff.CLIENTS: number},
        )
        with (
            tff.framework.get_context_stack().install(context),
            pytest.raises(ValueError, match=f"Values of 2 clients for a cohort of {number}"),
        ):
            total([np.float32(1), np.float32(2)])


def test_the_number_of_clients_where_nothing_tells_it():
    @tff.federated_computation
    def count():
        return tff.federated_sum(tff.federated_value(1, tff.CLIENTS))

    assert run(count) == 0
    assert run(count, default_num_clients=3) == 3
    assert asyncio.run(
        _in_program(count, runtime.create_async_graph_context(default_num_clients=2))
    ) == (2)
    for number in (-1, 1.5, None):
        message = f"default_num_clients must be a whole number of at least 0, got {number!r}"
        with pytest.raises(ValueError, match=message):
            runtime.create_async_graph_context(default_num_clients=number)


async def _in_program(computation, context):
    with tff.framework.get_context_stack().install(runtime.ProgramContext(context)):
        return await tff.program.materialize_value(computation())


def test_data_that_are_elsewhere_are_refused():
    data = tff.framework.Data(any_pb2.Any(), tff.types.TensorType(np.int32))
    block = tff.framework.Lambda(None, None, data)
    with pytest.raises(CannotLowerError, match=r"cannot lower Data.*--runtime=cpp"):
        run(tff.framework.ConcreteComputation.from_building_block(block))


def test_a_construct_that_cannot_be_lowered_is_named():
    jax = pytest.importorskip("jax")
    add = tff.jax.computation(lambda x: jax.numpy.add(x, x), np.float32)
    with pytest.raises(CannotLowerError, match="xla"):
        run(add, 1.0)


def test_a_federated_program_whose_clients_keep_states():
    """As `tests/runtime/test_program.py` runs it in the stock runtime."""

    @tff.tensorflow.computation(VECTOR, VECTOR)
    def work(model, state):
        return state + model, tf.reduce_sum(state)

    @tff.tensorflow.computation(VECTOR, np.float32)
    def update(model, total):
        return model + total

    @tff.federated_computation(
        tff.types.FederatedType(VECTOR, tff.SERVER), tff.types.FederatedType(VECTOR, tff.CLIENTS)
    )
    def next_round(model, states):
        states, totals = tff.federated_map(work, (tff.federated_broadcast(model), states))
        total = tff.federated_sum(totals)
        return tff.federated_map(update, (model, total)), states, total

    def rounds(materialize, cohorts=(CLIENTS, CLIENTS[:2], [])):
        async def program():
            model, kept, totals = np.zeros(3, np.float32), [], []
            for cohort in cohorts:
                model, states, total = next_round(model, cohort)
                assert isinstance(total, tff.program.MaterializableValueReference) == materialize
                if materialize:
                    states = await tff.program.materialize_value(states)
                kept.append(states)
                totals.append(total)
            if materialize:
                return await tff.program.materialize_value((model, kept, totals))
            return model, kept, totals

        return program

    with tff.framework.get_context_stack().install(
        runtime.ProgramContext(runtime.create_async_graph_context())
    ):
        in_program = asyncio.run(rounds(True)())
    with tff.framework.get_context_stack().install(runtime.create_graph_context()):
        plain = asyncio.run(rounds(False)())
    assert_same(in_program, plain)


def test_errors_of_client_work_are_those_of_both_runtimes():
    """TFF's own tests, such as `IbltFactoryTest.test_string_max_bytes_error`, expect gRPC's."""

    def few(x):
        check = tf.debugging.Assert(x < 3, ["too many", x])
        with tf.control_dependencies([check]):
            return tf.identity(x)

    for vectorize in ("auto", "never"):
        with pytest.raises(grpc.RpcError, match=r"assertion failed: \[too many\] \[5\]") as failed:
            run(mapped(few, np.int32), [1, 5], vectorize=vectorize)
        assert isinstance(failed.value, tf.errors.InvalidArgumentError)
        assert failed.value.code() is grpc.StatusCode.INTERNAL
        assert "Failed to run computation: " in failed.value.details()
