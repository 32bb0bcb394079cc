"""Evaluates the last checkpoint of a run, finished or not."""

import dataclasses
import os
import pathlib
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import numpy as np

from tff_pfl import config as configs
from tff_pfl.config.errors import config_errors
from tff_pfl.evaluation import (
    ClientMetrics,
    Distribution,
    Evaluator,
    Gain,
    MetricName,
    Predictions,
    distributions,
    gains,
    gains_of_clients,
    summarize,
    to_text,
)
from tff_pfl.experiment.interruption import exit_code_of
from tff_pfl.experiment.metrics_log import write_table
from tff_pfl.experiment.restored import changed_config, restored_by
from tff_pfl.experiment.run_directory import (
    OutputDirectoryError,
    RunDirectory,
    check_writable,
    is_run_directory,
)
from tff_pfl.experiment.summary import Evaluation, rows
from tff_pfl.output.files import write_json, write_parquet
from tff_pfl.output.tables import aligned, decimal

_PREDICTIONS_SUFFIX = "_predictions.parquet"
RESULT_SUFFIXES = (".json", "_table.csv", ".csv", "_new_clients.csv", _PREDICTIONS_SUFFIX)
"""The endings of an evaluation's files, after their prefix; see `evaluate_program`."""

_GROUPS = {
    "all": "all",
    "participants": "took part",
    "never_selected": "never took part",
    "new_clients": "new clients",
}
_NO_GAIN = Gain(0, np.nan, np.nan, np.nan)
_Grouped = Mapping[str, Mapping[MetricName, Any]]
_CHOSEN_MODELS = ("further_models", "fine_tune_epochs", "fine_tune_learning_rate")


class EvaluatedRun(NamedTuple):
    """The evaluation of the last checkpoint of a run.

    Attributes:
        run: The algorithm and the data set.
        options: The options of the evaluation, as JSON values.
        evaluation: The round and the metrics.
        clients: The measurements of each client.
        was_selected: bool `[clients]`: the evaluated clients that took part in a round before.
        fingerprint: The fingerprint of the data and their partition.
        new_clients: The measurements of the clients that the run held out, if there are any.
        baseline: The evaluation of the baseline, if there is one.
        predictions: The models' outputs on each example of each client, if they were requested.
    """

    run: str
    options: Mapping[str, Any]
    evaluation: Evaluation
    clients: ClientMetrics
    was_selected: np.ndarray
    fingerprint: str
    new_clients: ClientMetrics | None = None
    baseline: "EvaluatedRun | None" = None
    predictions: Predictions | None = None

    def distributions(self) -> dict[str, dict[MetricName, Distribution]]:
        """Returns `tff_pfl.evaluation.distributions`, with new clients as a further group."""
        found = distributions(self.clients, self.was_selected)
        if self.new_clients is not None:
            nobody = np.zeros(len(self.new_clients.client_ids), bool)
            found["new_clients"] = distributions(self.new_clients, nobody)["all"]
        return found

    def gains(self) -> dict[str, dict[MetricName, Gain]]:
        """Returns `tff_pfl.evaluation.gains` over the baseline; `{}` without a baseline."""
        if self.baseline is None:
            return {}
        return gains(self.clients, self.baseline.clients, self.was_selected)

    def columns(self) -> dict[str, np.ndarray]:
        """Returns the columns of a table with a row for each client, except new clients."""
        columns = self.clients.columns(undefined=None)
        columns["was_selected"] = self.was_selected.astype(np.int32)
        if self.baseline is not None:
            for name, values in gains_of_clients(self.clients, self.baseline.clients).items():
                columns[f"{name}_gain"] = values
        return columns

    def to_json(self) -> dict[str, Any]:
        """Returns the evaluation as JSON values, without the measurements of single clients."""
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
                "round_num": self.baseline.evaluation.round_num,
                "gains": _grouped_to_json(self.gains()),
            }
        return content

    def write(self, prefix: str) -> list[str]:
        """Writes the files of `evaluate_program` and returns their paths."""
        tables = [statistics_table(self.distributions(), self.gains()), self.columns()]
        if self.new_clients is not None:
            tables.append(self.new_clients.columns(undefined=None))
        paths = [prefix + suffix for suffix in RESULT_SUFFIXES[: 1 + len(tables)]]
        write_json(paths[0], self.to_json())
        for path, columns in zip(paths[1:], tables, strict=True):
            write_table(path, columns)
        if self.predictions is not None:
            paths.append(prefix + _PREDICTIONS_SUFFIX)
            write_parquet(paths[-1], self.predictions.columns())
        return paths


