"""Whether there are examples to evaluate on."""

import ml_collections

from tff_pfl import evaluation
from tff_pfl.data import FederatedDataset
from tff_pfl.experiment.config.errors import ConfigError
from tff_pfl.experiment.config.sections import values_of


def check_splits(
    config: ml_collections.ConfigDict, dataset: FederatedDataset, num_clients: int
) -> None:
    """Checks that those whom a run evaluates have examples for it.

    Args:
        config: Of the run.
        dataset: Of all clients.
        num_clients: How many train, the first ones; others are new when the model is trained.

    Raises:
        ConfigError: If none of those who train, of the sample of them, or of the new clients has
            examples in the split that they are evaluated on, or the sample is larger than all.
    """
    options, new_clients = config.evaluation, config.new_clients
    with values_of("evaluation"):
        drawn = evaluation.sampled_clients(config.seed, num_clients, options.clients)
    who = "client that trains" if new_clients.number else "client"
    for split in (options.split, "validation") if options.validation else (options.split,):
        check_split(dataset, split, who, slice(num_clients))
        if options.clients and not dataset.sizes(split)[drawn].any():
            raise ConfigError(
                f"config.evaluation.clients={options.clients}, but none of those that are drawn "
                f"has {split} examples. Evaluate more of them."
            )
    if new_clients.number and new_clients.evaluated:
        check_split(dataset, options.split, "new client", slice(num_clients, None))


def check_split(
    dataset: FederatedDataset, split: str, who: str = "client", clients: slice = slice(None)
) -> None:
    """Checks that there is something to evaluate on.

    Args:
        dataset: The data.
        split: To evaluate on.
        who: What the clients are called.
        clients: Those that are evaluated.

    Raises:
        ConfigError: If none of the clients has examples in the split.
    """
    if not dataset.sizes(split)[clients].any():
        raise ConfigError(
            f"The split to evaluate on is {split!r}, but no {who} has {split} examples. Before "
            "a run, config.data.fractions, or without merge config.data.num_validation, gives them "
            "some."
        )
