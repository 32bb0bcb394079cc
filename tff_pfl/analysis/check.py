"""The settings of a study's runs, checked before the first of them."""

import concurrent.futures
import functools
import multiprocessing
import os
import pathlib
from collections.abc import Mapping, Sequence

from tff_pfl import data, experiment
from tff_pfl.analysis.runs import is_run, read_record
from tff_pfl.analysis.study import Run, Study
from tff_pfl.experiment import config as configs
from tff_pfl.experiment.run_directory import changed_settings
from tff_pfl.runtime.startup import prepare_process


def check_settings(study: Study, output_dir: str | os.PathLike) -> None:
    """Checks all runs of a study, finished ones included, for what `train.py` would refuse.

    A mistake in the last variant is then not found after hours of training the others, and runs of
    a config that was edited since are not compared with new ones. For each variant, or its first
    trial, this makes the data, the model and the algorithm; for other listed trials, it reads the
    config; for runs that have begun, it compares the config with the run's. Each folder of configs
    is checked in a process of its own, because their imports may have the same names.

    Args:
        study: The study.
        output_dir: The study's folder; a run with a folder in it has begun.

    Raises:
        ConfigError: If a run has a mistake or other settings; the message names the first one.
        FileNotFoundError: If the file of a config does not exist.
        OutputDirectoryError: If the study's record is damaged.
    """
    for label, variant in study.variants.items():
        path = variant.config.partition(":")[0]
        if not pathlib.Path(path).is_file():
            raise FileNotFoundError(
                f"The config of {label!r}, {path!r}, is not there. Paths of configs are "
                f"relative to the current directory, {os.getcwd()}."
            )
    root = pathlib.Path(output_dir)
    decides = {label: study.tuning.metric for label in filter(study.is_tuned, study.variants)}
    of_folders = {}
    for run in sorted(_runs(study, root), key=lambda run: not is_run(root / run.folder)):
        folder = os.path.dirname(study.variants[run.label].config)
        of_folders.setdefault(folder, []).append(run)
    for runs in of_folders.values():
        another = multiprocessing.get_context("spawn")
        with concurrent.futures.ProcessPoolExecutor(1, another, prepare_process) as process:
            problem = process.submit(first_problem, runs, root, decides).result()
        if problem is not None:
            raise experiment.ConfigError(problem)


def first_problem(
    runs: Sequence[Run], root: pathlib.Path, decides: Mapping[str, str] = {}
) -> str | None:
    """Returns the reason why the first run that would fail would do so, or `None`.

    Args:
        runs: The runs, in order. For each label, the first one that has not begun is built; runs
            that differ in their seeds alone are checked once.
        root: The study's folder.
        decides: The metrics that trials are compared by, by labels.
    """
    load, labels, seen = functools.cache(data.load), set(), set()
    for run in runs:
        settings = tuple(flag for flag in run.flags if not flag.startswith("--config.seed="))
        if not (has_begun := is_run(root / run.folder)) and settings in seen:
            continue
        seen.add(settings)
        try:
            config = experiment.read_config(run.flags)
            if has_begun:
                if changes := _changes(root / run.folder, config):
                    return changes
            elif run.label not in labels:
                labels.add(run.label)
                _build(config, load, decides.get(run.label))
        except experiment.MetricError as error:
            return f"Trials of {run.label!r} cannot be compared by tuning's {error}"
        except experiment.user_errors() as error:
            return f"{root / run.folder} would fail: {error}"
        except Exception as error:  # whatever a user's code raises
            return f"{root / run.folder} would fail: {type(error).__name__}: {error}"
    return None


def _build(config, load, metric):
    """Makes all that a run makes before its first round, which has to measure `metric`."""
    run = experiment.BuiltRun(config, load)
    run.early_stop(run.algorithm)
    if metric is not None:
        experiment.check_measured(metric, run.algorithm, run.model)


def _changes(folder, config) -> str | None:
    """Returns how the settings of a run differ from those of its config now."""
    configs.complete(config)
    _, changed = changed_settings(folder, experiment.resolved(config))
    if not changed:
        return None
    return (
        f"{folder} is a run of other settings than its config has now:\n  "
        + "\n  ".join(changed)
        + "\nDelete it, undo what was changed, or give another output directory."
    )


def _runs(study, root) -> list[Run]:
    """Returns the runs whose settings are known; those that have begun keep their flags."""
    recorded, runs = read_record(root)["flags"], list(study.runs())
    if study.tuning:  # what was chosen is known by the flags of runs that have begun
        runs = [run for run in runs if run.folder in recorded and is_run(root / run.folder)]
        for label in study.variants:
            for trial in study.trials(label):
                runs += study.tuning_runs(label, trial, study.tuning.stages[0])
    return [
        run._replace(flags=tuple(recorded.get(run.folder, run.flags)))
        if is_run(root / run.folder)
        else run
        for run in runs
    ]
