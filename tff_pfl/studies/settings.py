"""The settings of a study's runs, looked at before the first of them."""

import concurrent.futures
import functools
import multiprocessing
import os
import pathlib
from collections.abc import Iterator, Sequence

from tff_pfl import data, experiment
from tff_pfl.experiment import config as configs
from tff_pfl.runtime.startup import prepare_process
from tff_pfl.studies.study import Run, Study


def check_settings(study: Study, output_dir: str | os.PathLike) -> None:
    """Checks what `train.py` would refuse, of all runs that were not begun.

    A mistake in the last variant is then not found after hours of the others. Of each variant, or
    its first trial, the data, the model and the algorithm are made; of other trials, the config is
    read, and of those that a search will suggest nothing is known. That is done in other processes,
    one a folder of configs: what these import may have the same names.

    Args:
        study: The study.
        output_dir: Of the study; what has a folder there has begun.

    Raises:
        ConfigError: The message names the first run with a mistake.
        FileNotFoundError: If the file of a config is not there.
    """
    for label, variant in study.variants.items():
        path = variant.config.partition(":")[0]
        if not pathlib.Path(path).is_file():
            raise FileNotFoundError(
                f"The config of {label!r}, {path!r}, is not there. Paths of configs are "
                f"relative to the current directory, {os.getcwd()}."
            )
    by_folder = {}
    for run in _of_one_seed(study):
        if not (pathlib.Path(output_dir) / run.folder).exists():
            folder = os.path.dirname(study.variants[run.label].config)
            by_folder.setdefault(folder, []).append(run)
    for runs in by_folder.values():
        another = multiprocessing.get_context("spawn")
        with concurrent.futures.ProcessPoolExecutor(1, another, prepare_process) as process:
            problem = process.submit(first_problem, runs).result()
        if problem is not None:
            raise experiment.ConfigError(problem)


def first_problem(runs: Sequence[Run]) -> str | None:
    """Why the first run that would fail would do so; `None` if none would, as far as that is known.

    Args:
        runs: In order; of each label, the first one is built, and of all the config is read.
    """
    load, labels = functools.cache(data.load), set()
    for run in runs:
        try:
            config = experiment.read_config(run.flags)
            if run.label not in labels:
                dataset = configs.build_dataset(config, load)
                model = configs.build_model(config, dataset)
                configs.build_algorithm(config, model, configs.hold_out(config, dataset)[0])
        except experiment.user_errors() as error:
            return f"{run.folder} would fail: {error}"
        except Exception as error:  # whatever a user's code raises
            return f"{run.folder} would fail: {type(error).__name__}: {error}"
        labels.add(run.label)
    return None


def _of_one_seed(study: Study) -> Iterator[Run]:
    """Runs of all settings: each variant, or with tuning each of its trials."""
    if study.tuning is None:
        yield from list(study.runs())[: len(study.variants)]
        return
    for label in study.variants:
        for trial in study.trials(label):
            yield next(study.tuning_runs(label, trial, study.tuning.stages[0]))
