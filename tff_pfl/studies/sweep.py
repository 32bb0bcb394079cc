"""Runs a study: each run once, several in parallel."""

import contextlib
import os
import pathlib
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from tff_pfl.analysis.frames import column_of
from tff_pfl.analysis.runs import STUDY, Runs, read, read_record
from tff_pfl.cluster.recipes import Recipe
from tff_pfl.evaluation import MetricName
from tff_pfl.experiment.run_directory import CHECKPOINT, OutputDirectoryError, has_begun
from tff_pfl.experiment.run_files import RunFiles
from tff_pfl.experiment.summary import finished_summary
from tff_pfl.output import locks
from tff_pfl.output.files import whole_file, write_json
from tff_pfl.output.progress import Bar
from tff_pfl.studies.engines import Engine, in_this_process
from tff_pfl.studies.study import Study, Training, trial_name
from tff_pfl.studies.trainings import train_all, train_recipe
from tff_pfl.studies.tuning import Tuner, storage_errors


def run_study(
    study: Study,
    output_dir: str | os.PathLike,
    engine: Engine = in_this_process,
    *,
    keep_checkpoints: bool = True,
    part: tuple[int, int] = (1, 1),
    recipe_of: Callable[[Sequence[str]], Any] = Recipe.of_flags,
    train: Callable[..., Any] = train_recipe,
) -> list[Training]:
    """Runs all unfinished runs of a study, first the trials that choose settings.

    Interrupted runs are resumed. A run that fails is reported, and does not stop the others; one
    that another process trains is waited for. The scores of trials are written to `tuning.csv`, and
    the results of finished runs to `results.csv`.

    Args:
        study: The study.
        output_dir: The study's folder. Each run has a folder in it.
        engine: The engine that trains the runs; see `open_engine`.
        keep_checkpoints: Whether finished runs of the table keep their checkpoints. Evaluating or
            continuing a run needs its checkpoint; reports do not.
        part: `(i, n)` for the i-th of n parts of the runs, which other processes and machines may
            run at the same time in the same folder. The last one to end writes all results.
        recipe_of: Returns the recipe of the run that flags of `programs/train.py` describe.
        train: Trains the run of a recipe; see `train_recipe`.

    Returns:
        The runs that failed.

    Raises:
        OSError: The directory or a record cannot be written.
        ClusterError: See `clusters.engine_of`.
        OutputDirectoryError: A record is damaged, a run in the directory has other settings, or
            another process tunes a study there.
        ValueError: A part of a study with tuning is wanted.
    """
    if part != (1, 1) and study.tuning is not None:
        raise ValueError(
            "A study with tuning has no parts, since its runs depend on the scores of all trials. "
            "Run it without --part."
        )
    root = pathlib.Path(output_dir).expanduser()
    root.mkdir(parents=True, exist_ok=True)
    bar = Bar(total=0, desc=study.title, unit="run")
    with _locked(root, is_shared=study.tuning is None), bar:
        pool = _Pool(root, engine, recipe_of, train, bar)
        with storage_errors(root):
            chosen = None if study.tuning is None else _tune(study, pool)
        runs = list(study.runs(chosen))
        _record(root, study, runs, chosen)
        pool.run(runs[part[0] - 1 :: part[1]], keep_checkpoints)
        if chosen and (shares := shares_chosen_with(study, root, chosen)):
            by_seed = ", ".join(f"{share:.0%} of seed {seed}" for seed, share in shares.items())
            pool.write(
                f"note: settings were chosen with some of the test examples: {by_seed}. Each seed "
                "divides all examples anew; config.data.merge=False, or one "
                "config.data.partition_file, gives all seeds the same test examples."
            )
    with locked_results(root):
        write_results(root / "results.csv", read(root))
    return pool.failed


@contextlib.contextmanager
def locked_results(root: str | os.PathLike) -> Iterator[None]:
    """Waits until no other part of a study reads runs and writes results of them."""
    path = pathlib.Path(root).expanduser() / ".results.lock"
    with open(path, "w") as file:
        locks.lock(file.fileno(), path, waits=True)
        yield


def write_results(path: str | os.PathLike, runs: Runs) -> None:
    """Writes the results of finished runs as CSV, with a row for each run.

    `personalized` and `global` are means over clients of the quantity of the `main_metric` after
    the last round, in the first pool that has it, or NaN. The other columns are columns of
    the summaries.
    """
    final = runs.evaluations.query("evaluation == 'final' and statistic == 'mean'")
    quantity = None if final.empty else MetricName.parse(column_of(final)).quantity
    means = final[final["quantity"] == quantity].drop_duplicates(["run", "model"])
    wide = means.pivot(index="run", columns="model", values="value")
    wide = wide.reindex(columns=["personalized", "global"])
    table = runs.summaries.join(wide, on="run")
    heads = ["label", "seed", "personalized", "global", "bytes_down", "bytes_up", "round_seconds"]
    _write_csv(path, table[heads])


def _write_csv(path, frame):
    with whole_file(path, newline="") as file:
        frame.to_csv(file, index=False, na_rep="nan", lineterminator="\n")


def _tune(study: Study, pool: "_Pool") -> dict:
    """Runs the trials; returns the chosen settings of each variant that has any, by labels."""
    tuners = [Tuner(study, label, pool.root) for label in study.variants if study.is_tuned(label)]
    _record_tunings(pool.root, study, tuners)
    # The list makes all tuners propose; a generator would stop at the first one.
    while any([tuner.propose() for tuner in tuners]):
        for rounds in study.choice.stages:
            runs = [run for tuner in tuners for run in tuner.runs(rounds)]
            _record(pool.root, study, runs)
            pool.run(runs)
            for tuner in tuners:
                tuner.score(rounds)
    scores = pd.DataFrame([score for tuner in tuners for score in tuner.scores()])
    if not scores.empty:
        _write_csv(pool.root / "tuning.csv", scores.astype({"rounds": "Int64"}))
    chosen = {tuner.label: tuner.chosen() for tuner in tuners}
    for label in study.variants:
        if label not in chosen:
            chosen[label] = next(iter(study.trials(label)), {})
        elif chosen[label] is None:
            pool.write(f"{label}: no trial has a finite score, so it is not run.")
    return {label: chosen[label] for label in study.variants if chosen[label] is not None}


