"""TFF's C++ runtime in a worker that somebody else runs, on this machine or another one.

    programs/tff_worker.py --port=8470                          on the worker's machine
    programs/train.py --runtime=remote --tff_worker=HOST:8470   here

TFF 0.87 has no `create_sync_remote_cpp_execution_context` any more, nor any context of remote
workers, but it still has what they were made of: the worker, the executor of a remote service and
the stub of gRPC. The executor that divided a cohort among several workers is gone: there is one
worker.

A worker outlives its programs, and can serve several. Values of a program that was killed stay in
its memory until it ends.
"""

import contextlib
import os
from typing import NoReturn

import grpc
import tensorflow_federated as tff

from tff_pfl.runtime.cpp import CHANNEL_OPTIONS, context_arguments, worker_binary
from tff_pfl.runtime.errors import WorkerDiedError

_ANSWER_SECONDS = 10.0


def create_remote_context(address: str) -> tff.framework.SyncExecutionContext:
    """A context that executes computations in a worker.

    Args:
        address: Of the worker, `HOST:PORT`.

    Raises:
        WorkerDiedError: The worker does not answer within 10 seconds; also in a later call of a
            computation.
    """
    return tff.framework.SyncExecutionContext(**_arguments(address))


def create_async_remote_context(address: str) -> tff.framework.AsyncExecutionContext:
    """As `create_remote_context`, for federated programs; see `tff_pfl.runtime.ProgramContext`."""
    return tff.framework.AsyncExecutionContext(**_arguments(address))


def set_remote_context(address: str) -> None:
    """Makes `create_remote_context(address)` the context in which computations are executed."""
    tff.framework.set_default_context(create_remote_context(address))


def run_worker(port: int, max_concurrent_clients: int) -> NoReturn:
    """Makes this process a worker, until it is ended.

    Like TFF's own contexts, it listens on all interfaces and asks nobody who they are: run it
    behind a firewall.

    Args:
        port: Where it listens.
        max_concurrent_clients: How many clients of a cohort it computes at a time.

    Raises:
        RuntimeError: TFF's wheel has no worker for this platform.
    """
    binary = worker_binary()
    concurrency = f"--max_concurrent_computation_calls={max_concurrent_clients}"
    os.execv(binary, [binary, f"--port={port}", concurrency])


def _arguments(address):
    channel = grpc.insecure_channel(address, CHANNEL_OPTIONS)
    stub = _Stub(channel)

    def make_executor(cardinalities):
        _wait_for_answer(channel, address)
        executor = tff.framework.RemoteExecutor(stub)
        executor.set_cardinalities({tff.CLIENTS: 0} | cardinalities)
        return executor

    _wait_for_answer(channel, address)
    return context_arguments(tff.framework.ResourceManagingExecutorFactory(make_executor))


def _wait_for_answer(channel, address) -> None:
    """Returns once the worker answers, where TFF would call it again and again for ever."""
    try:
        grpc.channel_ready_future(channel).result(timeout=_ANSWER_SECONDS)
    except grpc.FutureTimeoutError:
        raise WorkerDiedError(
            f"The worker at {address} did not answer within {_ANSWER_SECONDS:.0f} s. Start "
            "programs/tff_worker.py there, with this port."
        ) from None


class _Stub(tff.framework.RemoteExecutorGrpcStub):
    """TFF's stub, which does not complain that values of a dead worker cannot be disposed of.

    They are disposed of by finalizers, whose exceptions nobody can catch.
    """

    def dispose(self, request):
        with contextlib.suppress(Exception):
            if self.is_ready:
                super().dispose(request)
