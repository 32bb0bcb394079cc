"""Reads runs and studies as tidy pandas data frames, for figures, tables and notebooks.

    from tff_pfl import analysis

    metrics = analysis.metrics("runs/quickstart")
    last = metrics[metrics["round"] == metrics["round"].max()]

Every function takes the same argument as `find_runs`: a run's folder, a study's folder, `NAME:DIR`,
or several of these. Every frame begins with the columns

    run      the folder
    label    the name of the run in figures and tables; runs of one label differ in their seeds
    seed     `config.seed`

and names a quantity by the columns `model`, `pool`, `quantity` (and `statistic`) of
`tff_pfl.MetricName`. For a quantity that is not measured on a model, such as `bytes_up_per_client`,
`quantity` is its whole name and the other columns are empty. Values are not in percent. A diverged
model has NaN or infinite values.
"""

import io
import math
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from absl import logging

from tff_pfl.analysis.runs import find_runs, seed_of
from tff_pfl.arguments.names import UnknownNameError, unknown_name
from tff_pfl.arguments.settings import NOTHING
from tff_pfl.evaluation import MetricName, main_metric
from tff_pfl.experiment.changes import changes_of
from tff_pfl.experiment.run_directory import OutputDirectoryError, flatten, reading
from tff_pfl.experiment.run_files import RunFiles
from tff_pfl.experiment.summary import finished_summary

_RUN = ["run", "label", "seed"]
_NAME = list(MetricName._fields)
# The first rounds are slower, because they trace the graphs.
_WARM_UP = 2
_MOST = 5  # names in a message
_VALIDATED = "best_on_validation"


def metrics(runs: Any) -> pd.DataFrame:
    """Reads the metrics of every round, from `metrics.csv`, of finished and unfinished runs.

    Returns:
        Columns `run`, `label`, `seed`, `round`, `model`, `pool`, `quantity`, `statistic`, `value`,
        with a row for each number.

    Raises:
        OutputDirectoryError: A run does not exist, or a file is damaged.
    """
    found = []
    for run, path in _each(runs):
        if (path / "metrics.csv").exists():
            wide = _read_rounds(path / "metrics.csv")
            long = wide.melt("round", var_name="name", value_name="value")
            long = long[long["value"] != ""]
            with reading(path / "metrics.csv"):
                long = long.astype({"round": int, "value": float})
            found.append(_with_names(long.sort_values("round", kind="stable")).assign(**run))
    return _joined(found, [*_RUN, "round", *_NAME, "value"])


def clients(runs: Any, rounds: int | str = "last") -> pd.DataFrame:
    """Reads the quantities of each client that has examples, from `clients/round_*.csv`.

    Args:
        runs: See `find_runs`.
        rounds: The number of a round, for the evaluation after it; "last"; "all"; or the name of an
            evaluation in `summary.json`, such as "best_on_validation" or "late_mean".

    Returns:
        Columns `run`, `label`, `seed`, `round`, `client_id`, `num_examples`, `model`, `pool`,
        `quantity`, `value`, with a row for each quantity of a client that is defined for it, as the
        area under the curve is not for examples of one class. `client_id` has the clients' names,
        if they have any.

    Raises:
        OutputDirectoryError: A run was not evaluated then, or a file is damaged.
    """
    found = []
    for run, path in _each(runs):
        files = RunFiles(path)
        for round_num in _rounds(files, rounds):
            table = files.clients(round_num)
            wide = pd.DataFrame(table.columns)[table.has_examples]
            wide = wide.astype({"num_examples": int})
            long = wide.melt(["client_id", "num_examples"], var_name="name", value_name="value")
            nowhere = np.zeros(len(table.has_examples), bool)
            undefined = [table.undefined.get(name, nowhere) for name in wide.columns[2:]]
            long = long[~np.concatenate([it[table.has_examples] for it in undefined])]
            found.append(_with_names(long).assign(round=round_num, **run))
    columns = [*_RUN, "round", "client_id", "num_examples", *_NAME[:-1], "value"]
    return _joined(found, columns)


def timings(runs: Any) -> pd.DataFrame:
    """Reads the seconds of every round, from `timings.csv`.

    Returns:
        Columns `run`, `label`, `seed`, `round`, `round_seconds`, and the other columns of the
        files. Values are NaN where a round lacks the part.

    Raises:
        OutputDirectoryError: A run has not done a round, or a file is damaged.
    """
    found = [
        pd.DataFrame(RunFiles(path).timings()).astype({"round": int}).assign(**run)
        for run, path in _each(runs)
    ]
    columns = dict.fromkeys(name for frame in found for name in frame)
    return _joined(found, [*_RUN, *(name for name in columns if name not in _RUN)])


