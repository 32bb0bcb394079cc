"""Tests the choice of the context in which the library computes."""

import concurrent.futures
import threading
import types

import pytest
import tensorflow_federated as tff

from tests.runs import run_python
from tff_pfl import runtime
from tff_pfl.runtime.graph import contexts

STACK = tff.framework.get_context_stack()

PROGRAM = """
import tensorflow_federated as tff
import tff_pfl.runtime

{set_context}
before = tff.framework.get_context_stack().current
with tff_pfl.runtime.current_or_graph_context():
    print(tff.framework.get_context_stack().current is before)
"""


def context_of_tff():
    factory = tff.framework.ResourceManagingExecutorFactory(None)
    return tff.framework.SyncExecutionContext(factory)


@runtime.current_or_graph_context()
def chosen():
    return STACK.current


def test_context_that_was_set_is_kept():
    for context in (runtime.create_graph_context(), context_of_tff()):
        with STACK.install(context):
            assert chosen() is context


def test_graph_context_replaces_that_of_a_new_thread_and_the_default_of_tff(monkeypatch):
    before = STACK.current
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        assert type(thread.submit(chosen).result()) is type(runtime.create_graph_context())
    default = context_of_tff()
    first = [threading.main_thread(), default._async_runner._thread]
    monkeypatch.setattr(threading, "enumerate", lambda: [*first, before._async_runner._thread])
    with STACK.install(default):
        assert type(chosen()) is type(before)
    assert STACK.current is before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("set_context", "is_kept"),
    [
        ("", False),
        ("tff.backends.native.set_sync_local_cpp_execution_context()", True),
        ("tff_pfl.set_cpp_context()", True),
        ("tff_pfl.set_graph_context()", True),
    ],
)
def test_default_of_tff_is_told_from_a_context_that_a_program_sets(tmp_path, set_context, is_kept):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(set_context=set_context))
    ended = run_python(program)
    assert ended.stdout == f"{is_kept}\n", ended.stderr


def test_context_of_before_a_fork_does_not_count_as_set():
    """Its thread is gone, so that it would wait for results forever."""
    ended = types.SimpleNamespace(_thread=threading.Thread())
    assert not contexts._was_set(types.SimpleNamespace(_async_runner=ended))
