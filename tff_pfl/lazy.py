"""Makes packages import their names on first use (PEP 562).

A program that only shows its flags or reads files need not wait for TensorFlow. With this line in
the `__init__.py` of a package, `from package import MetricName` imports `package.metrics`:

    __getattr__, __dir__, __all__ = offer(__name__, {"metrics": ("MetricName", "direction")})
"""

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def offer(
    package: str, names: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Returns the `__getattr__`, `__dir__` and `__all__` of a package.

    The package's modules are attributes too, imported or not. A name must differ from the names of
    all modules, otherwise its meaning would depend on earlier imports.

    Args:
        package: The package's `__name__`.
        names: A mapping from modules to the names that they define.
    """
    module_of = {name: module for module, offered in names.items() for name in offered}

    def get(name: str) -> Any:
        if name in module_of:
            return getattr(importlib.import_module(f"{package}.{module_of[name]}"), name)
        if not name.startswith("_"):
            try:
                return importlib.import_module(f"{package}.{name}")
            except ModuleNotFoundError as error:
                if error.name != f"{package}.{name}":  # An import inside the module failed.
                    raise
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def names_of_package() -> list[str]:
        return sorted({*vars(sys.modules[package]), *module_of})

    return get, names_of_package, sorted(module_of)
