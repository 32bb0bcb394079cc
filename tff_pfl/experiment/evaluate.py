"""Evaluates the last checkpoint of a run, finished or not."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tff_pfl.evaluation import (
    ClientMetrics,
    Distribution,
    Evaluation,
    Gain,
    MetricName,
    Predictions,
    distributions,
    gains,
    gains_of_clients,
    summarize,
    to_text,
)
from tff_pfl.experiment.metrics_log import write_table
from tff_pfl.experiment.run_directory import OutputDirectoryError
from tff_pfl.experiment.summary import EvaluatedRound, rows
from tff_pfl.output.files import write_json, write_parquet
from tff_pfl.output.tables import aligned, decimal

if TYPE_CHECKING:
    from tff_pfl.experiment.run import Run

_PREDICTIONS_SUFFIX = "_predictions.parquet"
RESULT_SUFFIXES = (".json", "_table.csv", ".csv", "_new_clients.csv", _PREDICTIONS_SUFFIX)
"""The endings of an evaluation's files, after their prefix; see `EvaluationResult.write`."""

_GROUPS = {
    "all": "all",
    "participants": "took part",
    "never_selected": "never took part",
    "new_clients": "new clients",
}
_NO_GAIN = Gain(0, np.nan, np.nan, np.nan)
_Grouped = Mapping[str, Mapping[MetricName, Any]]


class EvaluationResult(NamedTuple):
    """The evaluation of the last checkpoint of a run.

    Attributes:
        run: The algorithm and the data set.
        options: The options of the evaluation, as JSON values.
        final: The round and the metrics.
        clients: The measurements of each client.
        was_selected: bool `[clients]`: the evaluated clients that took part in a round before.
        new_clients: The measurements of the clients that the run held out, if there are any.
        baseline: The evaluation of the baseline, if there is one.
        predictions: The models' outputs on each example of each client, if they were requested.
    """

    run: str
    options: Mapping[str, Any]
    final: EvaluatedRound
    clients: ClientMetrics
    was_selected: np.ndarray
    new_clients: ClientMetrics | None = None
    baseline: "EvaluationResult | None" = None
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

    def __repr__(self) -> str:
        """Returns the tables that `programs/evaluate.py` prints."""
        lines = [f"round {self.final.round_num} of {self.run}", *rows(self.final.metrics)]
        lines += client_tables(self.distributions(), self.gains())
        if it := self.baseline:
            lines.append(f"gains are over round {it.final.round_num} of {it.run}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Returns the evaluation as JSON values, without the measurements of single clients."""
        content = {
            "run": self.run,
            "round_num": self.final.round_num,
            "options": self.options,
            "metrics": to_text(self.final.metrics),
            "distributions": _grouped_to_json(self.distributions()),
        }
        if self.baseline is not None:
            content["baseline"] = {
                "run": self.baseline.run,
                "round_num": self.baseline.final.round_num,
                "gains": _grouped_to_json(self.gains()),
            }
        return content

    def write(self, prefix: str) -> list[str]:
        """Writes the evaluation to files, and returns their paths.

        `PREFIX.json` and `PREFIX_table.csv` have all statistics, the table with a row for each
        quantity and group of clients; `PREFIX.csv` has a row for each client;
        `PREFIX_new_clients.csv` has a row for each new client, if there are any;
        `PREFIX_predictions.parquet` has a row for each example of each client, if predictions were
        requested (see `Predictions`).
        """
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


def evaluated(
    run: "Run", baseline: "Run | None" = None, *, predictions: bool = False
) -> EvaluationResult:
    """Evaluates the last checkpoint of a run; see `Run.evaluate`."""
    experiment, compared = run.experiment, None
    if baseline is not None:
        _check_same_clients(run, baseline)
        compared = evaluated(_evaluated_as(baseline, experiment.evaluation))
    experiment.check_evaluated()
    evaluator = experiment.evaluator
    with run.restored() as found:
        state = found.server_state
        clients = evaluator(state, found.source, is_last=True)
        predicted = evaluator.predictions(state, found.source) if predictions else None
        evaluate_new_clients = experiment.new_clients_evaluation
        new_clients = None if evaluate_new_clients is None else evaluate_new_clients(state)
    metrics = summarize(clients) | ({} if new_clients is None else summarize(new_clients))
    return EvaluationResult(
        experiment.title,
        dataclasses.asdict(experiment.evaluation),
        EvaluatedRound(found.round_num, metrics),
        clients,
        found.reported[clients.client_ids],
        new_clients,
        compared,
        predicted,
    )


def _check_same_clients(run: "Run", baseline: "Run") -> None:
    prints = [one.experiment.members.fingerprint for one in (baseline, run)]
    if prints[0] != prints[1]:
        raise OutputDirectoryError(
            f"The baseline has other data than {run.folder}, or another partition of them "
            f"(fingerprints {prints[0]} and {prints[1]}). Train it with the same data, seed and "
            "number of new clients, and without evaluating these if its method cannot start new "
            "clients."
        )


def _evaluated_as(baseline: "Run", evaluation: Evaluation) -> "Run":
    """Returns the baseline with the evaluation of the run that is compared with it.

    Its own models stay those that it evaluates: gains are over each client's own model, not over a
    fine-tuned one beside it.
    """
    experiment = baseline.experiment
    own = experiment.evaluation
    evaluation = dataclasses.replace(
        evaluation,
        further_models=(),
        fine_tune_epochs=own.fine_tune_epochs if own.fine_tunes_own_models else 0,
        fine_tune_learning_rate=own.fine_tune_learning_rate,
    )
    held_out = experiment.new_clients
    held_out = held_out and dataclasses.replace(held_out, evaluated=False)
    changed = dataclasses.replace(experiment, evaluation=evaluation, new_clients=held_out)
    return type(baseline)(baseline.folder, changed)


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
    shown = [found.mean, found.weighted_mean, found.lowest_10_percent]
    shown += [found.deciles[4], found.top_10_percent]
    return [str(found.num_clients), *map(decimal, shown)]
