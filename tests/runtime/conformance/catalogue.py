"""What a conformance case is, and how a module lists its own.

A case is a function that builds something to run on both runtimes:

    case = Catalogue()

    @case(dtype=[np.float32, np.int32])
    def sum_of_scalars(dtype):
        @tff.federated_computation(at_clients(dtype))
        def total(x):
            return tff.federated_sum(x)

        return Run(total, [dtype(1), dtype(2)], gives=dtype(3))

The catalogue then has the cases `sum_of_scalars-float32` and `sum_of_scalars-int32`.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator

import grpc
import numpy as np
import tensorflow_federated as tff

from tests.runtime.conformance.compare import TOLERANCE

UNSTATED = object()

# A computation that fails while it runs: the stock runtime is at the other end of a connection.
RUN_ERRORS = (grpc.RpcError,)


class Run:
    """Something to run on both runtimes.

    Attributes:
        function: A computation, or a function that calls computations.
        args: Its arguments.
        gives: The result, where it is easily stated; it guards against a case that does not test
            what it means to. Where the stock runtime must raise: what another may give instead.
        instead: What to run on the stock runtime where that cannot run `function`.
        tolerance: Of floats, relative and absolute: more than that of rounding where the two
            runtimes draw random numbers of their own.
    """

    def __init__(
        self,
        function: Callable,
        *args,
        gives=UNSTATED,
        instead: Callable | None = None,
        tolerance: float = TOLERANCE,
    ):
        self.function = function
        self.args = args
        self.gives = gives
        self.instead = instead or function
        self.tolerance = tolerance


@dataclasses.dataclass(frozen=True)
class Case:
    """A named `Run`, not built before it is needed.

    Attributes:
        name: Unique in its catalogue.
        build: Returns the run.
        raises: The exceptions of which running it must raise one, if it must.
        match: A regular expression found in the exception's message, if any.
        kinds: Of runtimes it is run on: the stock one, and the graph runtime with clients
            vectorized or not as it sees fit, or never.
    """

    name: str
    build: Callable[[], Run]
    raises: type[Exception] | tuple[type[Exception], ...] | None = None
    match: str | None = None
    kinds: tuple[str, ...] = ("stock", "auto", "never")


class Catalogue:
    """The cases of a module, in the order of their definitions; see the module's docstring."""

    def __init__(self):
        self._cases: list[Case] = []

    def __iter__(self) -> Iterator[Case]:
        return iter(self._cases)

    def __call__(
        self,
        *,
        raises=None,
        match=None,
        kinds=Case.kinds,
        unless=lambda **_: False,
        **parameters,
    ):
        """A decorator; the function becomes a case for each combination of the parameters.

        There is no case where the function `unless` is true.
        """

        def add(build):
            combinations = [
                dict(zip(parameters, values, strict=True))
                for values in itertools.product(*parameters.values())
            ]
            for options in (o for o in combinations if not unless(**o)):
                values = options.values()
                name = "-".join([build.__name__, *map(_label, values)])
                bound = lambda options=options: build(**options)  # noqa: E731
                self._cases.append(Case(name, bound, raises, match, kinds))
            return build

        return add


def _label(value) -> str:
    return getattr(value, "__name__", None) or str(value)


def at_clients(member) -> tff.types.FederatedType:
    return tff.types.FederatedType(member, tff.CLIENTS)


def at_server(member) -> tff.types.FederatedType:
    return tff.types.FederatedType(member, tff.SERVER)


def mapped(function: Callable, member) -> tff.Computation:
    """The federated computation that applies a TensorFlow function to every client's value."""
    function = tff.tensorflow.computation(function, member)

    @tff.federated_computation(at_clients(member))
    def map_clients(values):
        return tff.federated_map(function, values)

    return map_clients


# Computations that cases of several modules are made of.


@tff.tensorflow.computation(np.float32)
def double(x):
    return 2 * x


@tff.tensorflow.computation(np.float32, np.float32)
def subtract(a, b):
    return a - b
