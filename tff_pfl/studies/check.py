"""Checks the settings of all runs of a study before the first run starts."""

import functools
import os
import pathlib
from collections.abc import Mapping, Sequence

from tff_pfl import config as configs
from tff_pfl import datasets, experiment
from tff_pfl.analysis.runs import read_record
from tff_pfl.arguments.settings import NUMBERS
from tff_pfl.experiment.run_directory import changed_settings, has_begun
from tff_pfl.experiment.run_files import CODE
from tff_pfl.runtime.startup import prepare_process
from tff_pfl.shipped import config_file
from tff_pfl.studies.study import Study, Training


def check_settings(study: Study, output_dir: str | os.PathLike) -> None:
    """Checks that `train.py` would accept all runs of a study, including finished runs.

    The check finds a mistake in the last variant before the others are trained for hours. It also
    finds runs whose config was edited since they began; they cannot be compared with new runs. For
    each variant, or its first trial, it builds the data, the model and the algorithm. For other
    listed trials it only reads the config. For runs that have begun, it compares the config with
    the run's settings.

    Args:
        study: The study.
        output_dir: The study's folder. A run that has done a round there has begun.

    Raises:
        ConfigError: A run has a mistake, or began with other settings than its config has now. The
            message names the first such run.
        FileNotFoundError: A config file does not exist.
        OutputDirectoryError: The study's record is damaged.
    """
    for label, variant in study.variants.items():
        path = config_file(variant.config).partition(":")[0]
        if not pathlib.Path(path).is_file():
            raise FileNotFoundError(
                f"The config of {label!r}, {path!r}, does not exist. Paths of configs are "
                f"relative to the current directory, {os.getcwd()}."
            )
    root = pathlib.Path(output_dir).expanduser()
    metrics = {label: study.choice.metric for label in filter(study.is_tuned, study.variants)}
    runs = sorted(_runs(study, root), key=lambda run: not has_begun(root / run.folder))
    if (problem := first_problem(runs, root, metrics)) is not None:
        raise configs.ConfigError(problem)


def first_problem(
    runs: Sequence[Training], root: pathlib.Path, metrics: Mapping[str, str] = {}
) -> str | None:
    """Returns why the first run that would fail does so, or `None` if all runs would succeed.

    Args:
        runs: The runs, in order. For each label, the first run that has not begun is built. Runs
            that differ only in their seeds are checked once.
        root: The study's folder.
        metrics: For labels with several trials, the metric that compares the trials.
    """
    prepare_process()
    load, labels, seen = functools.cache(datasets.load), set(), set()
    for run in runs:
        settings = tuple(flag for flag in run.flags if not flag.startswith("--config.seed="))
        if not (begun := has_begun(root / run.folder)) and settings in seen:
            continue
        seen.add(settings)
        try:
            config = configs.read_config(run.flags)
            if begun:
                if changes := _changes(root / run.folder, config):
                    return changes
            elif run.label not in labels:
                labels.add(run.label)
                built = configs.experiment_of(config, load)
                if metric := metrics.get(run.label):
                    experiment.check_measured(metric, built)
        except experiment.MetricError as error:
            return f"Trials of {run.label!r} cannot be compared by tuning's {error}"
        except configs.user_errors() as error:
            return f"{root / run.folder} would fail: {error}"
        except Exception as error:  # a user's code may raise any exception
            return f"{root / run.folder} would fail: {type(error).__name__}: {error}"
    return None


def _changes(folder, config) -> str | None:
    """Returns a message if the config of a run, or its code, has changed since the run began."""
    # Imported here, because it imports TensorFlow, which a study's file does not need.
    from tff_pfl.experiment.versions import other_versions

    configs.complete(config)
    changes = changed_settings(folder, experiment.resolved(config))
    changed = [str(change) for change in changes if change.what == NUMBERS]
    if changed:
        what = "settings than its config has now"
    elif changed := [it for it in other_versions(folder, config.imports) if it.startswith(CODE)]:
        what = "code than its config imports now"
        try:  # an edit of a comment, for example, changes nothing
            experiment.Run(folder, configs.experiment_of(config)).check()
            return None
        except experiment.OutputDirectoryError as error:
            changed.append(str(error))
    else:
        return None
    return (
        f"{folder} was run with other {what}:\n  "
        + "\n  ".join(changed)
        + "\nDelete the folder, undo the change, or give another output directory."
    )


def _runs(study, root) -> list[Training]:
    """Returns the runs whose settings are known. Runs that have begun keep their recorded flags."""
    recorded, runs = read_record(root)["flags"], list(study.runs())
    if study.tuning is not None:  # only the flags of runs that have begun tell the chosen settings
        runs = [run for run in runs if run.folder in recorded and has_begun(root / run.folder)]
        for label in study.variants:
            for trial in study.trials(label):
                runs += study.tuning_runs(label, trial, study.choice.stages[0])
    return [
        run._replace(flags=tuple(recorded.get(run.folder, run.flags)))
        if has_begun(root / run.folder)
        else run
        for run in runs
    ]
