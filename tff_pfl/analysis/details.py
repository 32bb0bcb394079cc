"""Tables of what it takes to reach an accuracy, who is hurt, settings and versions."""

import contextlib
import math
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from tff_pfl.analysis import frames
from tff_pfl.analysis.paired import client_values
from tff_pfl.analysis.results import ACCURACY
from tff_pfl.analysis.runs import find_runs, seed_of
from tff_pfl.analysis.tables import ABSENT, Table, table_of
from tff_pfl.analysis.words import in_words
from tff_pfl.evaluation import MetricName, without_rounding
from tff_pfl.experiment.run_directory import OutputDirectoryError
from tff_pfl.names import UnknownNameError

_TARGET_SHARE = 0.95  # of the best final mean
_DIGITS = 12  # of a commit: enough to find it


class Cost(NamedTuple):
    """What a run takes up to the first evaluation at which it has reached a target.

    Attributes:
        rounds: Done by then.
        megabytes: That a client receives and sends, if it is in all of them.
        seconds: Of these rounds, without evaluations; NaN where the run's files lack some of them.
    """

    rounds: float
    megabytes: float
    seconds: float


def costs_to_target(runs: Any, target: float, column: str = ACCURACY) -> dict[str, Cost | None]:
    """Returns what each finished run needed until the mean over clients was `target` or more.

    Args:
        runs: See `find_runs`.
        target: Of the quantity, not in percent.
        column: "MODEL/POOL/QUANTITY".

    Returns:
        By folders; `None` of a run that has never reached it.
    """
    summaries = frames.summaries(runs).set_index("run")
    curves = frames.select(frames.metrics(find_runs(runs).finished), column)
    timings = frames.timings(find_runs(runs).finished)
    costs = {}
    for run, curve in curves.groupby("run", sort=False):
        reached = without_rounding(curve["value"].to_numpy() - target, target) >= 0
        costs[run] = None
        if reached.any():
            first = int(curve["round"].to_numpy()[reached][0])
            seconds = timings[(timings["run"] == run) & (timings["round"] <= first)]
            bytes_a_round = summaries.loc[run, ["bytes_down", "bytes_up"]].sum()
            total = seconds["round_seconds"].sum() if len(seconds) == first else math.nan
            costs[run] = Cost(first, first * bytes_a_round / 1e6, float(total))
    return costs


def default_target(runs: Any, column: str = ACCURACY) -> float:
    """Returns 95 % of the best final mean over seeds."""
    final = frames.evaluations(runs).query("evaluation == 'final'")
    return _TARGET_SHARE * frames.select(final, column).groupby("label")["value"].mean().max()


def target_table(runs: Any, target: float, column: str = ACCURACY) -> Table:
    """Returns a row a label: means over the seeds that reach a target, and how many do."""
    runs = find_runs(runs).finished
    costs, rows = costs_to_target(runs, target, column), []
    for label, paths in runs.folders.items():
        if not paths:
            continue
        reached = [cost for path in paths if (cost := costs.get(str(path))) is not None]
        row = {"method": label, "seeds that reach it": f"{len(reached)} of {len(paths)}"}
        row |= dict.fromkeys(["rounds", "MB of a client", "seconds"], ABSENT)
        if reached:
            means = Cost(*np.mean(reached, axis=0))
            row |= {"rounds": f"{means.rounds:.1f}", "MB of a client": f"{means.megabytes:.3g}"}
            row |= {} if math.isnan(means.seconds) else {"seconds": f"{means.seconds:.1f}"}
        rows.append(row)
    words = in_words(MetricName.parse(f"{column}_mean"))
    note = (
        f"Up to the first evaluation with {100 * target:.1f} % or more, {words}; means over the "
        "seeds that reach it. MB: received and sent by a client that is in each round."
    )
    return table_of(rows, [note])


def against_local(runs: Any, column: str = ACCURACY) -> pd.DataFrame:
    """Returns the clients of all other labels beside the same clients under `local`.

    Runs are paired by seed, if it is known that the same clients were evaluated in both, with the
    same examples; a label without such a pair is left out.

    Returns:
        Columns `label`, `seed`, `client_id`, `own`, `local`; empty if no run is of the algorithm
        `local`.
    """
    runs = find_runs(runs).finished
    algorithms = frames.summaries(runs).groupby("label", sort=False)["algorithm"].first()
    local = list(algorithms.index[algorithms == "local"])
    of_seed = {seed_of(path): path for label in local[:1] for path in runs.folders[label]}
    found = []
    for label, path in runs:
        if label not in local and seed_of(path) in of_seed:
            pair = {"own": [path], "local": [of_seed[seed_of(path)]]}
            # Of other clients, or without the quantity, they are no pair.
            with contextlib.suppress(OutputDirectoryError, UnknownNameError):
                found.append(client_values(pair, column).reset_index().assign(label=label))
    columns = ["label", "seed", "client_id", "own", "local"]
    return pd.concat(found)[columns].dropna() if found else pd.DataFrame(columns=columns)


def hurt_table(pairs: pd.DataFrame) -> Table:
    """Returns the shares of clients that lose and gain against Local, of `against_local`."""
    rows = [
        {
            "method": label,
            "hurt": f"{100 * (of['own'] < of['local']).mean():.1f} %",
            "gaining": f"{100 * (of['own'] > of['local']).mean():.1f} %",
        }
        for label, of in pairs.groupby("label", sort=False)
    ]
    note = "Shares of clients, of all seeds, with a lower and a higher accuracy than under Local."
    return table_of(rows, [note])


def settings_tables(runs: Any) -> tuple[Table, Table]:
    """Returns the settings that differ between labels, and all; of each the first seed's."""
    settings = frames.settings(find_runs(runs).finished)
    settings = settings[settings["key"] != "seed"].drop_duplicates(["label", "key"])
    wide = _wide(settings, "key", "label")
    return _as_table(wide[_differ(wide)]), _as_table(wide)


def versions_tables(runs: Any) -> list[Table]:
    """Returns what all runs were computed with, and a table of what differs, a row a run.

    A run that was resumed with other versions has a row for each part. How many runs say nothing
    is a note.
    """
    runs = find_runs(runs).finished
    versions = frames.versions(runs)
    parts = [
        f"{label}, seed {seed}" + f", after round {before}" * bool(before)
        for label, seed, before in versions[["label", "seed", "rounds_before"]].values
    ]
    values = [
        value[:_DIGITS] if key == "commit" and value else value
        for key, value in versions[["key", "value"]].values
    ]
    wide = _wide(versions.assign(part=parts, value=values), "key", "part")
    unknown = len(list(runs)) - versions["run"].nunique()
    notes = [f"Runs that do not record theirs: {unknown}."] if unknown else []
    differ = _differ(wide)
    common = wide[~differ].iloc[:, :1].reset_index()
    common.columns = ["of all runs", ""][: common.shape[1]]
    different = wide[differ].T.rename_axis("run").reset_index()
    return [Table(common, notes), *([Table(different)] if differ.any() else [])]


def _wide(frame, rows, columns) -> pd.DataFrame:
    """Values as text, a row and a column each, in the order of their first appearance."""
    texts = frame.assign(value=frame["value"].map(_text))
    wide = texts.pivot(index=rows, columns=columns, values="value")
    return wide.reindex(frame[rows].unique())[frame[columns].unique()].fillna(ABSENT)


def _differ(wide) -> pd.Series:
    return wide.nunique(axis=1) > 1


def _as_table(wide) -> Table:
    return Table(wide.rename_axis(columns=None).reset_index())


def _text(value) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return ABSENT if value is None else str(value)
