"""Restores a run, finished or not, from its last checkpoint."""

import contextlib
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import absl.logging
import ml_collections
import numpy as np

from tff_pfl import config as configs
from tff_pfl import runtime
from tff_pfl.clients import CohortDataSource
from tff_pfl.data import FederatedDataset
from tff_pfl.experiment.checkpoint import (
    Checkpoint,
    check_trained,
    checkpoint_of,
    client_states,
    trained_state,
)
from tff_pfl.experiment.identity import of_computations, of_data
from tff_pfl.experiment.run_files import RunFiles
from tff_pfl.experiment.versions import other_versions
from tff_pfl.models import Model
from tff_pfl.templates import PersonalizedProcess


class RestoredRun(configs.BuiltRun):
    """A run with the states of its last checkpoint.

    Attributes:
        source: The source of the clients' states and training examples.
        server_state: The process's `ServerState`.
        round_num: The number of rounds done.
        reported: bool `[clients]`: the clients that have been in a cohort and reported.
    """

    source: CohortDataSource
    server_state: Any
    round_num: int
    reported: np.ndarray


@contextlib.contextmanager
def restored_run(
    run_dir: str | os.PathLike, *, trust_imports: bool | Collection[str] = (), **changes: Any
) -> Iterator[RestoredRun]:
    """Restores a run, finished or not, from its last checkpoint.

        with restored_run(run_dir) as run:
            print(run.round_num)

    Nothing in the directory is changed. Client states can be read until the end of the `with`. A
    warning is logged if versions, code or the machine differ from those of the run. Within the
    `with`, computations are executed in the context that `train` would choose.

    Args:
        run_dir: The run's output directory.
        trust_imports: See `config_of_run`.
        **changes: New values for keys of `config.evaluation`. A warning is logged for keys that
            have no effect.

    Raises:
        OutputDirectoryError: There is no run with a checkpoint.
        ConfigError: The run's config is not a config of this version, or a change is impossible.
    """
    with restored_by(run_dir, changed_config(run_dir, changes, trust_imports)) as run:
        yield run


@contextlib.contextmanager
def restored_by(
    run_dir: str | os.PathLike, config: ml_collections.ConfigDict
) -> Iterator[RestoredRun]:
    """Restores a run with its config, which may be changed; see `restored_run`."""
    store_path, run = checkpoint_of(run_dir), RestoredRun(config)
    with (
        runtime.current_or_graph_context(),
        client_states(run.process, store_path, read_only=True) as store,
    ):
        warn_of_other_versions(run_dir, config.imports)  # devices are those of the context
        check_trained(store, of_data(run.dataset))
        run.source = CohortDataSource(
            run.dataset,
            store,
            run.process.client_type,
            seed=config.seed,
            capacity=run.capacity(config.evaluation.clients_per_call),
            participation=configs.participation(config),
        )
        # `config.evaluation` may ask for other models.
        rounds = of_computations(run.process)["rounds"]
        identity = {"rounds": rounds, "clients_per_round": config.clients_per_round}
        progress = Checkpoint(store, run.process, identity).load(run.source)
        run.server_state, run.round_num = progress.server_state, progress.round_num
        run.reported = progress.reported
        yield run


def check_unchanged(run_dir: str | os.PathLike, config: ml_collections.ConfigDict) -> None:
    """Checks that a run with a checkpoint is the run of a config, with its data and its code.

    Raises:
        OutputDirectoryError: The data, the code or the metrics have changed.
        ConfigError: A value of the config is wrong.
    """
    run = configs.BuiltRun(config)
    now = of_data(run.dataset) | of_computations(run.process, run.model)
    with client_states(run.process, checkpoint_of(run_dir), read_only=True) as store:
        check_trained(store, now)


class TrainedRun(NamedTuple):
    """The last checkpoint of a run that was trained in Python; see `RestoredRun`.

    `source` is `None` if the clients that trained are not needed.
    """

    title: str
    round_num: int
    process: PersonalizedProcess
    model: Model
    dataset: FederatedDataset
    source: CohortDataSource | None
    server_state: Any


@contextlib.contextmanager
def trained_run(
    process: PersonalizedProcess,
    model: Model,
    dataset: FederatedDataset,
    run_dir: str | os.PathLike,
) -> Iterator[TrainedRun]:
    """Restores a run that was trained in Python, as `restored_run` restores runs by configs.

        with trained_run(process, model, dataset, run_dir) as run:
            evaluator = Evaluator(process, model, dataset, EvaluationOptions())
            predictions = evaluator.predictions(run.server_state, run.source)

    Args:
        process: The process that was trained.
        model: The model of the process.
        dataset: The data that it was trained on.
        run_dir: The run's output directory; nothing in it is changed.

    Raises:
        OutputDirectoryError: There is no run with a checkpoint, or the run is of another process or
            other data.
        ForeignStateError: The states of the clients are of another type.
    """
    path, title = checkpoint_of(run_dir), os.fspath(run_dir)
    with (
        runtime.current_or_graph_context(),
        client_states(process, path, read_only=True) as store,
    ):
        warn_of_other_versions(run_dir)
        state = trained_state(store, process, dataset)
        source = CohortDataSource(dataset, store, process.client_type, seed=0)
        yield TrainedRun(title, int(state.round_num), process, model, dataset, source, state)


def warn_of_other_versions(run_dir: str | os.PathLike, imports: Iterable[str] = ()) -> None:
    """Logs a warning that names the differences if there are any; see `other_versions`."""
    if others := other_versions(run_dir, imports):
        absl.logging.warning(
            "%s was computed with other versions or other code, and numbers may differ: %s",
            os.fspath(run_dir),
            "; ".join(others),
        )


def changed_config(
    run_dir: str | os.PathLike, changes: Mapping[str, Any], trust_imports: bool | Collection[str]
) -> ml_collections.ConfigDict:
    """Returns a run's config with changed values of `config.evaluation`; see `restored_run`."""
    config = configs.config_of_run(RunFiles(run_dir).settings, trust_imports=trust_imports)
    try:
        if "synthetic" in changes:
            changes = {**changes, "synthetic": tuple(map(float, changes["synthetic"]))}
        config.evaluation.update(changes)
    except (TypeError, ValueError) as error:
        raise configs.ConfigError(f"config.evaluation: {error}") from error
    configs.check_config(config)
    changed = [f"evaluation.{key}" for key, value in changes.items() if value]
    for warning in configs.unused_settings(config, changed):
        absl.logging.warning("%s: %s", os.fspath(run_dir), warning)
    return config
