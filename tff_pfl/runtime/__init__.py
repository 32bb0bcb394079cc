"""Execution contexts for TFF computations, independent of algorithms.

A program begins with

    from tff_pfl.runtime.startup import prepare_process

    prepare_process()

which must come before TensorFlow is imported. Therefore this package imports its modules, and
TensorFlow with them, only when one of their names is used.
"""

from tff_pfl.lazy import offer

__getattr__, __dir__, __all__ = offer(
    __name__,
    {
        "stock": (
            "create_async_cpp_context",
            "create_async_remote_context",
            "create_cpp_context",
            "create_remote_context",
            "run_worker",
            "set_cpp_context",
            "set_remote_context",
        ),
        "errors": ("DeviceError", "WorkerDiedError"),
        "graph.contexts": (
            "create_async_graph_context",
            "create_graph_context",
            "current_devices",
            "current_or_graph_context",
            "set_graph_context",
        ),
        "graph.devices": ("answers", "connect_to_workers", "is_gpu", "lend_devices"),
        "program": ("ProgramContext", "materialized"),
    },
)
