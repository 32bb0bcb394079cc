"""The algorithms, one module or folder each.

`ALGORITHMS` maps names to algorithms, and includes the ones that users register. The library's
algorithms are also functions of this package:

    from tff_pfl.algorithms import ditto

    algorithm = ditto(model, local, lambda_=0.5)        # an Algorithm
    process = compose(algorithm, examples_type)         # a tff.templates.IterativeProcess

`build_ditto(model, examples_type, local, lambda_=0.5)` makes the process in one call.
"""

import functools
import importlib
import pkgutil

from tff_pfl.algorithms.registry import (
    ALGORITHMS,
    build,
    hyperparameters,
    idle_where,
    make,
)

# Importing a module registers its algorithms.
for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
globals().update(ALGORITHMS)

_BUILD = "build_"


def __getattr__(name: str):
    if name.startswith(_BUILD) and name.removeprefix(_BUILD) in ALGORITHMS:
        return functools.partial(build, name.removeprefix(_BUILD))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "ALGORITHMS",
    "build",
    "hyperparameters",
    "idle_where",
    "make",
    *ALGORITHMS,
]
