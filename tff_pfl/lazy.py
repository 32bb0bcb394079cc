"""Packages that import their names when they are first used (PEP 562).

A program that only shows its flags, or reads files, does not wait for TensorFlow:

    __getattr__, __dir__, __all__ = offer(__name__, {"metrics": ("MetricName", "direction")})

in the `__init__.py` of a package makes `from package import MetricName` import `package.metrics`.
"""

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def offer(
    package: str, names: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Returns the `__getattr__`, `__dir__` and `__all__` of a package.

    The modules of the package are attributes as well, whether they were imported or not. No name
    may be that of a module: which of the two it meant would depend on earlier imports.

    Args:
        package: Its `__name__`.
        names: The names it offers, by the module that defines them.
    """
    module_of = {name: module for module, offered in names.items() for name in offered}

    def get(name: str) -> Any:
        if name in module_of:
            return getattr(importlib.import_module(f"{package}.{module_of[name]}"), name)
        if not name.startswith("_"):
            try:
                return importlib.import_module(f"{package}.{name}")
            except ModuleNotFoundError as error:
                if error.name != f"{package}.{name}":  # the module imports another one
                    raise
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def names_of_package() -> list[str]:
        return sorted({*vars(sys.modules[package]), *module_of})

    return get, names_of_package, sorted(module_of)