def evaluations(runs: Any) -> pd.DataFrame:
    """Reads the evaluations of finished runs, from `summary.json`.

    Returns:
        Columns `run`, `label`, `seed`, `evaluation` ("final", "best_on_validation", "best_on_test"
        or "late_mean"), `model`, `pool`, `quantity`, `statistic`, `value`.
    """
    rows = [
        {**run, "evaluation": evaluation, **name._asdict(), "value": value}
        for run, path in _each(find_runs(runs).finished)
        for evaluation, evaluated in finished_summary(path).evaluations.items()
        for name, value in evaluated.metrics.items()
    ]
    return pd.DataFrame(rows, columns=[*_RUN, "evaluation", *_NAME, "value"])


def summaries(runs: Any) -> pd.DataFrame:
    """Reads the methods and the costs of finished runs, with a row for each run.

    Returns:
        Columns `run`, `label`, `seed`; `algorithm` and `data`, the names in the config; `rounds`;
        `bytes_down` and `bytes_up`, which a client receives and sends in a round; `round_seconds`,
        the median without the first two rounds; `epsilon` of all rounds, 0 if clients send nothing
        and infinite without privacy.

    Raises:
        OutputDirectoryError: A file of a finished run is damaged or missing.
    """
    rows = []
    for run, path in _each(find_runs(runs).finished):
        files = RunFiles(path)
        of_run, numbers, seconds = files.settings(), files.metrics(), files.timings()
        with reading(path):
            seconds = pd.Series(seconds["round_seconds"])
            bytes_up = numbers["bytes_up_per_client"][-1]
            without_noise = [math.inf if bytes_up else 0.0]
            rows.append(
                {
                    **run,
                    **{key: _choice(of_run.get(key)) for key in ("algorithm", "data")},
                    "rounds": finished_summary(path).final.round_num,
                    "bytes_down": numbers["bytes_down_per_client"][-1],
                    "bytes_up": bytes_up,
                    "round_seconds": seconds[_WARM_UP if len(seconds) > _WARM_UP else 0 :].median(),
                    "epsilon": numbers.get("privacy/epsilon", without_noise)[-1],
                }
            )
    columns = ["algorithm", "data", "rounds", "bytes_down", "bytes_up", "round_seconds", "epsilon"]
    return pd.DataFrame(rows, columns=[*_RUN, *columns])


def settings(runs: Any) -> pd.DataFrame:
    """Reads the resolved configs, as columns `run`, `label`, `seed`, `key`, `value`."""
    rows = [
        {**run, "key": key, "value": value}
        for run, path in _each(runs)
        for key, value in flatten(RunFiles(path).settings(), ".").items()
    ]
    return pd.DataFrame(rows, columns=[*_RUN, "key", "value"])


def versions(runs: Any) -> pd.DataFrame:
    """Reads the versions that runs have recorded.

    Returns:
        Columns `run`, `label`, `seed`, `rounds_before`, `key`, `value`. A resumed run has rows for
        each session, which began after `rounds_before` rounds.
    """
    rows = [
        {**run, "rounds_before": session.rounds_before, "key": key, "value": value}
        for run, path in _each(runs)
        for session in RunFiles(path).sessions()
        for key, value in session.versions.items()
    ]
    return pd.DataFrame(rows, columns=[*_RUN, "rounds_before", "key", "value"])


def main_column(frame: pd.DataFrame) -> str:
    """Returns the main metric of runs as "MODEL/POOL/QUANTITY"; see `main_metric`.

    Runs of several tasks have the main metric of the first run.

    Args:
        frame: The result of `metrics`, `clients` or `evaluations`.

    Raises:
        OutputDirectoryError: No run was evaluated.
    """
    return _whole_name(_known(frame), None)


def column_of(frame: pd.DataFrame, column: str | None = None) -> str:
    """Returns the whole name of a quantity.

    Args:
        frame: The result of `metrics`, `clients` or `evaluations`.
        column: The whole name, or a short one, such as "loss" or "accuracy_worst_5_percent", for
            the model and the examples of the `main_column`, which is the default.

    Raises:
        UnknownNameError: The frame does not have the quantity. The message has the nearest names.
        OutputDirectoryError: No run was evaluated.
    """
    return _whole_name(_known(frame), column)


def select(frame: pd.DataFrame, column: str, exclude_clients=()) -> pd.DataFrame:
    """Returns the rows of one quantity.

    Args:
        frame: The result of `metrics`, `clients` or `evaluations`.
        column: "MODEL/POOL/QUANTITY", such as "personalized/local_test/accuracy", or a short name;
            see `column_of`. If the frame has statistics, "MODEL/POOL/QUANTITY_STATISTIC", by
            default the mean.
        exclude_clients: Names or ids of clients to leave out, as in `client_id`. Needs a frame of
            `clients`.

    Raises:
        UnknownNameError: See `column_of`.
        OutputDirectoryError: No client is left.
    """
    known = _known(frame)
    column = _whole_name(known, column)
    name = f"{column}_mean" if f"{column}_mean" in known else column
    parts = [part for part in _NAME if part in frame]
    found = frame[(frame[parts] == list(known[name][: len(parts)])).all(axis=1)]
    if exclude := list(dict.fromkeys(map(str, exclude_clients))):
        known = set(frame["client_id"].astype(str))
        if absent := [client for client in exclude if client not in known]:
            logging.warning("No evaluated client has the name or id %s.", ", ".join(absent))
        found = found[~found["client_id"].astype(str).isin(exclude)]
        if found.empty:
            raise OutputDirectoryError(
                "exclude_clients leaves out all clients that were evaluated."
            )
    return found


