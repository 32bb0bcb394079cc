"""Tests that interrupted computations end early."""

import asyncio
import gc
import os
import signal
import threading
import time

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.runs import wait_until
from tff_pfl.runtime import create_async_graph_context, create_graph_context
from tff_pfl.runtime.graph import executor


@tff.tensorflow.computation(np.int32)
def count_to(number):
    return tf.while_loop(lambda i: i < number, lambda i: i + 1, [0])[0]


LONG = 10_000_000  # takes half a minute


@pytest.fixture
def runs(monkeypatch):
    """The events `(started, ended)` of the next computation."""
    started, ended, run = threading.Event(), threading.Event(), executor.Program.run

    def watched(*args):
        started.set()
        try:
            return run(*args)
        finally:
            ended.set()

    monkeypatch.setattr(executor.Program, "run", watched)
    return started, ended


def test_ctrl_c_ends_the_computation(runs):
    started, ended = runs

    def press():
        started.wait()
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    with tff.framework.get_context_stack().install(create_graph_context()):
        assert count_to(3) == 3
        started.clear()
        ended.clear()
        threading.Thread(target=press).start()
        with pytest.raises(KeyboardInterrupt):
            count_to(LONG)
        assert ended.wait(5)
        assert count_to(4) == 4


def test_cancelled_task_ends_only_its_computation(runs):
    started, _ = runs
    context = create_async_graph_context()

    async def program():
        assert await context.invoke(count_to, 3) == 3
        other = asyncio.create_task(context.invoke(count_to, 100_000))
        await asyncio.to_thread(started.wait)
        task = asyncio.create_task(context.invoke(count_to, LONG))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await other

    start = time.monotonic()
    assert asyncio.run(program()) == 100_000  # `run` waits for all threads
    assert time.monotonic() - start < 10


def test_deleted_context_leaves_no_thread_and_no_file():
    def resources():
        return threading.active_count(), len(os.listdir("/proc/self/fd"))

    def run_one():
        context = create_graph_context()
        with tff.framework.get_context_stack().install(context):
            assert count_to(3) == 3

    run_one()
    gc.collect()  # collects contexts of other tests now
    before = resources()
    for _ in range(3):
        run_one()
    # Threads that computed end by themselves a little later.
    wait_until(lambda: all(now <= then for now, then in zip(resources(), before, strict=True)))


def test_context_is_collected_while_no_thread_can_end():
    context = create_graph_context()
    with tff.framework.get_context_stack().install(context):
        assert count_to(3) == 3
    with threading._active_limbo_lock:  # Python holds it where it lists threads
        del context
        gc.collect()
