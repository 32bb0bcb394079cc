"""The defaults of a config."""

from collections.abc import Sequence

import ml_collections

from tff_pfl.experiment.config.imports import import_modules
from tff_pfl.experiment.config.keys import own_keys
from tff_pfl.experiment.config.options import (
    ALGORITHM,
    ATTACK,
    AUGMENTATION,
    AVAILABILITY,
    COMPRESSION,
    PARTITIONER,
    SCHEDULE,
)


def default_config(
    algorithm: str = "fedavg", *, imports: Sequence[str] = ()
) -> ml_collections.ConfigDict:
    """All keys of a config, for an algorithm with its own default hyper-parameters.

    `tff_pfl/experiment/config/keys.py` says what they mean.

    Args:
        algorithm: A key of `tff_pfl.algorithms.ALGORITHMS`.
        imports: Modules that register names, such as that of the algorithm.

    Raises:
        UnknownNameError: For an unknown algorithm; it gives the nearest one.
        ImportsError: If a module cannot be imported.
    """
    import_modules(imports)
    config = own_keys()
    config.imports = tuple(imports)
    partitioner = config.data.partitioner
    for name in PARTITIONER.registry:
        PARTITIONER.set(config, name)
    config.data.partitioner = partitioner
    for choice in (SCHEDULE, AUGMENTATION, AVAILABILITY, ATTACK, COMPRESSION):
        choice.set(config, choice.default)
    ALGORITHM.set(config, algorithm)
    return config
