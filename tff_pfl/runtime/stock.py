"""TFF's stock C++ runtime, in a worker process that this program starts or that runs elsewhere.

TFF 0.87 executes computations in `worker_binary`, a gRPC server in its wheel. TFF's own context
starts it at the first call, lets it write to the program's output, restarts it silently when it
dies, and leaves it running when the program is killed. `create_cpp_context` instead

*   starts the worker at once and writes its output to a log;
*   ends the worker whenever the program ends. After a normal exit or an exception, a finalizer
    ends it. After SIGKILL, SIGTERM or `os._exit`, the kernel kills it (`PR_SET_PDEATHSIG`). It has
    its own session, so that Ctrl-C in a terminal reaches only Python;
*   raises `WorkerDiedError` where TFF would retry for ever.

`create_remote_context` uses a worker that runs elsewhere and outlives its programs:

    programs/tff_worker.py --port=8470                          on the worker's machine
    programs/train.py --runtime=remote --tff_worker=HOST:8470   here

A worker listens on all interfaces and has no authentication; it has no flag for its address. If
other people can reach the machine, run it behind a firewall.
"""

import asyncio
import contextlib
import importlib.resources
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import grpc
import tensorflow_federated as tff

from tff_pfl.arguments.ranges import whole
from tff_pfl.runtime.errors import WorkerDiedError
from tff_pfl.runtime.graph import arguments, devices

_LOOPBACK = "127.0.0.1"
_START_SECONDS = 60.0
_ANSWER_SECONDS = 10.0
_POLL_SECONDS = 0.05
_TAIL_BYTES = 2000
_CHANNEL_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_http_proxy", 0),
]

# Asks the kernel to kill this process with its parent, then becomes the worker. If the parent's id
# has changed, the parent ended before the request. This is a program, not a `preexec_fn`, since
# forks of gRPC and TensorFlow are unsafe.
_BECOME_WORKER = """
import ctypes, os, signal, sys
parent, *command = sys.argv[1:]
PR_SET_PDEATHSIG = 1
if ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
    sys.exit("prctl failed")
if os.getppid() != int(parent):
    sys.exit("the program that started this worker is gone")
os.execv(command[0], command)
"""


def create_cpp_context(
    *, max_concurrent_clients: int | None = None, log_path: str | os.PathLike | None = None
) -> tff.framework.SyncExecutionContext:
    """Starts a worker and returns the context that executes computations in it.

    The worker ends with the context, at the latest with the program.

    Args:
        max_concurrent_clients: The number of clients computed at a time, by default the number of
            CPU cores. More clients need more memory and, if a model keeps a core busy, more time.
        log_path: The file to which the worker's output is appended, by default a temporary file
            that is deleted with the worker. Its end is shown when the worker dies.

    Raises:
        RangeError: `max_concurrent_clients` is not a whole number of at least 1.
        RuntimeError: TFF's wheel has no worker for this platform, or the caller is not in the main
            thread, since the kernel ends the worker together with the thread that started it.
        WorkerDiedError: The worker did not start. Later calls of computations raise it if the
            worker has died.
    """
    return _SyncContext(**_in_own_worker(max_concurrent_clients, log_path))


def create_async_cpp_context(
    *, max_concurrent_clients: int | None = None, log_path: str | os.PathLike | None = None
) -> tff.framework.AsyncExecutionContext:
    """Like `create_cpp_context`, but for a `tff_pfl.runtime.ProgramContext`."""
    return _AsyncContext(**_in_own_worker(max_concurrent_clients, log_path))


def set_cpp_context(**options) -> None:
    """Makes `create_cpp_context(...)` the default context of TFF computations.

    Example:
        >>> tff_pfl.set_cpp_context(max_concurrent_clients=1)
        >>> tff.tensorflow.computation(lambda x: x + 1, np.int32)(2)
        3

    Args:
        **options: See `create_cpp_context`.
    """
    tff.framework.set_default_context(create_cpp_context(**options))


def create_remote_context(address: str) -> tff.framework.SyncExecutionContext:
    """Returns a context that executes computations in the worker at an address.

    Args:
        address: The worker's `HOST:PORT`.

    Raises:
        WorkerDiedError: The worker does not answer within 10 seconds. Later calls of computations
            may raise it too.
    """
    return _SyncContext(**_in_worker_at(address))


def create_async_remote_context(address: str) -> tff.framework.AsyncExecutionContext:
    """Like `create_remote_context`, but for a `tff_pfl.runtime.ProgramContext`."""
    return _AsyncContext(**_in_worker_at(address))


def set_remote_context(address: str) -> None:
    """Makes `create_remote_context(address)` the default context of TFF computations."""
    tff.framework.set_default_context(create_remote_context(address))


def run_worker(port: int, max_concurrent_clients: int) -> NoReturn:
    """Turns this process into a worker, until it is killed.

    Args:
        port: The port on which the worker listens.
        max_concurrent_clients: The number of clients that it computes at a time.

    Raises:
        RuntimeError: TFF's wheel has no worker for this platform.
    """
    binary = worker_binary()
    concurrency = f"--max_concurrent_computation_calls={max_concurrent_clients}"
    os.execv(binary, [binary, f"--port={port}", concurrency])


def worker_binary() -> str:
    """Returns the path of the worker in the wheel of TFF.

    Raises:
        RuntimeError: The wheel has no worker for this platform.
    """
    path = importlib.resources.files(tff).joinpath("data", "worker_binary")
    if not path.is_file():
        raise RuntimeError(
            f"TFF's C++ runtime needs {path}, which the installed wheel of tensorflow-federated "
            "does not have. The wheel for 64-bit x86 Linux has it."
        )
    return str(path)


