"""Isolates tests that import a user's own modules, or register names, from other tests."""

import contextlib
import os
import sys
from collections.abc import Iterator

from tff_pfl.config.options import CHOICES
from tff_pfl.datasets import DATASETS
from tff_pfl.experiment import TRACKERS

REGISTRIES = {choice.registry.kind: choice.registry for choice in CHOICES}
REGISTRIES |= {registry.kind: registry for registry in (DATASETS, TRACKERS)}


@contextlib.contextmanager
def own_names() -> Iterator[None]:
    """Removes names at its end that were registered inside."""
    before = {kind: dict(registry) for kind, registry in REGISTRIES.items()}
    try:
        yield
    finally:
        for kind, names in before.items():
            REGISTRIES[kind]._registered = names


@contextlib.contextmanager
def own_modules(folder: str | os.PathLike) -> Iterator[None]:
    """Removes modules imported from a folder, and names that were registered, at its end."""
    path = list(sys.path)
    with own_names():
        try:
            yield
        finally:
            sys.path[:] = path
            for name, module in list(sys.modules.items()):
                if (getattr(module, "__file__", None) or "").startswith(f"{folder}{os.sep}"):
                    del sys.modules[name]
