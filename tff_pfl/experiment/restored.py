"""Restores a run, finished or stopped, as it was at its last checkpoint."""

import contextlib
import os
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

import absl.logging
import numpy as np
from ml_collections import config_dict

from tff_pfl.clients import CohortDataSource
from tff_pfl.data import FederatedDataset
from tff_pfl.experiment import config as configs
from tff_pfl.experiment.checkpoint import Checkpoint, client_states
from tff_pfl.experiment.program import suitable_capacity
from tff_pfl.experiment.run_directory import CHECKPOINT, OutputDirectoryError
from tff_pfl.experiment.run_files import RunFiles
from tff_pfl.experiment.versions import other_versions
from tff_pfl.models import Model
from tff_pfl.templates import PersonalizedProcess


class RestoredRun(NamedTuple):
    """A run as it was at its last checkpoint.

    Attributes:
        config: Its config.
        dataset: The data of the clients that train.
        new_clients: The data of those that do not, if there are any.
        model: Its model.
        process: Its algorithm.
        source: The source of the clients' states and training examples.
        capacity: The `CohortDataSource.capacity` of the clients that are evaluated at a time.
        server_state: The process's `ServerState`.
        round_num: Rounds done.
        reported: bool `[clients]`, who was in a cohort up to then, and reported.
    """

    config: config_dict.ConfigDict
    dataset: FederatedDataset
    new_clients: FederatedDataset | None
    model: Model
    process: PersonalizedProcess
    source: CohortDataSource
    capacity: str | None
    server_state: Any
    round_num: int
    reported: np.ndarray

    @property
    def title(self) -> str:
        """The algorithm and the data set."""
        return f"{self.config.algorithm.name} on {self.config.data.name}"


@contextlib.contextmanager
def restored_run(
    run_dir: str | os.PathLike, *, trust_imports: bool | Collection[str] = (), **changes: Any
) -> Iterator[RestoredRun]:
    """`with restored_run(run_dir) as run`: the last checkpoint of a run, finished or stopped.

    Nothing in the directory is changed; the states of clients can be read inside of the `with`.
    Where versions, code or the machine are others than those of the run, a warning is logged.

    Args:
        run_dir: The run's output directory.
        trust_imports: See `config_of_run`.
        **changes: Keys of `config.evaluation` that are other than the run's; a warning is logged
            for those that have no effect.

    Raises:
        OutputDirectoryError: If there is no run, or none with a checkpoint.
        ConfigError: If the run's config is not one of this version, or a change is impossible.
    """
    store_path = os.path.join(run_dir, CHECKPOINT)
    config = changed_config(run_dir, changes, trust_imports)
    if not os.path.isdir(store_path) or not os.listdir(store_path):
        raise OutputDirectoryError(f"{run_dir} has no checkpoint of a run.")
    if others := other_versions(run_dir, config.imports):
        absl.logging.warning(
            "%s was computed with other versions, or other code, and numbers may differ: %s",
            os.fspath(run_dir),
            "; ".join(others),
        )
    asked = [f"evaluation.{key}" for key, value in changes.items() if value]
    for idle in configs.without_effect(config, asked):
        absl.logging.warning("%s: %s", os.fspath(run_dir), idle)
    dataset, new_clients = configs.hold_out(config, configs.build_dataset(config))
    model = configs.build_model(config, dataset)
    process = configs.build_process(config, model, dataset)
    clients_at_a_time = config.evaluation.clients_per_call
    capacity = suitable_capacity(model, dataset, clients_at_a_time, config.local.batch_size)
    with client_states(process, store_path, read_only=True) as store:
        source = CohortDataSource(
            dataset,
            store,
            process.client_type,
            seed=config.seed,
            capacity=capacity,
            participation=configs.participation(config),
        )
        progress = Checkpoint(store, process, dataset, config.clients_per_round).load(source)
        if not progress.round_num:
            raise OutputDirectoryError(
                f"{run_dir} has no checkpoint of a run: no round was committed."
            )
        yield RestoredRun(
            config,
            dataset,
            new_clients,
            model,
            process,
            source,
            capacity,
            progress.server_state,
            progress.round_num,
            progress.reported,
        )


def changed_config(
    run_dir: str | os.PathLike, changes: Mapping[str, Any], trust_imports: bool | Collection[str]
) -> config_dict.ConfigDict:
    """Returns the config of a run, with other keys of `config.evaluation`; see `restored_run`."""
    config = configs.config_of_run(RunFiles(run_dir).settings(), trust_imports=trust_imports)
    try:
        if "synthetic" in changes:
            changes = {**changes, "synthetic": tuple(map(float, changes["synthetic"]))}
        config.evaluation.update(changes)
    except (TypeError, ValueError) as error:
        raise configs.ConfigError(f"config.evaluation: {error}") from error
    configs.check_config(config)
    return config
