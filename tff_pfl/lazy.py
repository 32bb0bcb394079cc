"""Makes packages import their names on first use (PEP 562).

A program that only shows its flags or reads files need not wait for TensorFlow. With these lines in
the `__init__.py` of a package, `from package import MetricName` imports `package.metrics`, and type
checkers and editors, which read the imports, know what it is:

    if TYPE_CHECKING:
        from package.metrics import MetricName as MetricName
    else:
        __getattr__, __dir__, __all__ = offer(__name__)
"""

import ast
import importlib
import inspect
import sys
from collections.abc import Callable
from typing import Any


def offer(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Returns the `__getattr__`, `__dir__` and `__all__` of a package.

    The package offers what its first `if` imports. Its modules are attributes too, imported or not.
    A name must differ from the names of all modules, otherwise its meaning would depend on earlier
    imports.

    Args:
        package: The package's `__name__`.
    """
    statements = ast.parse(inspect.getsource(sys.modules[package])).body
    imports = next(statement.body for statement in statements if isinstance(statement, ast.If))
    module_of = {
        alias.name: statement.module or package
        for statement in imports
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }

    def get(name: str) -> Any:
        if name in module_of:
            return getattr(importlib.import_module(module_of[name]), name)
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
