"""Runs and studies as tidy pandas data frames, for figures, tables and notebooks.

    from tff_pfl import analysis

    metrics = analysis.metrics("runs/quickstart")
    last = metrics[metrics["round"] == metrics["round"].max()]

Every function takes what `find_runs` takes: a run's folder, a study's, several of them, `NAME:DIR`.
Every frame begins with the columns

    run      the folder
    label    the name that the run is shown by; runs of one label differ in their seeds
    seed     `config.seed`

and names a quantity by the columns `model`, `pool`, `quantity` (and `statistic`) of
`tff_pfl.MetricName`. What is not measured on a model, such as `bytes_up_per_client`, has its whole
name as `quantity` and the others empty. Values are as measured, not in percent; a model that has
diverged has NaN or infinite values.
"""

import io
import math
import pathlib
from collections.abc import Mapping
from typing import Any

import pandas as pd
from absl import logging

from tff_pfl.analysis.runs import find_runs, seed_of
from tff_pfl.evaluation import MetricName
from tff_pfl.experiment.run_directory import OF_NO_NUMBER, OutputDirectoryError, flatten, reading
from tff_pfl.experiment.run_files import RunFiles
from tff_pfl.experiment.summary import finished_summary
from tff_pfl.names import UnknownNameError, unknown_name

_RUN = ["run", "label", "seed"]
_NAME = list(MetricName._fields)
# The first rounds are slower: graphs are made in them.
_WARM_UP = 2


def metrics(runs: Any) -> pd.DataFrame:
    """Reads the metrics of every round, finished or not: `metrics.csv`.

    Returns:
        Columns `run`, `label`, `seed`, `round`, `model`, `pool`, `quantity`, `statistic`, `value`;
        a row for each number.

    Raises:
        OutputDirectoryError: If there is no such run, or a file is damaged.
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
    """Reads the quantities of each client: `clients/round_*.csv`, without clients without examples.

    Args:
        runs: See `find_runs`.
        rounds: The evaluation after a round, by its number; "last"; "all"; or those of an
            evaluation of `summary.json` by its name, such as "best_on_validation" or "late_mean".

    Returns:
        Columns `run`, `label`, `seed`, `round`, `client_id`, `num_examples`, `model`, `pool`,
        `quantity`, `value`; a row for each quantity of a client.

    Raises:
        OutputDirectoryError: If a run was not evaluated then, or a file is damaged.
    """
    found = []
    for run, path in _each(runs):
        files = RunFiles(path)
        for round_num in _rounds(files, rounds):
            table = files.clients(round_num)
            wide = pd.DataFrame(table.columns)[table.has_examples]
            wide = wide.astype({"client_id": int, "num_examples": int})
            long = wide.melt(["client_id", "num_examples"], var_name="name", value_name="value")
            found.append(_with_names(long).assign(round=round_num, **run))
    columns = [*_RUN, "round", "client_id", "num_examples", *_NAME[:-1], "value"]
    return _joined(found, columns)


def timings(runs: Any) -> pd.DataFrame:
    """Reads the seconds of every round: `timings.csv`.

    Returns:
        Columns `run`, `label`, `seed`, `round`, `round_seconds`, and the others of the files; NaN
        where a round has no such part.

    Raises:
        OutputDirectoryError: If a run has done no round, or a file is damaged.
    """
    found = [
        pd.DataFrame(RunFiles(path).timings()).astype({"round": int}).assign(**run)
        for run, path in _each(runs)
    ]
    columns = dict.fromkeys(name for frame in found for name in frame)
    return _joined(found, [*_RUN, *(name for name in columns if name not in _RUN)])


def evaluations(runs: Any) -> pd.DataFrame:
    """Reads the evaluations of finished runs: `summary.json`.

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
    """Reads the methods and the costs of finished runs, a row for each run.

    Returns:
        Columns `run`, `label`, `seed`; `algorithm` and `data`, the names in the config; `rounds`;
        `bytes_down` and `bytes_up`, which a client receives and sends in a round; `round_seconds`,
        the median without the first two rounds; `epsilon` of all rounds, infinite without privacy.

    Raises:
        OutputDirectoryError: If a file of a finished run is damaged or missing.
    """
    rows = []
    for run, path in _each(find_runs(runs).finished):
        files = RunFiles(path)
        of_run, numbers, seconds = files.settings(), files.metrics(), files.timings()
        with reading(path):
            seconds = pd.Series(seconds["round_seconds"])
            rows.append(
                {
                    **run,
                    **{key: _choice(of_run.get(key)) for key in ("algorithm", "data")},
                    "rounds": finished_summary(path).final.round_num,
                    "bytes_down": numbers["bytes_down_per_client"][-1],
                    "bytes_up": numbers["bytes_up_per_client"][-1],
                    "round_seconds": seconds[_WARM_UP if len(seconds) > _WARM_UP else 0 :].median(),
                    "epsilon": numbers.get("privacy/epsilon", [math.inf])[-1],
                }
            )
    columns = ["algorithm", "data", "rounds", "bytes_down", "bytes_up", "round_seconds", "epsilon"]
    return pd.DataFrame(rows, columns=[*_RUN, *columns])


