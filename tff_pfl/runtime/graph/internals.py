"""Private names of TFF and TensorFlow that the graph executor needs, in one place.

Each name was checked with the versions below. With other versions, the import raises an error.
"""

import functools
import importlib
from collections.abc import Callable, Sequence
from importlib import metadata

CHECKED_VERSIONS = {"tensorflow-federated": "0.87.0", "tensorflow": "2.14.1"}


def _check_versions() -> None:
    for package, checked in CHECKED_VERSIONS.items():
        installed = metadata.version(package)
        if installed != checked:
            raise ImportError(
                f"The graph executor uses internals of {package} {checked}, but {installed} is "
                f"installed. Install {package}=={checked}, or use TFF's own runtime: "
                "--runtime=cpp, tff_pfl.runtime.create_cpp_context()."
            )


_check_versions()

# ruff: noqa: E402
import tensorflow as tf
from tensorflow.compiler.tf2xla.ops.gen_xla_ops import xla_dynamic_slice as xla_dynamic_slice
from tensorflow.core.framework.function_pb2 import FunctionDef as _FunctionDef
from tensorflow.core.function.polymorphism import function_type as _function_type
from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig as _RewriterConfig
from tensorflow.python.eager import cancellation as _cancellation
from tensorflow.python.eager import execute as _execute
from tensorflow.python.eager.cancellation import CancellationManager as CancellationManager
from tensorflow.python.eager.polymorphic_function import concrete_function as _concrete_function
from tensorflow.python.eager.polymorphic_function.atomic_function import (
    AtomicFunction as _AtomicFunction,
)
from tensorflow.python.framework import function_def_to_graph as _function_def_to_graph
from tensorflow.python.framework.kernels import get_registered_kernels_for_op as kernels_of  # noqa: F401
from tensorflow.python.util import _pywrap_util_port
from tensorflow_federated.python.core.impl.compiler.array import (
    is_compatible_dtype as is_compatible_dtype,
)
from tensorflow_federated.python.core.impl.executors.cardinalities_utils import (
    infer_cardinalities as infer_cardinalities,
)
from tensorflow_federated.python.core.impl.executors.executor_base import Executor as Executor
from tensorflow_federated.python.core.impl.executors.executor_value_base import (
    ExecutorValue as ExecutorValue,
)
from tensorflow_federated.python.core.impl.utils.tensorflow_utils import (
    make_data_set_from_elements as dataset_of_elements,  # noqa: F401
)

# Imported by its path, since a function of the package has the same name.
_pfor = importlib.import_module("tensorflow.python.ops.parallel_for.pfor")

uses_onednn = _pywrap_util_port.IsMklEnabled

PFor, PForInput = _pfor.PFor, _pfor._PforInput
pfor_rules = _pfor._pfor_converter_registry
# The types of operations whose rules are applied even if no input differs by client.
pfor_always_converted = _pfor.force_stateful_ops
pfor_normalization_cache = _pfor._channel_flatten_input_cache
pfor_convert_flatten_batch = _pfor._convert_flatten_batch
pfor_convert_flatten_batch_shape_input = _pfor._convert_flatten_batch_shape_input
pfor_create_op, pfor_stack, pfor_wrap = _pfor._create_op, _pfor._stack, _pfor.wrap
WrappedTensor = _pfor.WrappedTensor
pfor_flatten_with_inner_dim = _pfor._flatten_with_inner_dim
pfor_unflatten_with_inner_dim = _pfor._unflatten_with_inner_dim


