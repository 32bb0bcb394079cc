"""The flags by which programs choose the runtime. Programs import this; the library does not."""

from absl import flags

from tff_pfl import runtime

_RUNTIME = flags.DEFINE_enum(
    "runtime",
    "graph",
    ["graph", "cpp"],
    "graph: TensorFlow in this process, on GPUs or CPUs. cpp: TFF's stock runtime.",
)
_DEVICES = flags.DEFINE_list(
    "devices",
    None,
    "Where the graph runtime computes clients, as in GPU:0,GPU:1; by default on all GPUs, or the "
    "CPU; with --workers on these.",
)
_WORKERS = flags.DEFINE_list(
    "workers",
    [],
    "Other machines that compute clients, as HOST:PORT,HOST:PORT; each runs programs/worker.py "
    "with the same list.",
)


def set_context_from_flags() -> None:
    """Makes the runtime that the flags name the one in which TFF computations are executed.

    Raises:
        DeviceError: Flags do not fit each other, or a device is not there.
        WorkerDiedError: A worker does not answer.
    """
    if _RUNTIME.value == "cpp":
        if _DEVICES.value or _WORKERS.value:
            raise runtime.DeviceError("--devices and --workers are for --runtime=graph.")
        runtime.set_cpp_context()
        return
    devices = _DEVICES.value
    if _WORKERS.value:
        workers = runtime.connect_to_workers(_WORKERS.value)
        devices = devices or workers
    runtime.set_graph_context(devices=devices)
