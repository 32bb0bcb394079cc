"""Contexts of a worker that somebody else runs; here it is one of `tff_pfl.runtime.cpp`."""

import asyncio

import numpy as np
import pytest
import tensorflow_federated as tff

from tff_pfl import runtime
from tff_pfl.runtime import cpp, remote


@pytest.fixture
def worker():
    worker = cpp._Worker(cpp.worker_binary(), 2, None)
    yield worker
    worker.end()


def address_of(worker):
    return f"127.0.0.1:{worker._port_holder.getsockname()[1]}"


@tff.federated_computation(tff.types.FederatedType(np.float32, tff.CLIENTS))
def mean(values):
    return tff.federated_mean(values)


def test_contexts_share_a_worker_until_it_is_gone(worker, monkeypatch):
    context = runtime.create_remote_context(address_of(worker))
    program_context = runtime.ProgramContext(
        runtime.create_async_remote_context(address_of(worker))
    )

    async def program():
        return await tff.program.materialize_value(mean([1.0, 2.0]))

    with tff.framework.get_context_stack().install(program_context):
        assert asyncio.run(program()) == 1.5
    with tff.framework.get_context_stack().install(context):
        assert mean([1.0, 2.0, 6.0]) == 3.0
        assert mean([1.0]) == 1.0
        worker.end()
        monkeypatch.setattr(remote, "_ANSWER_SECONDS", 0.3)
        with pytest.raises(runtime.WorkerDiedError, match="did not answer within 0 s. Start"):
            mean([1.0])


def test_no_worker_raises(monkeypatch):
    monkeypatch.setattr(remote, "_ANSWER_SECONDS", 0.1)
    with pytest.raises(runtime.WorkerDiedError, match="at 127.0.0.1:9 did not answer"):
        runtime.create_remote_context("127.0.0.1:9")


def test_a_process_becomes_a_worker(monkeypatch):
    executed = []
    monkeypatch.setattr(remote.os, "execv", lambda *arguments: executed.append(arguments))
    remote.run_worker(1234, 3)
    binary = cpp.worker_binary()
    arguments = [binary, "--port=1234", "--max_concurrent_computation_calls=3"]
    assert executed == [(binary, arguments)]
