"""TFF's execution contexts with the graph executor."""

import contextlib
import threading
from collections.abc import Iterator, Sequence

import absl.logging
import tensorflow_federated as tff

from tff_pfl.arguments.names import check_names
from tff_pfl.arguments.ranges import takes, whole
from tff_pfl.runtime.graph import devices as device_names
from tff_pfl.runtime.graph import executor, interruption
from tff_pfl.runtime.graph.clients import mapping
from tff_pfl.runtime.startup import ignore_failures_at_exit

_EVENT_LOOP = "(target_fn)"  # ends the names of the threads in which TFF runs event loops


@takes(max_concurrent_clients=whole(1))
def create_graph_context(
    *,
    devices: Sequence[str] | str | None = None,
    vectorize: str = mapping.AUTO,
    max_concurrent_clients: int | None = None,
    jit_compile: bool | None = None,
    keep_tensors: bool | None = None,
) -> tff.framework.SyncExecutionContext:
    """Returns a context that runs each TFF computation as one TensorFlow graph, in this process.

    It executes all computations of TFF's stock runtime, except JAX computations, `Data` blocks and
    functions as results. It also executes secure sums (in the clear). A graph is built at the first
    call of a computation and used again for cohorts of any size. While a graph is built, no other
    thread may use TensorFlow's own `tf.vectorized_map`. After Ctrl-C, or if its task is cancelled,
    a computation ends before the next step of a loop.

    Args:
        devices: Names of devices (`["GPU:0", "GPU:1"]`), among which the clients of a cohort are
            divided in order. Computations at the server run on the first device. By default all
            GPUs that TensorFlow lists, or the CPU.
        vectorize: The way in which a function is applied to the clients of a device.
            * `"always"`: to all clients at once, each operation on a stack of their values; raises
              an error if that is impossible. Clients whose `Examples` differ in number are computed
              side by side, each with its own number of steps (see `lanes`). Clients whose other
              tensors have equal shapes are a group. Several groups follow one another.
            * `"never"`: in a loop over clients, whose graph does not grow with their number.
            * `"auto"`: at once if possible. Exceptions are sequences (`tf.data`), variables,
              operations that TensorFlow cannot vectorize, and, on CPUs without XLA, convolutions
              whose filters differ by client (see `pfor_convolutions`). Clients whose tensors
              differ in shape are exceptions, too, unless groups have 8 clients or more on average
              and no other tensor has 32,768 elements (on GPUs: 2 clients, tensors of any size, and
              `Examples` of any numbers). The choice is logged, once for each function. If a
              vectorized graph fails when it runs, the whole computation runs again with loops,
              whose result or error counts.
        max_concurrent_clients: The number of clients of a device that are computed at a time,
            which bounds the memory. By default all clients of a group if they are vectorized. In a
            loop, by default the number of CPU cores, or one if TensorFlow's kernels require it, as
            they do for Keras' `LayerNormalization` with an unknown number of rows.
        jit_compile: Whether XLA compiles client work with loops, by default within
            `compiling(True)`. Compilation takes seconds for each shape of a cohort. The numbers are
            those without it, up to rounding. On CPUs, client work is compiled as a loop over the
            clients of a part, unless it has convolutions, which are slow there; clients need not be
            padded (see `Examples`). With `vectorize="always"`, it is vectorized as on GPUs. Client
            work that XLA cannot compile with the same numbers is not compiled: assertions, which
            XLA drops, and random numbers of truncated normal distributions, for example. The log
            says so, once for each function.
        keep_tensors: Whether arrays in results that are not placed at clients stay tensors on
            their device instead of becoming NumPy arrays. By default true on GPUs. In both cases,
            an array that is used as an argument again is not copied to the device again.

    Raises:
        DeviceError: A device does not exist.
        RangeError: `max_concurrent_clients` is not a whole number of at least 1.
        UnknownNameError: `vectorize` is not one of the three names.
    """
    check_names("vectorize", [vectorize], mapping.VECTORIZE)
    devices = device_names.choose(devices)
    if keep_tensors is None:
        keep_tensors = device_names.is_gpu(devices[0])
    ignore_failures_at_exit()
    absl.logging.info("Clients are computed on %s.", ", ".join(devices))
    client_map = mapping.ClientMap(vectorize, max_concurrent_clients, jit_compile)
    return interruption.InterruptibleContext(
        executor.GraphExecutorFactory(devices, client_map, keep_tensors)
    )


def create_async_graph_context(**options) -> tff.framework.AsyncExecutionContext:
    """Like `create_graph_context`, but for a `tff_pfl.runtime.ProgramContext`."""
    return tff.framework.AsyncExecutionContext(create_graph_context(**options).executor_factory)


def set_graph_context(**options) -> None:
    """Makes `create_graph_context(...)` the default context of TFF computations.

    Example:
        >>> tff_pfl.set_graph_context(devices=["CPU:0"])
        >>> tff.tensorflow.computation(lambda x: x + 1, np.int32)(2)
        3

    Args:
        **options: See `create_graph_context`.
    """
    tff.framework.set_default_context(create_graph_context(**options))


@contextlib.contextmanager
def current_or_graph_context() -> Iterator[None]:
    """Computes in the context that was set in this thread, or else in a new graph context.

    TFF's own default does not count as set, because the worker process that it starts outlives
    Python and holds its pipes open. Contexts belong to a thread, and new threads have none.
    """
    stack = tff.framework.get_context_stack()
    with stack.install(stack.current if _was_set(stack.current) else create_graph_context()):
        yield


def _was_set(context) -> bool:
    """Returns whether a context is neither TFF's own default nor that of a new thread."""
    if type(context).__name__ == "RuntimeErrorContext":  # a private class, of new threads
        return False
    # A context of TFF has a thread for its event loop, which never ends. The first such thread is
    # that of the default, which is set while TFF is imported.
    loops = (thread for thread in threading.enumerate() if thread.name.endswith(_EVENT_LOOP))
    runner = getattr(context, "_async_runner", None)
    if runner is None:
        return True
    # In a forked process, threads of before have ended, and contexts can compute nothing.
    return runner._thread.is_alive() and runner._thread is not next(loops, None)


def pads_clients() -> bool:
    """Returns whether the current context pads the rows of clients itself.

    It does on GPUs, and where it compiles client work as loops over clients.
    """
    factory = _current_factory()
    return factory is not None and factory.client_map.chosen().pads_clients(factory.devices)


def leaves_compilation_open() -> bool:
    """Returns whether the current context leaves it to `compiling` whether XLA compiles."""
    factory = _current_factory()
    return factory is not None and factory.client_map.jit_compile is None


def current_devices() -> tuple[str, ...] | None:
    """Returns the devices of the current context, or `None` if it has no graph executor."""
    factory = _current_factory()
    return None if factory is None else factory.devices


def _current_factory() -> executor.GraphExecutorFactory | None:
    context = tff.framework.get_context_stack().current
    factory = getattr(context, "executor_factory", None)
    return factory if isinstance(factory, executor.GraphExecutorFactory) else None
