"""The settings of a study's runs, checked before the first of them."""

import concurrent.futures
import functools
import multiprocessing
import os
import pathlib
from collections.abc import Mapping, Sequence

from tff_pfl import data, experiment
from tff_pfl.analysis.study import Run, Study
from tff_pfl.experiment import config as configs
from tff_pfl.experiment.run_directory import changed_settings, read_json
from tff_pfl.runtime.startup import prepare_process

RECORD = "study.json"
"""The file in a study's folder with the flags of each run, by folders."""


def read_record(root: pathlib.Path) -> dict[str, list[str]]:
    """Returns the flags of the runs of a study's folder; none if it has no record.

    Raises:
        OutputDirectoryError: If the record is damaged.
    """
    path = root / RECORD
    return read_json(str(path)) if path.exists() else {}


def check_settings(study: Study, output_dir: str | os.PathLike) -> None:
    """Checks what `train.py` would refuse, of all runs, those that are finished included.

    A mistake in the last variant is then not found after hours of the others; and runs of a config
    that was edited since are not compared with new ones. Of each variant, or its first trial, the
    data, the model and the algorithm are made; of other listed trials, the config is read; of runs
    that have begun, the config is compared with that of the run. That is done in other processes,
    one a folder of configs: what these import may have the same names.

    Args:
        study: The study.
        output_dir: Of the study; what has a folder there has begun.

    Raises:
        ConfigError: The message names the first run with a mistake, or with other settings.
        FileNotFoundError: If the file of a config is not there.
        OutputDirectoryError: If a file of a run is damaged.
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
    new = [run for run in _of_one_seed(study) if not (root / run.folder).exists()]
    begun = _begun(study, root)
    folders = {label: os.path.dirname(of.config) for label, of in study.variants.items()}
    for folder in dict.fromkeys(folders.values()):
        of_folder = ([run for run in runs if folders[run.label] == folder] for runs in (begun, new))
        another = multiprocessing.get_context("spawn")
        with concurrent.futures.ProcessPoolExecutor(1, another, prepare_process) as process:
            problem = process.submit(_first_problem_of_both, *of_folder, root, decides).result()
        if problem is not None:
            raise experiment.ConfigError(problem)


def first_problem(runs: Sequence[Run], decides: Mapping[str, str] = {}) -> str | None:
    """Returns why the first run that would fail would do so, or `None`.

    Args:
        runs: In order; of each label, the first one is built, and of all the config is read.
        decides: The metrics that trials are compared by, by labels.
    """
    load, labels = functools.cache(data.load), set()
    for run in runs:
        try:
            config = experiment.read_config(run.flags)
            if run.label not in labels:
                dataset = configs.build_dataset(config, load)
                model = configs.build_model(config, dataset)
                trained, _ = configs.hold_out(config, dataset)
                algorithm = configs.build_algorithm(config, model, trained)
                configs.build_early_stop(config, algorithm, model, trained)
                if run.label in decides:
                    experiment.check_measured(decides[run.label], algorithm, model)
        except experiment.user_errors() as error:
            return f"{run.folder} would fail: {error}"
        except experiment.MetricError as error:
            return f"Trials of {run.label!r} cannot be compared by tuning's {error}"
        except Exception as error:  # whatever a user's code raises
            return f"{run.folder} would fail: {type(error).__name__}: {error}"
        labels.add(run.label)
    return None


def first_change(runs: Sequence[Run], root: pathlib.Path) -> str | None:
    """Returns how the settings of the first run differ from those of its config now, or `None`.

    Args:
        runs: Which have begun.
        root: The study's folder.

    Raises:
        OutputDirectoryError: If a file of a run is damaged.
    """
    for run in runs:
        folder = root / run.folder
        try:
            config = experiment.read_config(run.flags)
        except experiment.user_errors() as error:
            return f"{folder} cannot be made again: {error}"
        configs.complete(config)
        _, changed = changed_settings(folder, experiment.resolved(config))
        if changed:
            return (
                f"{folder} is a run of other settings than its config has now:\n  "
                + "\n  ".join(changed)
                + "\nDelete it, undo what was changed, or give another output directory."
            )
    return None


def _first_problem_of_both(begun, new, root, decides):
    return first_change(begun, root) or first_problem(new, decides)


def _begun(study, root) -> list[Run]:
    """Runs that are there, with the flags that they were run with, as far as these are known."""
    recorded, runs = read_record(root), list(study.runs())
    if study.tuning:
        runs = [run for run in runs if run.folder in recorded]  # which says what was chosen
        runs += [
            run
            for label in study.variants
            for trial in study.trials(label)
            for run in study.tuning_runs(label, trial, None)
        ]
    runs = [run._replace(flags=tuple(recorded.get(run.folder, run.flags))) for run in runs]
    return [run for run in runs if (root / run.folder / "config.json").exists()]


def _of_one_seed(study: Study) -> list[Run]:
    """Runs of all settings: each variant, or with tuning each of its listed trials."""
    if study.tuning is None:
        return list(study.runs())[: len(study.variants)]
    return [
        next(study.tuning_runs(label, trial, study.tuning.stages[0]))
        for label in study.variants
        for trial in study.trials(label)
    ]