def _grouped_to_json(groups: _Grouped) -> dict[str, Any]:
    return {
        group: {str(name): statistics._asdict() for name, statistics in found.items()}
        for group, found in groups.items()
    }


def evaluate_run(
    run_dir: str | os.PathLike,
    baseline: str | os.PathLike | None = None,
    *,
    predictions: bool = False,
    trust_imports: bool | Collection[str] = (),
    **changes: Any,
) -> EvaluatedRun:
    """Evaluates the last checkpoint of a run.

    Args:
        run_dir: See `evaluate_program`.
        baseline: The output directory of another run of the same clients with the same examples,
            such as a run of local training. Each client's gain over the baseline is computed: the
            baseline's last checkpoint is evaluated on the same split.
        predictions: Whether to record the outputs of each model on each example of its client. The
            baseline and clients that the run held out are left out.
        trust_imports: See `config_of_run`; it applies to both runs.
        **changes: See `evaluate_program`.

    Raises:
        OutputDirectoryError: There is no run with a checkpoint; or the baseline has other data or
            another partition of them.
        ConfigError: The run's config is not a config of this version, or a change is impossible.
    """
    config = changed_config(run_dir, changes, trust_imports)
    if baseline is None:
        return _evaluated(run_dir, config, predictions=predictions)
    of_baseline = changed_config(baseline, {}, trust_imports)
    # Gains are over each client's own model, not over the fine-tuned one beside it.
    if "fine_tuned" in of_baseline.evaluation.further_models:
        of_baseline.evaluation.fine_tune_epochs = 0
    of_baseline.evaluation.further_models = ()
    compared = _evaluated(baseline, of_baseline, configs.evaluation_options(config))
    return _evaluated(run_dir, config, baseline=compared, predictions=predictions)


def _evaluated(run_dir, config, options=None, baseline=None, predictions=False) -> EvaluatedRun:
    """Evaluates a run; `options` are given for a baseline, from the run compared with it."""
    with restored_by(run_dir, config) as run:
        if baseline is not None and baseline.fingerprint != run.dataset.fingerprint:
            raise OutputDirectoryError(
                f"The baseline has other data than {os.fspath(run_dir)}, or another partition of "
                f"them (fingerprints {baseline.fingerprint} and {run.dataset.fingerprint}). Train "
                "it with the same config.data, config.seed and config.new_clients.number, and with "
                "config.new_clients.evaluated=False if its method cannot start new clients."
            )
        is_baseline = options is not None
        options = options or configs.evaluation_options(run.config)
        configs.check_split(run.dataset, options.split)
        with config_errors("evaluation"):
            evaluator = Evaluator(run.process, run.model, run.dataset, options)
        clients = evaluator(run.server_state, run.source, is_last=True)
        found = evaluator.predictions(run.server_state, run.source) if predictions else None
        new_clients = None if is_baseline else _evaluate_new_clients(run)
    metrics = summarize(clients) | ({} if new_clients is None else summarize(new_clients))
    chosen = {key: run.config.evaluation[key] for key in _CHOSEN_MODELS}
    return EvaluatedRun(
        run.title,
        dataclasses.asdict(options) | chosen,
        Evaluation(run.round_num, metrics),
        clients,
        run.reported[clients.client_ids],
        run.dataset.fingerprint,
        new_clients,
        baseline,
        found,
    )


def _evaluate_new_clients(run) -> ClientMetrics | None:
    evaluate = run.new_clients_evaluation(run.capacity(run.config.evaluation.clients_per_call))
    if evaluate is None:
        return None
    configs.check_split(run.new_clients, run.config.evaluation.split, "new client")
    return evaluate(run.server_state)


