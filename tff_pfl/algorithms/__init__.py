"""One module per algorithm, and the table of all of them.

A builder has the signature `build(model, examples_type, local, *, <hyper-parameters>, seed)` and
returns a `PersonalizedProcess`. Its keyword arguments, with their defaults, are the
hyper-parameters that a config may set.
"""

import inspect
from collections.abc import Callable
from typing import Any

from tff_pfl.algorithms.ditto import build_ditto
from tff_pfl.algorithms.fedavg import build_fedavg
from tff_pfl.algorithms.fedper import build_fedper
from tff_pfl.algorithms.fedpg import build_fedpg, build_s_fedpg
from tff_pfl.algorithms.local_training import build_local
from tff_pfl.names import check_names
from tff_pfl.templates import PersonalizedProcess

ALGORITHMS: dict[str, Callable[..., PersonalizedProcess]] = {
    "ditto": build_ditto,
    "fedavg": build_fedavg,
    "fedper": build_fedper,
    "fedpg": build_fedpg,
    "local": build_local,
    "s_fedpg": build_s_fedpg,
}


def builder(name: str) -> Callable[..., PersonalizedProcess]:
    """The builder of an algorithm.

    Raises:
        ValueError: For an unknown name; it gives the nearest one.
    """
    check_names("algorithm", [name], ALGORITHMS)
    return ALGORITHMS[name]


def hyperparameters(name: str) -> dict[str, Any]:
    """The hyper-parameters of an algorithm with their defaults; the seed is the run's."""
    parameters = inspect.signature(builder(name)).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY and p.name != "seed"}


__all__ = [
    "ALGORITHMS",
    "build_ditto",
    "build_fedavg",
    "build_fedper",
    "build_fedpg",
    "build_local",
    "build_s_fedpg",
    "builder",
    "hyperparameters",
]
