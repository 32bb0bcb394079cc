"""Conformance cases, the list of a module's cases, and the comparison of two results.

A case is a function that builds something to run:

    case = Cases()

    @case(dtype=[np.float32, np.int32], fast=["int32"])
    def sum_of_scalars(dtype):
        @tff.federated_computation(at_clients(dtype))
        def total(x):
            return tff.federated_sum(x)

        return Run(total, [dtype(1), dtype(2)], gives=dtype(3))

The list then has the cases `sum_of_scalars-float32` and `sum_of_scalars-int32`.
"""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import attrs
import grpc
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

UNSTATED = object()
TOLERANCE = 1e-5
# Errors of computations that fail while they run; the stock runtime is a server.
RUN_ERRORS = (grpc.RpcError,)


class Run:
    """A function with arguments, to run on both runtimes.

    Attributes:
        function: A computation, or a function that calls computations.
        args: The arguments.
        gives: The expected result, if it is easy to state. In a case that must raise on the stock
            runtime, the result that the graph runtime may give instead.
        instead: A replacement that the stock runtime runs if it cannot run `function`.
        is_divisible: Whether the cohort may be divided among devices without another result.
    """

    def __init__(self, function, *args, gives=UNSTATED, instead=None, is_divisible=True):
        self.function = function
        self.args = args
        self.gives = gives
        self.instead = instead or function
        self.is_divisible = is_divisible


@dataclasses.dataclass(frozen=True)
class Case:
    """A named `Run`, which is built when it is needed.

    Attributes:
        name: The name, unique among all cases.
        build: A function that returns the run.
        fast: Whether the case runs by default, on the graph runtime only.
        raises: The exceptions one of which must be raised, or `None`.
        match: A regular expression for the exception's message, or `None`.
    """

    name: str
    build: Callable[[], Run]
    fast: bool
    raises: type[Exception] | tuple[type[Exception], ...] | None
    match: str | None


class Cases(list):
    """The cases of a module; see the module's docstring."""

    def __call__(self, *, fast=(), raises=None, match=None, **parameters):
        """Returns a decorator that makes a case for each combination of the parameters.

        Args:
            fast: `True`, or the values of parameters that make a case fast.
            raises: See `Case`.
            match: See `Case`.
            **parameters: The values of each parameter.
        """

        def add(build):
            for values in itertools.product(*parameters.values()):
                labels = [getattr(value, "__name__", None) or str(value) for value in values]
                options = dict(zip(parameters, values, strict=True))
                is_fast = fast is True or (fast and bool(set(fast).intersection(labels)))
                run = lambda options=options: build(**options)  # noqa: E731
                name = "-".join([build.__name__, *labels])
                self.append(Case(name, run, bool(is_fast), raises, match))
            return build

        return add


def assert_same(actual, expected, path: str = "result") -> None:
    """Asserts that two results have the same containers, types and values.

    Floats are compared up to a tolerance, everything else exactly.
    """
    if isinstance(expected, tf.data.Dataset):
        assert actual.element_spec == expected.element_spec, path
        actual, expected = list(actual), list(expected)
    if isinstance(expected, np.ndarray):
        assert isinstance(actual, np.ndarray), f"{path}: {type(actual)}, not an array"
    else:
        assert type(actual) is type(expected), f"{path}: {type(actual)}, not {type(expected)}"
    if isinstance(expected, dict):
        assert list(actual) == list(expected), path
        children = [(actual[key], expected[key], repr(key)) for key in expected]
    elif isinstance(expected, (list, tuple)):
        assert len(actual) == len(expected), f"{path}: {actual!r}, not {expected!r}"
        children = zip(actual, expected, itertools.count(), strict=False)
    elif attrs.has(type(expected)):
        names = [field.name for field in attrs.fields(type(expected))]
        children = [(getattr(actual, name), getattr(expected, name), name) for name in names]
    else:
        _assert_same_leaf(actual, expected, path)
        return
    for one, other, key in children:
        assert_same(one, other, f"{path}[{key}]")


def _assert_same_leaf(actual, expected, path) -> None:
    if isinstance(expected, tf.Tensor):  # an element of a data set
        actual, expected = actual.numpy(), expected.numpy()
    if isinstance(expected, bytes):
        assert actual == expected, path
        return
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.dtype == expected.dtype, f"{path}: {actual.dtype}, not {expected.dtype}"
    assert actual.shape == expected.shape, f"{path}: {actual.shape}, not {expected.shape}"
    if tf.dtypes.as_dtype(expected.dtype).is_integer or expected.dtype.kind in "bO":
        np.testing.assert_array_equal(actual, expected, path)
    else:
        double = np.complex128 if expected.dtype.kind == "c" else np.float64
        np.testing.assert_allclose(
            actual.astype(double), expected.astype(double), TOLERANCE, TOLERANCE, err_msg=path
        )


# The functions below make types and computations for cases.


def at_clients(member: Any) -> tff.types.FederatedType:
    return tff.types.FederatedType(member, tff.CLIENTS)


def at_server(member: Any) -> tff.types.FederatedType:
    return tff.types.FederatedType(member, tff.SERVER)


def tensor(dtype, *shape) -> tff.types.TensorType:
    return tff.types.TensorType(dtype, shape)


def mapped(function: Callable, member) -> tff.Computation:
    """Makes a federated computation that applies a TensorFlow function to each client's value."""
    function = tff.tensorflow.computation(function, member)

    @tff.federated_computation(at_clients(member))
    def map_clients(values):
        return tff.federated_map(function, values)

    return map_clients


def identity(type_spec) -> tff.Computation:
    return tff.federated_computation(lambda x: x, type_spec)


@tff.tensorflow.computation(np.float32)
def double(x):
    return 2 * x


@tff.tensorflow.computation(np.float32, np.float32)
def subtract(a, b):
    return a - b


@tff.tensorflow.computation(np.float32, np.float32)
def add(a, b):
    return a + b
