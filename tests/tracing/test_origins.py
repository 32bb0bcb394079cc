"""Tests that errors at run time name the block and the user's line."""

import re
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow.python.util import tf_stack

from tests.runtime.conformance.cases import at_clients
from tests.templates.mean_process import clients, compose, examples, mean_exchange
from tff_pfl import runtime
from tff_pfl.experiment.fingerprint import fingerprint
from tff_pfl.runtime.graph.clients import mapping
from tff_pfl.runtime.graph.clients.pfor_rules import NotVectorizableError
from tff_pfl.tracing.trace import trace


def plain(index):
    return tf.gather([1.0, 2.0], index)


def in_loop(index):
    step = lambda i, x: (i + 1, x + tf.gather([1.0, 2.0], index))  # noqa: E731
    return tf.while_loop(lambda i, _: i < 2, step, (0, 0.0))[1]


def in_branch(index):
    return tf.cond(index > 1, lambda: tf.gather([1.0, 2.0], index), lambda: 0.0)


def in_function(index):
    return tf.function(plain)(index)


def in_data_set(index):
    rows = tf.data.Dataset.from_tensors(index).map(lambda i: tf.gather([1.0, 2.0], i))
    return rows.reduce(0.0, lambda total, x: total + x)


def line_of(function) -> str:
    """Returns the first line of a function's body, as messages have it."""
    return f" ({__file__}, line {function.__code__.co_firstlineno + 1})"


@pytest.fixture(autouse=True)
def stacks(monkeypatch):
    """Records where operations are made, unlike `cheap_tracing`."""
    monkeypatch.setattr(tf_stack, "extract_stack", tf_stack.extract_stack.__wrapped__)


@pytest.mark.parametrize("function", [plain, in_loop, in_branch, in_function, in_data_set])
def test_error_names_the_block_and_the_line(function):
    computation = trace("A block", function, tff.types.TensorType(np.int32))
    with tff.framework.get_context_stack().install(runtime.create_graph_context()):
        assert computation(1) in (0.0, 2.0, 4.0)
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            computation(95)
    place = line_of(plain if function is in_function else function)
    message = re.escape(f"{place}: indices = 95 is not in [0, 2)")
    assert re.fullmatch(rf"A block failed in \S*GatherV2\S*{message}", str(caught.value))


def map_on(function, clients, **options):
    work = trace("A block", function, tff.types.TensorType(np.int32))
    computation = tff.federated_computation(
        lambda values: tff.federated_map(work, values), at_clients(np.int32)
    )
    with tff.framework.get_context_stack().install(runtime.create_graph_context(**options)):
        return computation(clients)


def test_lines_and_files_do_not_change_the_identity():
    number, again = tff.types.TensorType(np.int32), "def plain(i): return tf.gather([1.0, 2.0], i)"
    exec(compile(again, "/elsewhere/method.py", "exec"), {"tf": tf}, here := {})
    first, second = (trace("A block", function, number) for function in (plain, here["plain"]))
    assert "elsewhere" in str(tff.framework.serialize_computation(second))
    assert fingerprint(first) == fingerprint(second)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_error_for_a_client_names_the_block(caplog, jit_compile):
    as_on_gpus = mock.patch.object(mapping.ClientMap, "compiles_loops", return_value=False)
    message = re.escape(f"A block failed in GatherV2{line_of(in_loop)}")
    with as_on_gpus, pytest.raises(tf.errors.InvalidArgumentError, match=f"^{message}"):
        map_on(in_loop, [0, 95], jit_compile=jit_compile)
    of_xla = f"Client work fails in GatherV2 of A block{line_of(in_loop)}: an index is out"
    assert any(of_xla in message for message in caplog.messages) == jit_compile


def spelled_in_loop(index):
    step = lambda i, _: (i + 1, tf.strings.as_string(index))  # noqa: E731
    return tf.while_loop(lambda i, _: i < 2, step, (0, ""))[1]


def test_work_that_cannot_be_vectorized_is_named_after_the_reason():
    message = r"requires: .*AsString\. It is A block, not compiled by XLA \(.*AsString\)\.$"
    with pytest.raises(NotVectorizableError, match=message):
        map_on(spelled_in_loop, [0, 95], vectorize="always", jit_compile=True)


@pytest.mark.thorough
@pytest.mark.parametrize("make_context", [runtime.create_graph_context, runtime.create_cpp_context])
def test_error_of_a_round_names_method_exchange_and_block(make_context):
    work = mean_exchange().client_work

    def client_work(server, state, data, context):
        output = work(server, state, data, context)
        return output._replace(weight=output.weight + plain(context.client_id))

    def finalize(server, change, round_num):
        return server + change, {"x": plain(round_num + 2)}

    for options, where in (
        ({"client_work": client_work}, "Exchange 'train' of mine: client_work"),
        ({"finalize": finalize}, "Exchange 'train' of mine: finalize"),
    ):
        process = compose(mean_exchange(**options), name="mine")
        with tff.framework.get_context_stack().install(make_context()):
            cohort = clients(process, examples(1, 2), examples(3), ids=[0, 2])
            with pytest.raises(Exception) as caught:
                process.next(process.initialize(), cohort)
        assert where in str(caught.value) and line_of(plain) in str(caught.value)
