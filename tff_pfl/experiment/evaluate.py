"""The last checkpoint of a run, finished or stopped, and its evaluation."""

import contextlib
import dataclasses
import os
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

import absl.logging
import numpy as np
from ml_collections import config_dict

from tff_pfl.clients import CohortDataSource
from tff_pfl.data import FederatedDataset
from tff_pfl.evaluation import (
    ClientMetrics,
    Distribution,
    Evaluator,
    Gain,
    MetricName,
    distributions,
    gains,
    gains_of_clients,
    summarize,
    to_text,
)
from tff_pfl.experiment import config as configs
from tff_pfl.experiment.checkpoint import Checkpoint, client_states
from tff_pfl.experiment.client_tables import RESULT_SUFFIXES, statistics_table
from tff_pfl.experiment.config.sections import values_of
from tff_pfl.experiment.metrics_log import write_table
from tff_pfl.experiment.program import suitable_capacity
from tff_pfl.experiment.results import Evaluation
from tff_pfl.experiment.run_directory import CHECKPOINT, OutputDirectoryError
from tff_pfl.experiment.run_files import RunFiles
from tff_pfl.experiment.versions import other_versions
from tff_pfl.files import write_json
from tff_pfl.models import Model
from tff_pfl.templates import PersonalizedProcess

_CHOSEN_MODELS = ("further_models", "fine_tune_epochs", "fine_tune_learning_rate")


class Baseline(NamedTuple):
    """The run that another is compared with.

    Attributes:
        run: The algorithm and the data set.
        round_num: Rounds done.
        fingerprint: Of its data and their partition.
        clients: What was measured of each client.
    """

    run: str
    round_num: int
    fingerprint: str
    clients: ClientMetrics


class EvaluatedRun(NamedTuple):
    """What was found at the last checkpoint of a run.

    Attributes:
        run: The algorithm and the data set.
        options: With which it was evaluated, as JSON values.
        evaluation: The round and the metrics.
        clients: What was measured of each client.
        was_selected: bool `[clients]`, who of those that were evaluated took part in a round up to
            then.
        new_clients: What was measured of those that the run held out, if there are any.
        baseline: The run that it is compared with, if there is one.
    """

    run: str
    options: Mapping[str, Any]
    evaluation: Evaluation
    clients: ClientMetrics
    was_selected: np.ndarray
    new_clients: ClientMetrics | None = None
    baseline: Baseline | None = None

    def distributions(self) -> dict[str, dict[MetricName, Distribution]]:
        """See `tff_pfl.evaluation.distributions`; new clients are a group of their own."""
        found = distributions(self.clients, self.was_selected)
        if self.new_clients is not None:
            nobody = np.zeros(len(self.new_clients.client_ids), bool)
            found["new_clients"] = distributions(self.new_clients, nobody)["all"]
        return found

    def gains(self) -> dict[str, dict[MetricName, Gain]]:
        """Over the baseline, `{}` without one; see `tff_pfl.evaluation.gains`."""
        if self.baseline is None:
            return {}
        return gains(self.clients, self.baseline.clients, self.was_selected)

    def columns(self) -> dict[str, np.ndarray]:
        """A table with a row for each client but the new ones, for a file."""
        columns = self.clients.columns() | {"was_selected": self.was_selected.astype(np.int32)}
        if self.baseline is not None:
            for name, values in gains_of_clients(self.clients, self.baseline.clients).items():
                columns[f"{name}_gain"] = values
        return columns

    def to_json(self) -> dict[str, Any]:
        """All but the clients, for a file."""
        content = {
            "run": self.run,
            "round_num": self.evaluation.round_num,
            "options": self.options,
            "metrics": to_text(self.evaluation.metrics),
            "distributions": _grouped_to_json(self.distributions()),
        }
        if self.baseline is not None:
            content["baseline"] = {
                "run": self.baseline.run,
                "round_num": self.baseline.round_num,
                "gains": _grouped_to_json(self.gains()),
            }
        return content

    def write(self, prefix: str) -> list[str]:
        """Writes the files of `evaluate_program`, and returns their paths."""
        tables = [statistics_table(self.distributions(), self.gains()), self.columns()]
        if self.new_clients is not None:
            tables.append(self.new_clients.columns())
        paths = [prefix + suffix for suffix in RESULT_SUFFIXES[: 1 + len(tables)]]
        write_json(paths[0], self.to_json())
        for path, columns in zip(paths[1:], tables, strict=True):
            write_table(path, columns)
        return paths


def _grouped_to_json(groups: Mapping[str, Mapping[MetricName, NamedTuple]]) -> dict[str, Any]:
    return {
        group: {str(name): statistics._asdict() for name, statistics in found.items()}
        for group, found in groups.items()
    }


