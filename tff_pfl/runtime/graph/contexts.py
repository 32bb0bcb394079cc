"""The graph executor behind TFF's execution contexts."""

from collections.abc import Sequence

import absl.logging
import tensorflow_federated as tff

from tff_pfl.names import check_names
from tff_pfl.ranges import takes, whole
from tff_pfl.runtime.graph import devices as device_names
from tff_pfl.runtime.graph import executor, interruption, mapping


@takes(max_concurrent_clients=whole(1))
def create_graph_context(
    *,
    devices: Sequence[str] | str | None = None,
    vectorize: str = mapping.AUTO,
    max_concurrent_clients: int | None = None,
    jit_compile: bool = False,
    keep_tensors: bool | None = None,
) -> tff.framework.SyncExecutionContext:
    """Returns a context that runs each TFF computation as one TensorFlow graph, in this process.

    It executes what TFF's stock runtime executes, and secure sums as well (in the clear), except
    computations of JAX, `Data` blocks and functions as results. Graphs are built at the first call
    of a computation, and used again for cohorts of any size. While one is built, TensorFlow's own
    `tf.vectorized_map` must not be used in another thread. Ctrl-C, or a cancelled task, ends a
    computation before its next step of a loop, and does not wait for its result.

    Args:
        devices: Names of devices (`["GPU:0", "GPU:1"]`, `["/job:worker/task:1/device:CPU:0"]`),
            among which the clients of a cohort are divided in order; what is placed at the server
            runs on the first. By default all GPUs that TensorFlow lists, or the CPU. Devices of
            other machines exist after `tff_pfl.runtime.connect_to_workers`.
        vectorize: How a function is applied to the clients of a device. `"always"`: to all at
            once, each operation on a stack of their values; an error where that is impossible.
            `"never"`: in a loop over clients, whose graph does not grow with their number.
            `"auto"`: at once where possible. That excludes clients whose tensors differ in shape,
            sequences (`tf.data`), variables, operations that TensorFlow cannot vectorize, and, on
            CPUs, convolutions whose filters differ by client (on GPUs these become grouped
            convolutions). The choice is logged, once for each function. Where the vectorized graph
            fails when it runs, the whole computation runs again with loops: its result is that of
            the loops, as is its error if the client work has one.
        max_concurrent_clients: How many clients of a device are computed at a time, which bounds
            the memory. By default, in a stack: all of them; in a loop: as many as there are CPU
            cores, or one where TensorFlow's kernels demand it, as for Keras' `LayerNormalization`
            of an unknown number of rows.
        jit_compile: Whether XLA compiles what is vectorized. It takes seconds for each size of a
            cohort; assertions of client work are dropped; stateless random numbers may differ from
            those without; and what XLA cannot compile, such as loops of more steps for some
            clients, fails when it runs, and becomes a loop.
        keep_tensors: Whether arrays of results that are not placed at clients stay tensors on
            their device, instead of becoming NumPy arrays. By default on GPUs. Either way, an
            array that is an argument again is not copied to the device again.

    Raises:
        DeviceError: A device does not exist.
        RangeError: `max_concurrent_clients` is not a whole number of at least 1.
        UnknownNameError: `vectorize` is not one of the three.
    """
    check_names("vectorize", [vectorize], mapping.VECTORIZE)
    devices = device_names.choose(devices)
    if keep_tensors is None:
        keep_tensors = device_names.is_gpu(devices[0])
    absl.logging.info("Clients are computed on %s.", ", ".join(devices))
    client_map = mapping.ClientMap(vectorize, max_concurrent_clients, jit_compile)
    return interruption.InterruptibleContext(
        executor.GraphExecutorFactory(devices, client_map, keep_tensors)
    )


def create_async_graph_context(**options) -> tff.framework.AsyncExecutionContext:
    """Like `create_graph_context`, but for a `tff_pfl.runtime.ProgramContext`."""
    return tff.framework.AsyncExecutionContext(create_graph_context(**options).executor_factory)


def set_graph_context(**options) -> None:
    """Makes `create_graph_context(...)` the context in which TFF computations are executed."""
    tff.framework.set_default_context(create_graph_context(**options))


def check_context() -> None:
    """Raises RuntimeError if no context was set in this thread: TFF has one for each thread."""
    current = tff.framework.get_context_stack().current
    if type(current).__name__ == "RuntimeErrorContext":  # which is not public
        raise RuntimeError(
            "This thread has no context in which TFF computations are executed: each thread has "
            "its own. Call tff_pfl.set_graph_context() in it."
        )


def current_devices() -> tuple[str, ...] | None:
    """Returns the devices of the current context, or `None` if it is not of the graph runtime."""
    context = tff.framework.get_context_stack().current
    factory = getattr(context, "executor_factory", None)
    return factory.devices if isinstance(factory, executor.GraphExecutorFactory) else None
