"""What a module of TFF exports, by labels.

A label is the name of an export, or of an attribute of one, and what tells two of its cases apart:
`SumFactory`, `SumFactory:integers`, `DifferentiallyPrivateFactory.gaussian_fixed`.
"""

import inspect
import operator
from collections.abc import Iterable
from types import ModuleType


def resolve(module: ModuleType, label: str):
    """The object that a label names."""
    return operator.attrgetter(label.split(":")[0])(module)


def names(labels: Iterable[str]) -> set[str]:
    """The exports that labels name."""
    return {label.split(":")[0].split(".")[0] for label in labels}


def exports(module: ModuleType) -> set[str]:
    """The names of the functions and classes of a module."""
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and (inspect.isroutine(value) or inspect.isclass(value))
    }
