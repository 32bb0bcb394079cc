"""One module per algorithm, and the table of all of them.

A builder has the signature `build(model, examples_type, local, *, <federation>,
<hyper-parameters>, seed)` and returns a `PersonalizedProcess`. Its keyword arguments, with their
defaults, are the hyper-parameters that a config may set; those without a default, such as
`num_clients`, are what it needs to know of the federation.
"""

import inspect
from collections.abc import Callable
from typing import Any

import tensorflow_federated as tff

from tff_pfl.algorithms.ditto import build_ditto
from tff_pfl.algorithms.extension import extends
from tff_pfl.algorithms.fedamp import build_fedamp, build_heur_fedamp
from tff_pfl.algorithms.fedavg import build_fedavg
from tff_pfl.algorithms.fedfomo import build_fedfomo
from tff_pfl.algorithms.fedper import build_fedper
from tff_pfl.algorithms.fedpg import build_fedpg, build_s_fedpg
from tff_pfl.algorithms.fedprox import build_fedprox
from tff_pfl.algorithms.fedrep import build_fedrep
from tff_pfl.algorithms.fedsam import build_fedsam
from tff_pfl.algorithms.ifca import build_ifca
from tff_pfl.algorithms.local_training import build_local
from tff_pfl.algorithms.pfedhn import build_pfedhn, build_pfedhn_pc, build_plgu_ghn
from tff_pfl.algorithms.pfedmb import build_pfedmb
from tff_pfl.algorithms.pfedme import build_pfedme
from tff_pfl.algorithms.pgfed import build_pgfed, build_pgfed_ce, build_pgfedmo, build_pgfedmo_ce
from tff_pfl.algorithms.plgu_grep import build_plgu_grep
from tff_pfl.algorithms.plgu_lf import build_plgu_lf
from tff_pfl.local import LocalSGD
from tff_pfl.models import Model
from tff_pfl.names import check_names
from tff_pfl.templates import PersonalizedProcess

ALGORITHMS: dict[str, Callable[..., PersonalizedProcess]] = {
    "ditto": build_ditto,
    "fedamp": build_fedamp,
    "fedavg": build_fedavg,
    "fedfomo": build_fedfomo,
    "fedper": build_fedper,
    "fedpg": build_fedpg,
    "fedprox": build_fedprox,
    "fedrep": build_fedrep,
    "fedsam": build_fedsam,
    "heur_fedamp": build_heur_fedamp,
    "ifca": build_ifca,
    "local": build_local,
    "pfedhn": build_pfedhn,
    "pfedhn_pc": build_pfedhn_pc,
    "pfedmb": build_pfedmb,
    "pfedme": build_pfedme,
    "pgfed": build_pgfed,
    "pgfed_ce": build_pgfed_ce,
    "pgfedmo": build_pgfedmo,
    "pgfedmo_ce": build_pgfedmo_ce,
    "plgu_ghn": build_plgu_ghn,
    "plgu_grep": build_plgu_grep,
    "plgu_lf": build_plgu_lf,
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
    return {
        p.name: p.default
        for p in inspect.signature(builder(name)).parameters.values()
        if p.kind is p.KEYWORD_ONLY and p.default is not p.empty and p.name != "seed"
    }


def build(
    name: str,
    model: Model,
    examples_type: tff.types.Type,
    local: LocalSGD,
    *,
    num_clients: int,
    clients_per_round: int,
    seed: int = 0,
    **hyperparameters: Any,
) -> PersonalizedProcess:
    """Builds an algorithm by its name, for a federation.

    Args:
        name: A key of `ALGORITHMS`.
        model: The model.
        examples_type: TFF type of a client's examples.
        local: The local training.
        num_clients: Clients of the federation, for an algorithm that needs to know.
        clients_per_round: The most clients of a round, for an algorithm that needs to know.
        seed: Of all randomness.
        **hyperparameters: Those of `hyperparameters` that are not to have their defaults.
    """
    needed = inspect.signature(builder(name)).parameters
    federation = {"num_clients": num_clients, "clients_per_round": clients_per_round}
    known = {key: value for key, value in federation.items() if key in needed}
    return builder(name)(model, examples_type, local, **known, **hyperparameters, seed=seed)


__all__ = [
    "ALGORITHMS",
    "build",
    "build_ditto",
    "build_fedamp",
    "build_fedavg",
    "build_fedfomo",
    "build_fedper",
    "build_fedpg",
    "build_fedprox",
    "build_fedrep",
    "build_fedsam",
    "build_heur_fedamp",
    "build_ifca",
    "build_local",
    "build_pfedhn",
    "build_pfedhn_pc",
    "build_pfedmb",
    "build_pfedme",
    "build_pgfed",
    "build_pgfed_ce",
    "build_pgfedmo",
    "build_pgfedmo_ce",
    "build_plgu_ghn",
    "build_plgu_grep",
    "build_plgu_lf",
    "build_s_fedpg",
    "builder",
    "extends",
    "hyperparameters",
]
