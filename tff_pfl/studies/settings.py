"""The settings of a study's runs, looked at before the first of them."""

import os
import pathlib
from collections.abc import Iterator

from tff_pfl.experiment import ConfigError, read_config
from tff_pfl.studies.study import Run, Study


def check_settings(study: Study, output_dir: str | os.PathLike) -> None:
    """Checks what `train.py` would refuse, of all runs that were not begun.

    A mistake in the last variant is then not found after hours of the others. What needs the data
    to know is left to the runs, as are trials that a search will suggest. Of configs in another
    folder than the first one, only the files are looked for: modules that they import may have the
    names of those of the first.

    Args:
        study: The study.
        output_dir: Of the study; what has a folder there has begun.

    Raises:
        ConfigError: The message names the first variant with a mistake, and its trial.
        FileNotFoundError: If the file of a config is not there.
    """
    for label, variant in study.variants.items():
        path = variant.config.partition(":")[0]
        if not pathlib.Path(path).is_file():
            raise FileNotFoundError(
                f"The config of {label!r}, {path!r}, is not there. Paths of configs are "
                f"relative to the current directory, {os.getcwd()}."
            )
    folders = {x: os.path.dirname(variant.config) for x, variant in study.variants.items()}
    first = next(iter(folders.values()))
    for run in _of_one_seed(study):
        if folders[run.label] != first or (pathlib.Path(output_dir) / run.folder).exists():
            continue
        try:
            read_config(run.flags)
        except ConfigError as error:
            raise ConfigError(f"{run.folder} would fail: {error}") from error


def _of_one_seed(study: Study) -> Iterator[Run]:
    """Runs of all settings: each variant, or with tuning each of its trials."""
    if study.tuning is None:
        yield from list(study.runs())[: len(study.variants)]
        return
    for label in study.variants:
        for trial in study.trials(label):
            yield next(study.tuning_runs(label, trial, study.tuning.stages[0]))