def evaluate_run(
    run_dir: str | os.PathLike,
    baseline: str | os.PathLike | None = None,
    *,
    trust_imports: bool | Collection[str] = (),
    **changes: Any,
) -> EvaluatedRun:
    """Evaluates the last checkpoint of a run.

    Args:
        run_dir: See `evaluate_program`.
        baseline: The output directory of a run of the same clients with the same examples, such as
            one of local training, over which each client gains or loses. Its last checkpoint is
            evaluated on the same split.
        trust_imports: See `config_of_run`; it holds for both runs.
        **changes: See `evaluate_program`.

    Raises:
        OutputDirectoryError: If there is no run, or none with a checkpoint; or the baseline has
            other data or another partition of them.
        ConfigError: If the run's config is not one of this version, or a change has no effect.
    """
    compared = None
    if baseline is not None:  # and closed again: it may be the same run
        options = configs.evaluation_options(_config_of(run_dir, changes, trust_imports))
        compared = _evaluate_baseline(baseline, options, trust_imports)
    with restored_run(run_dir, trust_imports=trust_imports, **changes) as run:
        options = configs.evaluation_options(run.config)
        configs.check_split(run.dataset, options.split)
        if compared is not None and compared.fingerprint != run.dataset.fingerprint:
            raise OutputDirectoryError(
                f"The baseline {os.fspath(baseline)} has other data than {os.fspath(run_dir)}, or "
                f"another partition of them (fingerprints {compared.fingerprint} and "
                f"{run.dataset.fingerprint}): clients cannot be compared. Train it with the same "
                "config.data, config.seed and config.new_clients.number, and of a method that has "
                "nothing for new clients config.new_clients.evaluated=False."
            )
        with values_of("evaluation"):
            evaluator = Evaluator(run.process, run.model, run.dataset, options)
        clients = evaluator(run.server_state, run.source, is_last=True)
        new_clients = _evaluate_new_clients(run)
    metrics = summarize(clients)
    if new_clients is not None:
        metrics |= summarize(new_clients)
    config = run.config
    chosen = {key: config.evaluation[key] for key in _CHOSEN_MODELS}
    return EvaluatedRun(
        run.title,
        dataclasses.asdict(options) | chosen,
        Evaluation(run.round_num, metrics),
        clients,
        run.reported[clients.client_ids],
        new_clients,
        compared,
    )


def _evaluate_new_clients(run) -> ClientMetrics | None:
    capacity = _capacity(run.config, run.model, run.dataset)
    evaluate = configs.build_new_clients_evaluation(
        run.config, run.process, run.model, run.new_clients, capacity
    )
    if evaluate is None:
        return None
    configs.check_split(run.new_clients, run.config.evaluation.split, "new client")
    return evaluate(run.server_state)


def _capacity(config, model, dataset):
    clients_at_a_time = config.evaluation.clients_per_call
    return suitable_capacity(model, dataset, clients_at_a_time, config.local.batch_size)


def _evaluate_baseline(run_dir, options, trust_imports) -> Baseline:
    """A baseline on the same examples as the run that is compared with it."""
    # Its own models, as it calls them: those that it fine-tuned beside them are others.
    beside = "fine_tuned" in _config_of(run_dir, {}, trust_imports).evaluation.further_models
    tuning = {"fine_tune_epochs": 0} if beside else {}
    restored = restored_run(run_dir, trust_imports=trust_imports, further_models=(), **tuning)
    with restored as run:
        configs.check_split(run.dataset, options.split)
        with values_of("evaluation"):
            evaluator = Evaluator(run.process, run.model, run.dataset, options)
        clients = evaluator(run.server_state, run.source, is_last=True)
        return Baseline(run.title, run.round_num, run.dataset.fingerprint, clients)


class RestoredRun(NamedTuple):
    """A run as it was at its last checkpoint.

    Attributes:
        config: Its config.
        dataset: The data of the clients that train.
        new_clients: The data of those that do not, if there are any.
        model: Its model.
        process: Its algorithm.
        source: Of the clients' states and training examples.
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
        **changes: Keys of `config.evaluation` that are other than the run's.

    Raises:
        OutputDirectoryError: If there is no run, or none with a checkpoint.
        ConfigError: If the run's config is not one of this version, or a change has no effect.
    """
    store_path = os.path.join(run_dir, CHECKPOINT)
    config = _config_of(run_dir, changes, trust_imports)
    if not os.path.isdir(store_path) or not os.listdir(store_path):
        raise OutputDirectoryError(f"{run_dir} has no checkpoint of a run.")
    if others := other_versions(run_dir, config.imports):
        absl.logging.warning(
            "%s was computed with other versions, or other code, and numbers may differ: %s",
            os.fspath(run_dir),
            "; ".join(others),
        )
    dataset, new_clients = configs.hold_out(config, configs.build_dataset(config))
    model = configs.build_model(config, dataset)
    process = configs.build_process(config, model, dataset)
    with client_states(process, store_path, read_only=True) as store:
        source = CohortDataSource(
            dataset,
            store,
            process.client_type,
            seed=config.seed,
            capacity=_capacity(config, model, dataset),
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
            progress.server_state,
            progress.round_num,
            progress.reported,
        )


def _config_of(run_dir, changes, trust_imports) -> config_dict.ConfigDict:
    """The config of a run, with other keys of `config.evaluation`."""
    config = configs.config_of_run(RunFiles(run_dir).settings(), trust_imports=trust_imports)
    try:
        config.evaluation.update(changes)
    except TypeError as error:
        raise configs.ConfigError(f"config.evaluation: {error}") from error
    configs.check_config(config)
    _check_effect(config, changes)
    return config


def _check_effect(config, changes) -> None:
    """Refuses what nothing looks at; `generalization`, which is always given, is no such thing."""
    asked = [key for key, value in changes.items() if value and key != "generalization"]
    idle = configs.without_effect(config, [f"evaluation.{key}" for key in asked])
    if idle is not None:
        key, switch = (name.removeprefix("evaluation.") for name in idle[:2])
        raise configs.ConfigError(
            f"{key}={changes[key]!r} has no effect, as {switch} is {idle.value!r}."
        )