def _record_tunings(root: pathlib.Path, study: Study, tuners: Sequence[Tuner]) -> None:
    """Writes which tuning chooses the settings of each variant.

    Raises:
        OutputDirectoryError: A variant has runs with the settings that another tuning chose.
    """
    record, folders = read_record(root), study.record()["variants"]
    for tuner in tuners:
        begun = [folder for folder in folders[tuner.label] if has_begun(root / folder)]
        if begun and record.get("tunings", {}).get(tuner.label, tuner.name) != tuner.name:
            raise OutputDirectoryError(
                f"{root / begun[0]} has settings that another tuning chose: the metric, the seeds, "
                "the settings or the search of the study have changed. Undo the change, delete "
                "such runs, or give another output directory."
            )
    tunings = {tuner.label: tuner.name for tuner in tuners}
    write_json(str(root / STUDY), record | study.record() | {"tunings": tunings})


def _record(root: pathlib.Path, study: Study, runs: Sequence[Training], chosen=None) -> None:
    """Writes the flags of each run, and the information that reports need.

    Raises:
        OutputDirectoryError: An existing run has other settings. Nothing is written then.
    """
    record = read_record(root)
    for run in runs:
        found, wanted = record["flags"].get(run.folder), list(run.flags)
        if found not in (None, wanted) and has_begun(root / run.folder):
            raise OutputDirectoryError(
                f"{root / run.folder} was run with other settings:\n  {' '.join(found)}\n"
                f"The study now has:\n  {' '.join(wanted)}\n"
                "Delete it, or give another output directory."
            )
        record["flags"][run.folder] = wanted
    if chosen is not None:  # keep the previous choice until then
        record["chosen"] = {label: trial_name(trial) for label, trial in chosen.items()}
    write_json(str(root / STUDY), record | study.record())


def shares_chosen_with(study: Study, root: pathlib.Path, chosen) -> dict[int, float]:
    """Returns the share of each seed's test examples that tuning trained or validated on.

    Args:
        study: A study with tuning.
        root: The study's folder.
        chosen: The chosen settings of its variants, by labels.

    Returns:
        The shares above zero by seed, for the first variant that has any, or `{}`. Runs without a
        partition file do not count.
    """

    def partitions(runs):
        exist = [run for run in runs if (root / run.folder / "partition.npz").exists()]
        return {run.seed: RunFiles(root / run.folder).partition for run in exist}

    for label, trial in chosen.items():
        tuned = partitions(study.tuning_runs(label, trial, None)).values()
        rows = [rows for part in tuned for rows in (*part.train, *part.validation)]
        if rows:
            shares = {
                seed: float(np.isin(np.concatenate(part.test), np.concatenate(rows)).mean())
                for seed, part in partitions(study.runs({label: trial})).items()
            }
            if any(shares.values()):
                return {seed: share for seed, share in shares.items() if share > 0}
    return {}


@contextlib.contextmanager
def _locked(root: pathlib.Path, is_shared: bool) -> Iterator[None]:
    """Locks a study's folder, so that one process tunes; others share it."""
    path = root / ".study.lock"
    # Readable as well as writable, as NFS demands for locks that are shared and that are not.
    with open(path, "a+") as file:
        try:
            locks.lock(file.fileno(), path, shared=is_shared)
        except BlockingIOError as e:
            raise OutputDirectoryError(
                f"Another process already tunes a study in {root}. Wait until it ends, stop it, or "
                "give another output directory."
            ) from e
        yield


class _Pool:
    """The runs of a study, and the engine that trains them."""

    def __init__(self, root, engine, recipe_of, train, bar):
        self.failed = []
        self.root = root
        self._engine = engine
        self._recipe_of = recipe_of
        self._train = train
        self._bar = bar
        self._counted = set()

    def run(self, runs: Iterable[Training], keep_checkpoints: bool = True) -> None:
        """Runs the unfinished runs, and waits for them."""
        waiting, runs = {}, dict.fromkeys(runs)  # a search may propose equal trials
        self._bar.total = len(self._counted | runs.keys())
        for run in runs:
            finished = finished_summary(self.root / run.folder, run.rounds) is not None
            if finished or run in self.failed:
                self._count(run, keep_checkpoints)
            else:
                waiting[run.folder] = run
        recipes = {folder: self._recipe_of(run.all_flags) for folder, run in waiting.items()}
        ended = train_all(recipes, self.root, self._engine, self._bar, train=self._train)
        for folder, problem in ended:
            run, log = waiting[folder], f"{self.root / folder}.log"
            if problem is not None:
                self.failed.append(run)
                self.write(f"{folder} failed: {problem}\n  {log} has its whole output.")
            self._count(run, keep_checkpoints)

    def write(self, message: str) -> None:
        """Prints a line to stderr, above the progress bar."""
        self._bar.write(message, file=sys.stderr)

    def _count(self, run, keep_checkpoints):
        """Counts a run as done, once, and removes its checkpoint if it is not to be kept."""
        if run not in self._counted:
            self._counted.add(run)
            self._bar.update(1)
        checkpoint = self.root / run.folder / CHECKPOINT
        if not keep_checkpoints and run not in self.failed and checkpoint.exists():
            shutil.rmtree(checkpoint)
