"""Isolates tests that import a user's own modules from other tests."""

import contextlib
import os
import sys
from collections.abc import Iterator

from tff_pfl.algorithms import ALGORITHMS
from tff_pfl.attacks import ATTACKS
from tff_pfl.compression import COMPRESSORS
from tff_pfl.data import PARTITIONERS
from tff_pfl.datasets import DATASETS
from tff_pfl.local import OPTIMIZERS
from tff_pfl.models import MODELS
from tff_pfl.templates import AGGREGATORS

REGISTRIES = (
    AGGREGATORS,
    ALGORITHMS,
    ATTACKS,
    COMPRESSORS,
    DATASETS,
    MODELS,
    OPTIMIZERS,
    PARTITIONERS,
)


@contextlib.contextmanager
def own_modules(folder: str | os.PathLike) -> Iterator[None]:
    """Removes modules imported from a folder, and registered names, at its end."""
    path, registered = list(sys.path), [dict(registry) for registry in REGISTRIES]
    try:
        yield
    finally:
        sys.path[:] = path
        for name, module in list(sys.modules.items()):
            if (getattr(module, "__file__", None) or "").startswith(f"{folder}{os.sep}"):
                del sys.modules[name]
        for registry, names in zip(REGISTRIES, registered, strict=True):
            registry._registered = names
