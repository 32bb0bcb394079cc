"""The operations of the fuzz, and a function with which a module lists its operations."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tests.runtime.graph.fuzz.operands import Operand

_NAMES = "xyzvw"


@dataclasses.dataclass(frozen=True)
class Operation:
    """A function of tensors in client work.

    Attributes:
        name: The name, unique in all families.
        family: The name of its family.
        function: A function from tensors to a structure of tensors.
        variants: The alternative lists of operands.
        draws: Whether the function draws random numbers, which differ under XLA.
        fails: Whether the function may fail for a client, and then must fail for all.
    """

    name: str
    family: str
    function: Callable[..., Any]
    variants: Sequence[Sequence[Operand]]
    draws: bool = False
    fails: bool = False


def family(
    name: str,
    table: Mapping[str, Sequence[Operand]],
    *,
    draws: bool = False,
    fails: bool = False,
    **helpers: Any,
) -> list[Operation]:
    """Makes operations from expressions.

    Args:
        name: The name of the family.
        table: The operands of each expression, in which they are x, y, z, v and w in this order.
        draws: See `Operation`.
        fails: See `Operation`.
        **helpers: Further names in expressions, besides `tf`.
    """
    operations = []
    for expression, operands in table.items():
        names = ", ".join(_NAMES[: len(operands)])
        function = eval(f"lambda {names}: {expression}", {"tf": tf} | helpers)
        operations.append(
            Operation(f"{name}/{expression}", name, function, [operands], draws, fails)
        )
    return operations
