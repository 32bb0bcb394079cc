"""Execution contexts for TFF computations, independent of algorithms.

A program begins with

    from tff_pfl.runtime.startup import prepare_process

    prepare_process()

which must come before TensorFlow is imported. Therefore this package imports its modules, and
TensorFlow with them, only when one of their names is used.
"""

from typing import TYPE_CHECKING

from tff_pfl.lazy import offer

if TYPE_CHECKING:
    from tff_pfl.runtime.errors import DeviceError as DeviceError
    from tff_pfl.runtime.errors import WorkerDiedError as WorkerDiedError
    from tff_pfl.runtime.graph.clients.cohorts import Cohorts as Cohorts
    from tff_pfl.runtime.graph.clients.mapping import compiling as compiling
    from tff_pfl.runtime.graph.contexts import (
        create_async_graph_context as create_async_graph_context,
    )
    from tff_pfl.runtime.graph.contexts import create_graph_context as create_graph_context
    from tff_pfl.runtime.graph.contexts import current_devices as current_devices
    from tff_pfl.runtime.graph.contexts import current_or_graph_context as current_or_graph_context
    from tff_pfl.runtime.graph.contexts import leaves_compilation_open as leaves_compilation_open
    from tff_pfl.runtime.graph.contexts import pads_clients as pads_clients
    from tff_pfl.runtime.graph.contexts import set_graph_context as set_graph_context
    from tff_pfl.runtime.graph.devices import is_gpu as is_gpu
    from tff_pfl.runtime.graph.devices import uses_onednn as uses_onednn
    from tff_pfl.runtime.program import ProgramContext as ProgramContext
    from tff_pfl.runtime.program import materialized as materialized
    from tff_pfl.runtime.stock import create_async_cpp_context as create_async_cpp_context
    from tff_pfl.runtime.stock import create_async_remote_context as create_async_remote_context
    from tff_pfl.runtime.stock import create_cpp_context as create_cpp_context
    from tff_pfl.runtime.stock import create_remote_context as create_remote_context
    from tff_pfl.runtime.stock import run_worker as run_worker
    from tff_pfl.runtime.stock import set_cpp_context as set_cpp_context
    from tff_pfl.runtime.stock import set_remote_context as set_remote_context
else:
    __getattr__, __dir__, __all__ = offer(__name__)
