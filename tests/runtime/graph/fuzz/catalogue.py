"""What an operation of the fuzz is, and how a module lists its own."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from tests.runtime.graph.fuzz.operands import Operand


@dataclasses.dataclass(frozen=True)
class Operation:
    """A function of tensors, in client work.

    Attributes:
        name: Unique in all catalogues.
        family: What it belongs to.
        function: From tensors to a structure of tensors.
        variants: How the arguments are drawn, in one way or several.
        draws: Whether the function draws random numbers, which XLA draws otherwise.
    """

    name: str
    family: str
    function: Callable[..., Any]
    variants: tuple[tuple[Operand, ...], ...]
    draws: bool = False


class Family:
    """The operations of a family, in the order of their definitions.

    family = Family("reductions")
    family.add("sum", tf.reduce_sum, real("n", 3))
    """

    def __init__(self, name: str, draws: bool = False):
        self._name = name
        self._draws = draws
        self._operations: dict[str, Operation] = {}

    def __iter__(self) -> Iterator[Operation]:
        return iter(self._operations.values())

    def add(self, name: str, function: Callable, *operands: Operand) -> None:
        self.add_variants(name, function, [operands])

    def add_variants(
        self, name: str, function: Callable, variants: Iterable[Sequence[Operand]]
    ) -> None:
        name = f"{self._name}/{name}"
        if name in self._operations:
            raise ValueError(f"There are two operations {name!r}.")
        variants = tuple(map(tuple, variants))
        self._operations[name] = Operation(name, self._name, function, variants, self._draws)