def means(frame: pd.DataFrame, by: list[str]) -> pd.Series:
    """Returns the mean of `value` by groups, in order; NaN if any value of a group is NaN."""
    groups = frame.groupby(by, sort=False)["value"]
    return groups.mean().where(groups.count() == groups.size())


def differing_settings(runs: Any) -> dict[str, list[str]]:
    """Finds settings that differ between runs of one label but should be equal.

    Such runs do not repeat each other: a config file or a module of the user was edited between the
    runs, or a run has the wrong name. Data may be a function of the seed.

    Returns:
        The keys of the settings, for each label whose runs differ.
    """
    found, free_keys = {}, ("seed", "data.fingerprint")
    for label, paths in find_runs(runs).folders.items():
        run_settings = [flatten(RunFiles(path).settings(), ".") | _code(path) for path in paths]
        differ = [
            key
            for key in (run_settings or [{}])[0]
            if all(key in own for own in run_settings)  # older runs lack some keys
            and len({repr(own[key]) for own in run_settings}) > 1
            and not any(f"{key}.".startswith(f"{free}.") for free in free_keys)
            and changes_of(key) != NOTHING
        ]
        if differ:
            found[label] = differ
    return found


def _code(path) -> Mapping[str, str]:
    """Returns the digests of a user's own modules in the last session that computed rounds."""
    summary = finished_summary(path)
    last = math.inf if summary is None else summary.final.round_num
    sessions = RunFiles(path).sessions()
    codes = [session.code for session in sessions if session.rounds_before < last]
    return codes[-1] if codes else {}


def _each(runs):
    """Yields `({run, label, seed}, folder)` for each run."""
    for label, path in find_runs(runs):
        yield {"run": str(path), "label": label, "seed": seed_of(path)}, path


def _joined(frames, columns) -> pd.DataFrame:
    if not frames:
        return pd.DataFrame(columns=columns)
    return pd.concat(frames, ignore_index=True)[columns]


def _known(frame) -> dict[str, MetricName]:
    """Returns the names of the quantities of a frame, in order, by their texts."""
    names = frame[[part for part in _NAME if part in frame]].drop_duplicates().values
    return {str(name): name for name in (MetricName(*parts) for parts in names)}


def _whole_name(known: Mapping[str, MetricName], column: str | None) -> str:
    """Returns the name of `column_of`, among the names of a frame."""

    def is_known(name):
        return name in known or f"{name}_mean" in known

    if column is not None and is_known(column):
        return column
    main = main_metric(known.values())
    if main is None:
        raise OutputDirectoryError("No run has an evaluation of models yet.")
    of_main = f"{main.model}/{main.pool}/"
    if column is None or is_known(of_main + column):
        return of_main + (column or main.quantity)
    names = [name.removesuffix("_mean") for name in known]
    if "/" not in column:
        names = [name.removeprefix(of_main) for name in names]
        names = [name for name in names if "/" not in name]
    raise UnknownNameError(unknown_name("column", column, names, most=_MOST))


def _read_rounds(path: pathlib.Path) -> pd.DataFrame:
    """Reads a file with a row for each round, as texts, without a last line that was cut off."""
    with reading(path):
        text = path.read_text()
        whole = io.StringIO(text[: text.rfind("\n") + 1])
        table = pd.read_csv(whole, dtype=str, keep_default_na=False)
        return table.set_index("round", verify_integrity=True).reset_index()


def _with_names(frame: pd.DataFrame) -> pd.DataFrame:
    """Splits the column `name` into its parts."""
    names = frame["name"].unique()
    parts = pd.DataFrame(list(map(_parse, names)), names, _NAME)
    return frame.join(parts, on="name").drop(columns="name")


def _parse(text: str) -> MetricName:
    if text.count("/") < 2 or text.startswith("train/"):
        return MetricName("", "", text)
    return MetricName.parse(text)


def _rounds(files: RunFiles, rounds: int | str) -> list[int]:
    if rounds == "all":
        return files.evaluated_rounds()
    if rounds == "last":
        return files.evaluated_rounds()[-1:]
    if not isinstance(rounds, str):
        return [rounds]
    summary = finished_summary(files.path)
    evaluated = {} if summary is None else summary.evaluations
    if rounds not in evaluated:
        message = unknown_name(f"evaluation of {files.path}", rounds, evaluated)
        if rounds == _VALIDATED:
            message = (
                f"{files.path} has no evaluation {rounds!r}. It needs validation examples that are "
                "evaluated (validation=True)."
            )
        raise OutputDirectoryError(message)
    return list(evaluated[rounds].rounds)


def _choice(section: Any) -> Any:
    """Returns the name in a section of the settings."""
    return section.get("name") if isinstance(section, Mapping) else section
