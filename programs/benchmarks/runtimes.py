"""The runtimes that contenders run on; adding one adds a row of `RUNTIMES`."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from tff_pfl import runtime

if TYPE_CHECKING:  # a program that shows its flags does without TensorFlow
    import tensorflow_federated as tff

RUNTIMES: dict[str, Callable[[], "tff.framework.SyncExecutionContext"]] = {
    "cpp_runtime": lambda: runtime.create_cpp_context(),
    "graph_loop": lambda: runtime.create_graph_context(vectorize="never"),
    "graph_vectorized": lambda: runtime.create_graph_context(vectorize="always"),
    "graph_xla": lambda: runtime.create_graph_context(vectorize="always", jit_compile=True),
}
