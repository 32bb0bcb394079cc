"""What the numbers of a config may be."""

import functools

import ml_collections

from tff_pfl import algorithms, data, evaluation, models
from tff_pfl.attacks import scaled_uploads
from tff_pfl.local import LocalSGD
from tff_pfl.ranges import Range, at_least, ranges_of, up_to, whole

# The numbers of a config that nobody else takes as they are.
_OWN_NUMBERS = {
    "seed": whole(0, 2**63 - 1),
    "rounds": whole(1),
    "clients_per_round": whole(1),
    "checkpoint_every": whole(1),
    "local.learning_rate": at_least(0),
    "local.momentum": up_to(0, 1),
    "evaluation.every": whole(0),
    "evaluation.fine_tune_epochs": whole(0),
    "evaluation.fine_tune_learning_rate": at_least(0),
    "new_clients.number": whole(0),
    "new_clients.fine_tune_epochs": whole(0),
}


def number_ranges(config: ml_collections.ConfigDict) -> dict[str, Range]:
    """The ranges of all numbers of a config, by keys such as "local.epochs".

    They are stated by those who take the numbers: the builder of the algorithm, the network, the
    partitioner, and so on. What they say of other arguments is no key of the config.
    """
    sections = {
        "algorithm": algorithms.ALGORITHMS[config.algorithm.name],
        "attack": scaled_uploads,
        "data": data.federate,
        "evaluation": evaluation.EvaluationOptions,
        "local": LocalSGD,
        "model.options": models.ZOO[config.model.name],
    }
    sections |= {f"data.{name}": make for name, make in data.PARTITIONERS.items()}
    ranges = dict(_OWN_NUMBERS)
    for section, owner in sections.items():
        found = functools.reduce(lambda x, name: x.get(name, {}), section.split("."), config)
        for name, range_ in ranges_of(owner).items():
            if name in found:
                ranges[f"{section}.{name}"] = range_
    return ranges