def settings(runs: Any) -> pd.DataFrame:
    """Reads the resolved configs: columns `run`, `label`, `seed`, `key`, `value`."""
    rows = [
        {**run, "key": key, "value": value}
        for run, path in _each(runs)
        for key, value in flatten(RunFiles(path).settings(), ".").items()
    ]
    return pd.DataFrame(rows, columns=[*_RUN, "key", "value"])


def versions(runs: Any) -> pd.DataFrame:
    """Reads the versions of runs: `run`, `label`, `seed`, `rounds_before`, `key`, `value`.

    A run that was resumed has rows for each session, after `rounds_before` rounds.
    """
    rows = [
        {**run, "rounds_before": session.rounds_before, "key": key, "value": value}
        for run, path in _each(runs)
        for session in RunFiles(path).sessions()
        for key, value in session.versions.items()
    ]
    return pd.DataFrame(rows, columns=[*_RUN, "rounds_before", "key", "value"])


def select(frame: pd.DataFrame, column: str, exclude_clients=()) -> pd.DataFrame:
    """Returns the rows of one quantity.

    Args:
        frame: `metrics`, `clients` or `evaluations`.
        column: "MODEL/POOL/QUANTITY", such as "personalized/local_test/accuracy", with "_STATISTIC"
            after it if the frame has statistics; the mean needs no statistic.
        exclude_clients: Ids of clients that are left out of a frame of clients.

    Raises:
        UnknownNameError: If there is no such quantity, with the nearest one.
        OutputDirectoryError: If no client is left.
    """
    parts = [part for part in _NAME if part in frame]
    known = {str(MetricName(*names)): names for names in frame[parts].drop_duplicates().values}
    name = f"{column}_mean" if f"{column}_mean" in known else column
    if name not in known:
        raise UnknownNameError(unknown_name("column", column, known))
    found = frame[(frame[parts] == list(known[name])).all(axis=1)]
    if exclude := set(exclude_clients):
        if absent := sorted(exclude - set(frame["client_id"])):
            logging.warning("No evaluated client has the id %s.", ", ".join(map(str, absent)))
        found = found[~found["client_id"].isin(exclude)]
        if found.empty:
            raise OutputDirectoryError("There are no clients but those left out.")
    return found


def means(frame: pd.DataFrame, by: list[str]) -> pd.Series:
    """Returns the means of `value` by groups in their order; NaN where any value is NaN."""
    groups = frame.groupby(by, sort=False)["value"]
    return groups.mean().where(groups.count() == groups.size())


def mixed(runs: Any) -> dict[str, list[str]]:
    """Returns, by labels, the keys in which runs of one label differ though they should not.

    Such runs do not repeat one another: a config file, or the module of a method, was edited
    between two of them, or a run has the wrong name.
    """
    found = {}
    for label, paths in find_runs(runs).folders.items():
        of_runs = [flatten(RunFiles(path).settings(), ".") | _code(path) for path in paths]
        differ = [
            key
            for key in (of_runs or [{}])[0]
            if all(key in of for of in of_runs)  # older runs lack some
            and len({repr(of[key]) for of in of_runs}) > 1
            and not any(f"{key}.".startswith(f"{free}.") for free in ("seed", *OF_NO_NUMBER))
        ]
        if differ:
            found[label] = differ
    return found


def _code(path) -> Mapping[str, str]:
    """The digests of a user's own modules when the last rounds of a run were computed."""
    summary = finished_summary(path)
    last = math.inf if summary is None else summary.final.round_num
    codes = [of.code for of in RunFiles(path).sessions() if of.rounds_before < last]
    return codes[-1] if codes else {}


def _each(runs):
    """`({run, label, seed}, folder)` of each run."""
    for label, path in find_runs(runs):
        yield {"run": str(path), "label": label, "seed": seed_of(path)}, path


def _joined(frames, columns) -> pd.DataFrame:
    if not frames:
        return pd.DataFrame(columns=columns)
    return pd.concat(frames, ignore_index=True)[columns]


def _read_rounds(path: pathlib.Path) -> pd.DataFrame:
    """Reads a file with a row for each round, as texts; a kill may have cut off its last line."""
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
        raise OutputDirectoryError(unknown_name(f"evaluation of {files.path}", rounds, evaluated))
    return list(evaluated[rounds].rounds)


def _choice(section: Any) -> Any:
    """Returns the name that a section of the settings chooses."""
    return section.get("name") if isinstance(section, Mapping) else section
