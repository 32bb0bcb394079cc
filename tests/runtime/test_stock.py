"""Tests that the stock runtime's worker starts, reports failures, and ends with its program."""

import asyncio
import concurrent.futures
import gc
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.runs import wait_until
from tff_pfl import runtime
from tff_pfl.runtime import stock

PROGRAM = """
import sys

from tff_pfl.runtime.startup import prepare_process

prepare_process()

from tests.runtime.counting import count
from tff_pfl.runtime import WorkerDiedError, set_cpp_context

set_cpp_context()


print("ready", count([1, 2, 3]), flush=True)
how = sys.stdin.readline().strip()
print("to stderr", file=sys.stderr, flush=True)
if how == "raise":
    sys.exit("raised")
elif how == "wait":
    print("waiting", flush=True)
    try:
        count([10**12] * 2)
    except WorkerDiedError as error:
        print(error)
    except KeyboardInterrupt:
        print("interrupted")
"""


class Program:
    """A running PROGRAM and its worker."""

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # Without the variable, which JAX sets.
            env={k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"},
        )
        assert self.process.stdout.readline() == "ready 6\n"
        (self.worker,) = children(self.process.pid)

    def proceed(self, how):
        self.process.stdin.write(how + "\n")
        self.process.stdin.flush()
        if how == "wait":
            assert self.process.stdout.readline() == "waiting\n"
            time.sleep(0.5)  # until the worker computes

    def end(self):
        """Waits for the program to end, which closes its pipes; returns output and exit code."""
        output, errors = self.process.communicate(timeout=20)
        wait_until(lambda: is_gone(self.worker), seconds=2)
        return output, errors, self.process.returncode


@pytest.fixture
def program():
    program = Program()
    yield program
    program.process.kill()
    program.process.wait()


def children(parent):
    """Returns the ids of the child processes of a process."""
    found = []
    for status in pathlib.Path("/proc").glob("[0-9]*/status"):
        try:
            if f"\nPPid:\t{parent}\n" in status.read_text():
                found.append(int(status.parent.name))
        except OSError:
            continue  # the process has just ended
    return found


def is_gone(pid) -> bool:
    try:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True
    return "\nState:\tZ" in status  # a zombie, which its new parent has not collected yet


def started_context(**options):
    """Returns a context, and the process of its worker."""
    before = set(children(os.getpid()))
    context = runtime.create_cpp_context(**options)
    (worker,) = set(children(os.getpid())) - before
    return context, worker


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "errors", "code"), [("return", "to stderr\n", 0), ("raise", "to stderr\nraised\n", 1)]
)
def test_worker_ends_with_the_program(program, how, errors, code):
    program.proceed(how)
    assert program.end() == ("", errors, code)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "output", "code"),
    [
        (signal.SIGINT, "interrupted\n", 0),
        (signal.SIGTERM, "", -signal.SIGTERM),
        (signal.SIGKILL, "", -signal.SIGKILL),
    ],
)
def test_worker_ends_with_a_program_that_gets_a_signal(program, number, output, code):
    program.proceed("wait")
    program.process.send_signal(number)
    assert program.end() == (output, "to stderr\n", code)


@pytest.mark.slow
def test_worker_killed_during_a_call_raises(program):
    program.proceed("wait")
    os.kill(program.worker, signal.SIGKILL)
    started = time.monotonic()
    output, errors, code = program.end()
    assert time.monotonic() - started < 5
    assert output.startswith("The worker process of the C++ runtime ended with signal SIGKILL.")
    assert (errors, code) == ("to stderr\n", 0)


@tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
def mean(values):
    return tff.federated_mean(values)


def test_worker_ends_with_its_context(tmp_path):
    gc.freeze()  # spares the collection TensorFlow's many objects, which take seconds
    context, worker = started_context(max_concurrent_clients=1, log_path=tmp_path / "log")
    with tff.framework.get_context_stack().install(context):
        assert mean([1.0, 2.0, 6.0]) == 3.0
        assert mean([1.0]) == 1.0
    assert (tmp_path / "log").exists()
    del context
    gc.collect()
    wait_until(lambda: is_gone(worker), seconds=2)


def test_killed_worker_raises():
    context, worker = started_context()
    os.kill(worker, signal.SIGKILL)
    with (
        tff.framework.get_context_stack().install(context),
        pytest.raises(runtime.WorkerDiedError, match="ended with signal SIGKILL"),
    ):
        mean([1.0])


def test_failed_start_raises_with_the_log(tmp_path, monkeypatch):
    binary = tmp_path / "worker"
    binary.write_text("#!/bin/sh\necho no luck today\nexit 3\n")
    binary.chmod(0o755)
    monkeypatch.setattr(stock, "worker_binary", lambda: str(binary))
    with pytest.raises(runtime.WorkerDiedError, match=r"(?s)exit code 3.*no luck today"):
        runtime.create_cpp_context()


def test_wheel_without_a_worker_raises(tmp_path, monkeypatch):
    monkeypatch.setattr(stock.importlib.resources, "files", lambda _: tmp_path)
    with pytest.raises(RuntimeError, match="worker_binary.*does not have"):
        runtime.create_cpp_context()


def test_max_concurrent_clients_must_be_positive():
    with pytest.raises(ValueError, match="max_concurrent_clients"):
        runtime.create_cpp_context(max_concurrent_clients=0)


def test_creation_in_another_thread_raises():
    with (
        concurrent.futures.ThreadPoolExecutor(1) as thread,
        pytest.raises(RuntimeError, match="worker must be started in the main thread"),
    ):
        thread.submit(runtime.create_cpp_context).result()


@pytest.fixture
def worker():
    worker = stock._Worker(stock.worker_binary(), 2, None)
    yield worker
    worker.end()


@pytest.mark.thorough
def test_remote_contexts_share_a_worker_until_it_ends(worker, monkeypatch):
    address = f"127.0.0.1:{worker.port}"
    context = runtime.create_remote_context(address)
    in_programs = runtime.ProgramContext(runtime.create_async_remote_context(address))

    async def program():
        return await tff.program.materialize_value(mean([1.0, 2.0]))

    with tff.framework.get_context_stack().install(in_programs):
        assert asyncio.run(program()) == 1.5
    with tff.framework.get_context_stack().install(context):
        assert mean([1.0, 2.0, 6.0]) == 3.0
        worker.end()
        monkeypatch.setattr(stock, "_ANSWER_SECONDS", 0.3)
        with pytest.raises(runtime.WorkerDiedError, match="did not answer within 0 s. Start"):
            mean([1.0])
    with pytest.raises(runtime.WorkerDiedError, match=f"at {address} did not answer"):
        runtime.create_remote_context(address)


def test_run_worker_executes_the_binary(monkeypatch):
    executed = []
    monkeypatch.setattr(stock.os, "execv", lambda *arguments: executed.append(arguments))
    runtime.run_worker(1234, 3)
    binary = stock.worker_binary()
    arguments = [binary, "--port=1234", "--max_concurrent_computation_calls=3"]
    assert executed == [(binary, arguments)]
