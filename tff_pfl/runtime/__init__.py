"""Execution contexts. Knows TFF, no algorithm.

A program begins with

    from tff_pfl.runtime.startup import prepare_process

    prepare_process()

which must come before TensorFlow is imported. So this package imports the contexts, and TensorFlow
with them, only when one is asked for.
"""

import importlib

_MODULES = {
    "DeviceError": "tff_pfl.runtime.errors",
    "ProgramContext": "tff_pfl.runtime.program",
    "WorkerDiedError": "tff_pfl.runtime.errors",
    "connect_to_workers": "tff_pfl.runtime.graph.devices",
    "create_async_cpp_context": "tff_pfl.runtime.cpp",
    "create_async_graph_context": "tff_pfl.runtime.graph.contexts",
    "create_async_remote_context": "tff_pfl.runtime.remote",
    "create_cpp_context": "tff_pfl.runtime.cpp",
    "create_graph_context": "tff_pfl.runtime.graph.contexts",
    "create_remote_context": "tff_pfl.runtime.remote",
    "current_devices": "tff_pfl.runtime.graph.contexts",
    "is_gpu": "tff_pfl.runtime.graph.devices",
    "materialized": "tff_pfl.runtime.program",
    "set_cpp_context": "tff_pfl.runtime.cpp",
    "set_graph_context": "tff_pfl.runtime.graph.contexts",
    "set_remote_context": "tff_pfl.runtime.remote",
}

__all__ = list(_MODULES)


def __getattr__(name):
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
