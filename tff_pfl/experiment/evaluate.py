"""Evaluates the last checkpoint of a run, finished or stopped."""

import dataclasses
import os
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np

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
from tff_pfl.experiment.client_tables import RESULT_SUFFIXES, statistics_table
from tff_pfl.experiment.config.errors import values_of
from tff_pfl.experiment.metrics_log import write_table
from tff_pfl.experiment.restored import capacity_of_evaluation, changed_config, restored_run
from tff_pfl.experiment.results import Evaluation
from tff_pfl.experiment.run_directory import OutputDirectoryError
from tff_pfl.files import write_json

_CHOSEN_MODELS = ("further_models", "fine_tune_epochs", "fine_tune_learning_rate")


class Baseline(NamedTuple):
    """The run that another is compared with.

    Attributes:
        run: The algorithm and the data set.
        round_num: Rounds done.
        fingerprint: Identifies its data and their partition.
        clients: The measurements of each client.
    """

    run: str
    round_num: int
    fingerprint: str
    clients: ClientMetrics


class EvaluatedRun(NamedTuple):
    """The evaluation of the last checkpoint of a run.

    Attributes:
        run: The algorithm and the data set.
        options: With which it was evaluated, as JSON values.
        evaluation: The round and the metrics.
        clients: The measurements of each client.
        was_selected: bool `[clients]`, who of those that were evaluated took part in a round up to
            then.
        new_clients: The measurements of those that the run held out, if there are any.
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
        """Returns gains over the baseline, `{}` without one; see `tff_pfl.evaluation.gains`."""
        if self.baseline is None:
            return {}
        return gains(self.clients, self.baseline.clients, self.was_selected)

    def columns(self) -> dict[str, np.ndarray]:
        """Returns a table with a row for each client but the new ones, for a file."""
        columns = self.clients.columns() | {"was_selected": self.was_selected.astype(np.int32)}
        if self.baseline is not None:
            for name, values in gains_of_clients(self.clients, self.baseline.clients).items():
                columns[f"{name}_gain"] = values
        return columns

    def to_json(self) -> dict[str, Any]:
        """Returns all but the clients, for a file."""
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
        ConfigError: If the run's config is not one of this version, or a change is impossible.
    """
    compared = None
    if baseline is not None:  # and closed again: it may be the same run
        config = changed_config(run_dir, changes, trust_imports)
        compared = _evaluate_baseline(baseline, configs.evaluation_options(config), trust_imports)
    with restored_run(run_dir, trust_imports=trust_imports, **changes) as run:
        options = configs.evaluation_options(run.config)
        if compared is not None and compared.fingerprint != run.dataset.fingerprint:
            raise OutputDirectoryError(
                f"The baseline {os.fspath(baseline)} has other data than {os.fspath(run_dir)}, or "
                f"another partition of them (fingerprints {compared.fingerprint} and "
                f"{run.dataset.fingerprint}): clients cannot be compared. Train it with the same "
                "config.data, config.seed and config.new_clients.number; a method that new clients "
                "cannot begin with takes config.new_clients.evaluated=False."
            )
        clients = _evaluate_clients(run, options)
        new_clients = _evaluate_new_clients(run)
    metrics = summarize(clients)
    if new_clients is not None:
        metrics |= summarize(new_clients)
    chosen = {key: run.config.evaluation[key] for key in _CHOSEN_MODELS}
    return EvaluatedRun(
        run.title,
        dataclasses.asdict(options) | chosen,
        Evaluation(run.round_num, metrics),
        clients,
        run.reported[clients.client_ids],
        new_clients,
        compared,
    )


def _evaluate_clients(run, options) -> ClientMetrics:
    configs.check_split(run.dataset, options.split)
    with values_of("evaluation"):
        evaluator = Evaluator(run.process, run.model, run.dataset, options)
    return evaluator(run.server_state, run.source, is_last=True)


def _evaluate_new_clients(run) -> ClientMetrics | None:
    capacity = capacity_of_evaluation(run.config, run.model, run.dataset)
    evaluate = configs.build_new_clients_evaluation(
        run.config, run.process, run.model, run.new_clients, capacity
    )
    if evaluate is None:
        return None
    configs.check_split(run.new_clients, run.config.evaluation.split, "new client")
    return evaluate(run.server_state)


def _evaluate_baseline(run_dir, options, trust_imports) -> Baseline:
    """Evaluates a baseline on the same examples as the run that is compared with it."""
    # Its own models, as it calls them: those that it fine-tuned beside them are others.
    config = changed_config(run_dir, {}, trust_imports)
    beside = "fine_tuned" in config.evaluation.further_models
    tuning = {"fine_tune_epochs": 0} if beside else {}
    restored = restored_run(run_dir, trust_imports=trust_imports, further_models=(), **tuning)
    with restored as run:
        clients = _evaluate_clients(run, options)
        return Baseline(run.title, run.round_num, run.dataset.fingerprint, clients)