def statistics_table(distributions: _Grouped, gains: _Grouped) -> dict[str, np.ndarray]:
    """Returns a table of all statistics, with a row for each quantity of a group of clients.

    Args:
        distributions: The distributions, by group and name.
        gains: The gains over a baseline, by group and name; may be empty.

    Returns:
        The columns `model`, `pool`, `quantity` and `group`; the fields of `Distribution`, with the
        deciles in `decile_1` to `decile_9`; and, if there are gains, `gain_mean`, `gain_std` and
        `share_hurt`, which are NaN in rows without a gain.
    """
    table = []
    for group, found in distributions.items():
        for name, distribution in found.items():
            row = {"model": name.model, "pool": name.pool, "quantity": name.quantity}
            row |= {"group": group, **distribution._asdict()}
            deciles = row.pop("deciles")
            row |= {f"decile_{tenths}": value for tenths, value in enumerate(deciles, 1)}
            if gains:
                gain = gains.get(group, {}).get(name, _NO_GAIN)
                row |= {f"gain_{key}": getattr(gain, key) for key in ("mean", "std")}
                row["share_hurt"] = gain.share_hurt
            table.append(row)
    return {column: np.array([row[column] for row in table]) for column in table[0]}


def client_tables(distributions: _Grouped, gains: _Grouped) -> list[str]:
    """Returns the lines of short tables, one for each accuracy on clients' own examples.

    Args:
        distributions: The distributions, by group and name. Each group is a row.
        gains: The gains over a baseline, by group and name; may be empty.
    """
    heads = ["", "clients", "mean", "weighted", "lowest 10 %", "median", "top 10 %"]
    heads += ["mean gain", "share hurt"] if gains else []
    lines = []
    for name in dict.fromkeys(name for found in distributions.values() for name in found):
        if name.quantity == "loss" or not name.is_of_own_examples:
            continue
        table = [heads]
        for group, found in distributions.items():
            if name in found:
                gain = gains.get(group, {}).get(name)
                table.append([_GROUPS[group], *_cells(found[name])])
                table[-1] += map(decimal, (gain.mean, gain.share_hurt)) if gain else []
                table[-1] += ["-"] * (len(heads) - len(table[-1]))
        lines += ["", f"over clients: {name}", *aligned(table)]
    return lines


def _cells(found: Distribution) -> list[str]:
    shown = (found.mean, found.weighted_mean, found.lowest_10_percent)
    shown += (found.deciles[4], found.top_10_percent)
    return [str(found.num_clients), *map(decimal, shown)]


def evaluate_program(
    run_dir: str,
    output: str,
    *,
    baseline: str | None = None,
    set_context: Callable[[], None] = lambda: None,
    **changes: Any,
) -> int:
    """Evaluates a run and prints the result.

    Args:
        run_dir: The run's output directory; nothing in it is changed.
        output: The prefix of the result files: `OUTPUT.json` and `OUTPUT_table.csv` have all
            statistics, the table with a row for each quantity and group of clients; `OUTPUT.csv`
            has a row for each client; `OUTPUT_new_clients.csv` has a row for each new client, if
            there are any; `OUTPUT_predictions.parquet` has a row for each example of each client,
            if `predictions` is given (see `Predictions`). Missing folders are created.
        baseline: See `evaluate_run`.
        set_context: Sets the context in which TFF computations are executed. By default it is
            chosen as by `train`.
        **changes: `predictions` (see `evaluate_run`), `trust_imports` (see `config_of_run`), and
            new values for keys of `config.evaluation`.

    Returns:
        The exit code: 0, 1 after an error that the user can fix, 130 after Ctrl-C, 143 after
        SIGTERM.
    """

    def evaluate():
        check_writable(output)
        _check_apart(output)
        set_context()
        found = evaluate_run(run_dir, baseline, **changes)
        print(f"round {found.evaluation.round_num} of {found.run}")
        print("\n".join(rows(found.evaluation.metrics)))
        print("\n".join(client_tables(found.distributions(), found.gains())))
        if compared := found.baseline:
            print(f"gains are over round {compared.evaluation.round_num} of {compared.run}")
        # The numbers are printed before: they may have taken hours, and the disk may be full.
        os.makedirs(os.path.dirname(os.path.abspath(output)), exist_ok=True)
        print(f"results: {', '.join(found.write(output))}")

    return exit_code_of(evaluate)


def _check_apart(output):
    """Checks that the result files would not replace files of any run."""
    for suffix in RESULT_SUFFIXES:
        path = pathlib.Path(os.path.realpath(output + suffix))
        for folder in filter(is_run_directory, path.parents):
            if path.relative_to(folder).parts[0] in RunDirectory.FILES:
                raise OutputDirectoryError(
                    f"output={output!r}: {output + suffix} would replace a file of a run. Choose "
                    "another prefix."
                )