class _SyncContext(tff.framework.SyncExecutionContext):
    """A context of TFF whose errors name the part of an argument that is of another type."""

    def invoke(self, comp, arg):
        with _naming_parts(comp, arg):
            return super().invoke(comp, arg)


class _AsyncContext(tff.framework.AsyncExecutionContext):
    """The same, for `await`."""

    async def invoke(self, comp, arg):
        arg = await arg if asyncio.iscoroutine(arg) else arg
        with _naming_parts(comp, arg):
            return await super().invoke(comp, arg)


@contextlib.contextmanager
def _naming_parts(comp, arg) -> Iterator[None]:
    """Replaces a `TypeError` by the graph runtime's, if the argument is of another type."""
    try:
        yield
    except TypeError as error:
        try:
            arguments.check(arg, comp.type_signature.parameter)
        except TypeError as named:
            raise named from error
        raise


def _in_own_worker(max_concurrent_clients, log_path) -> dict[str, Any]:
    """Starts a worker that ends with its executor factory; returns the context's arguments."""
    if max_concurrent_clients is None:
        max_concurrent_clients = devices.num_cores()
    whole(1).check("max_concurrent_clients", max_concurrent_clients)
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("The C++ runtime's worker must be started in the main thread.")
    worker = _Worker(worker_binary(), max_concurrent_clients, log_path)
    arguments = _context_arguments(worker.channel, worker.check)
    weakref.finalize(arguments["executor_fn"], worker.end)
    return arguments


def _in_worker_at(address) -> dict[str, Any]:
    channel = grpc.insecure_channel(address, _CHANNEL_OPTIONS)

    def check():
        """Waits for an answer of the worker, since TFF itself would retry for ever."""
        try:
            grpc.channel_ready_future(channel).result(timeout=_ANSWER_SECONDS)
        except grpc.FutureTimeoutError:
            raise WorkerDiedError(
                f"The worker at {address} did not answer within {_ANSWER_SECONDS:.0f} s. Start "
                "programs/tff_worker.py there, with the same port."
            ) from None

    check()
    return _context_arguments(channel, check)


def _context_arguments(channel: grpc.Channel, check: Callable[[], None]) -> dict[str, Any]:
    """Returns the arguments of an execution context of TFF.

    Args:
        channel: The connection to the worker.
        check: Called before each computation; raises WorkerDiedError if the worker has died.
    """
    stub = _Stub(channel)

    def make_executor(cardinalities):
        check()
        executor = tff.framework.RemoteExecutor(stub)
        executor.set_cardinalities({tff.CLIENTS: 0} | cardinalities)
        return executor

    return {
        "executor_fn": tff.framework.ResourceManagingExecutorFactory(make_executor),
        "compiler_fn": tff.backends.native.desugar_and_transform_to_native,
        "transform_args": tff.tensorflow.transform_args,
        "transform_result": tff.tensorflow.transform_result,
    }


class _Stub(tff.framework.RemoteExecutorGrpcStub):
    """A stub of TFF that ignores failures to dispose of values of a dead worker.

    Finalizers dispose of values, and their exceptions cannot be caught.
    """

    def dispose(self, request):
        with contextlib.suppress(Exception):
            if self.is_ready:
                super().dispose(request)


class _Worker:
    """A running `worker_binary` and the connection to it."""

    def __init__(self, binary, max_concurrent_clients, log_path):
        log_path = log_path and os.path.expanduser(log_path)
        self._log = open(log_path, "ab+") if log_path else tempfile.TemporaryFile()  # noqa: SIM115
        self._log_start = os.fstat(self._log.fileno()).st_size
        # This socket, bound but not listening, reserves the port while the worker runs. The worker
        # can share the port, since gRPC's servers set SO_REUSEPORT too.
        self._port_holder = socket.socket()
        self._port_holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._port_holder.bind(("", 0))
        self.port = self._port_holder.getsockname()[1]
        self._owner = os.getpid()
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-I", "-S", "-c", _BECOME_WORKER, str(self._owner)),
                binary,
                f"--port={self.port}",
                f"--max_concurrent_computation_calls={max_concurrent_clients}",
            ],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "1"},  # keeps warnings in the log
        )
        try:
            self._wait_until_listening()
        except BaseException:
            self._kill()
            raise
        self.channel = grpc.insecure_channel(f"{_LOOPBACK}:{self.port}", _CHANNEL_OPTIONS)

    def check(self) -> None:
        """Raises WorkerDiedError, with exit code and end of the log, if the worker has ended."""
        code = self._process.poll()
        if code is None:
            return
        how = f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
        hint = "The kernel sends it when memory runs out. " if code == -signal.SIGKILL else ""
        raise WorkerDiedError(
            f"The worker process of the C++ runtime ended with {how}. {hint}{self._log_tail()}"
        )

    def end(self) -> None:
        """Ends the worker, unless this process is a fork of the program that started it."""
        if os.getpid() == self._owner:
            self._kill()
            self.channel.close()

    def _kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._port_holder.close()

    def _wait_until_listening(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            self.check()
            try:
                return socket.create_connection((_LOOPBACK, self.port), timeout=1).close()
            except OSError:
                if time.monotonic() > deadline:
                    raise WorkerDiedError(
                        f"The worker process of the C++ runtime did not listen on port {self.port} "
                        f"within {_START_SECONDS:.0f} s. {self._log_tail()}"
                    ) from None
            time.sleep(_POLL_SECONDS)

    def _log_tail(self) -> str:
        start = max(self._log_start, os.fstat(self._log.fileno()).st_size - _TAIL_BYTES)
        tail = os.pread(self._log.fileno(), _TAIL_BYTES, start).decode(errors="replace").strip()
        return f"The end of its log:\n{tail}" if tail else "Its log is empty."
