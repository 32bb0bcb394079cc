"""What is compared: a study, by its file or by what its directory tells of it, or some runs."""

import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tff_pfl.experiment.run_directory import read_json, reading
from tff_pfl.reports import Comparison, compared, named_runs
from tff_pfl.reports.runs import is_run
from tff_pfl.studies.runner import VARIANTS, chosen_trials
from tff_pfl.studies.study import Study, StudyError, load_study


def comparison_of_study(study: Study, output_dir: str | os.PathLike) -> Comparison:
    """The finished runs of a study, which may be going on.

    Raises:
        OutputDirectoryError: If a file of a finished run is damaged or missing.
        StudyError: If there are trials of other searches.
    """
    chosen = chosen_trials(study, output_dir) if study.tuning else None
    runs = {
        label: [pathlib.Path(output_dir) / folder for folder in folders]
        for label, folders in study.folders().items()
    }
    return compared(study.title, runs, baseline=study.baseline, chosen=chosen)


def comparison_of(arguments: Sequence[str]) -> Comparison:
    """What a command line compares.

    Args:
        arguments: `STUDY_FILE[:CHOICE] DIR`; or directories of studies, and runs as `NAME:DIR` or
            `DIR`.

    Raises:
        OutputDirectoryError: See `named_runs` and `comparison_of_study`.
        StudyError: If there is no such study, or two variants have the same label.
    """
    if arguments[0].partition(":")[0].endswith(".py"):
        if len(arguments) != 2:
            raise StudyError(f"A study's file is followed by its directory, found {arguments[1:]}.")
        if not os.path.isdir(arguments[1]):
            raise StudyError(f"There is no directory {arguments[1]} of a study.")
        try:
            return comparison_of_study(load_study(arguments[0]), arguments[1])
        except ValueError as error:
            raise StudyError(str(error)) from error
    directories = [path for path in arguments if os.path.isdir(path) and not is_run(path)]
    runs = named_runs([argument for argument in arguments if argument not in directories])
    titles, baseline, chosen = [], None, {}
    for directory in directories:
        study = _recorded(directory)
        baseline = study.baseline
        titles.append(study.title)
        if twice := sorted(runs.keys() & study.runs.keys()):
            raise StudyError(f"{twice[0]!r} is the label of two variants that are compared.")
        runs |= study.runs
        chosen |= study.chosen
    title = "; ".join(titles or [", ".join(runs)])
    return compared(title, runs, baseline=baseline, chosen=chosen)


class _Recorded(NamedTuple):
    """What a study's directory tells of it; see `Comparison`."""

    title: str
    baseline: str
    runs: Mapping[str, Sequence[pathlib.Path]]
    chosen: Mapping[str, str]


def _recorded(directory) -> _Recorded:
    path = pathlib.Path(directory) / VARIANTS
    if not path.exists():
        raise StudyError(
            f"{directory} has no {VARIANTS} of a study, and no config.json of a run; a study of an "
            f"earlier version is given as STUDY_FILE {directory}."
        )
    record = read_json(str(path))
    with reading(path):
        runs = {
            label: [path.parent / folder for folder in folders]
            for label, folders in record["variants"].items()
        }
        # Those of older versions do not say what was chosen.
        return _Recorded(record["title"], record["baseline"], runs, dict(record.get("chosen", {})))
