"""One module, or one folder, per algorithm.

`ALGORITHMS` has all of them by name, those that a user registers included. Those of the library
are found here as functions, too:

    from tff_pfl.algorithms import ditto

    algorithm = ditto(model, local, lambda_=0.5)        # an Algorithm
    process = compose(algorithm, examples_type)         # a tff.templates.IterativeProcess

and `build_ditto(model, examples_type, local, lambda_=0.5)` is the process at once.
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
    trains_where,
)

# Each module registers what it defines.
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
    "trains_where",
    *ALGORITHMS,
]