def concrete_function(definition, graph: tf.Graph, callees):
    """Makes a function from its definition, with the Python graph that `tf.vectorized_map` needs.

    Args:
        definition: A `FunctionDef`, whose nodes call the functions `callees` by their names.
        graph: Any graph, to which the functions are added.
        callees: Functions that `concrete_function` made.
    """
    with graph.as_default():
        function_graph = _function_def_to_graph.function_def_to_graph(definition)
    for callee in callees:
        callee.add_to_graph(function_graph)

    def specs(tensors):
        return tuple(tf.TensorSpec.from_tensor(tensor) for tensor in tensors)

    function_type = _function_type.from_structured_signature(
        (specs(function_graph.inputs), {}), specs(function_graph.outputs), {}
    )
    attributes = {name: value for name, value in definition.attr.items() if name != "_input_shapes"}
    function = _concrete_function.ConcreteFunction.from_func_graph(
        function_graph, function_type, attrs=attributes
    )
    function.add_to_graph(graph)
    return function


class RuntimeFunction:
    """A function of TensorFlow's runtime that takes tensors, which are not checked again.

    It keeps no Python graphs, which take several times the memory of those in the runtime and are
    needed only to trace other functions.
    """

    def __init__(self, function, manager: Callable[[], CancellationManager | None]):
        """Makes the function of a concrete one, which runs with the manager that is returned.

        The function's graph is optimized once. TensorFlow does so twice by default, but the second
        pass takes nearly as long as the first and improves rounds hardly at all. The remapper,
        which fuses operations, is off, because it breaks graphs. It splits batch normalisations and
        moves their constants out of the loop ("has inputs from different frames"). It also fuses
        products of transposed matrices into operations without a kernel ("Fusion is not
        implemented"). Rounds of networks are no faster with it. Other options of optimizers are
        unchanged.
        """
        self._captured = function.captured_inputs
        atomic = function._inference_function
        self._atomic = _without_graph(atomic, {})
        signature = atomic.cached_definition.signature  # of a definition that may be large
        self._atomic._cached_definition = _FunctionDef(signature=signature)
        self._atomic._bound_context = _ContextOfCalls(self._atomic._bound_context, manager)

    def __call__(self, tensors: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
        """Returns the flat results."""
        return self._atomic(*tensors, *self._captured)


def num_operations(function) -> int:
    """Returns the number of operations of a concrete function and of all that it calls."""
    numbers, waiting = {}, [function._inference_function]
    while waiting:
        atomic = waiting.pop()
        if atomic.name not in numbers:
            numbers[atomic.name] = len(atomic.graph.get_operations())
            waiting += atomic.children
    return sum(numbers.values())


def _without_graph(atomic, made):
    """Returns a copy without a graph, which keeps the function and its callees in the runtime."""
    if atomic.name not in made:
        light = _AtomicFunction(
            atomic.name,
            atomic._bound_context,
            atomic.function_type,
            [_without_graph(child, made) for child in atomic.children],
            atomic.call_options,
        )
        made[atomic.name] = light
    return made[atomic.name]


class _ContextOfCalls:
    """A wrapper of TensorFlow's eager context that calls functions as `RuntimeFunction` says."""

    def __init__(self, context, manager):
        self._context = context
        self._manager = manager

    def __getattr__(self, name):
        return getattr(self._context, name)

    def call_function(self, name, tensor_inputs, num_outputs):
        """Calls a function as the eager context does, but with one optimization and a manager."""
        attributes = self._context.function_call_options.as_attrs()
        attributes["config_proto"] = with_safe_optimization(attributes["config_proto"])
        call = {
            "num_outputs": num_outputs,
            "inputs": tensor_inputs,
            "attrs": tuple(part for attribute in attributes.items() for part in attribute),
            "ctx": self._context,
        }
        manager = self._manager() or _cancellation.context()
        if manager is None:
            return _execute.execute(name.decode(), **call) or []
        call["cancellation_manager"] = manager
        return _execute.execute_with_cancellation(name.decode(), **call) or []


@functools.lru_cache
def with_safe_optimization(config: bytes) -> bytes:
    """Returns a serialized `ConfigProto` with one pass of Grappler, without the remapper."""
    proto = tf.compat.v1.ConfigProto.FromString(config)
    options = proto.graph_options.rewrite_options
    options.meta_optimizer_iterations = _RewriterConfig.ONE
    options.remapping = _RewriterConfig.OFF
    return proto.SerializeToString(deterministic=True)
