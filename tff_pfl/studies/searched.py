"""The trials that the searches of a study have chosen so far, kept in its directory."""

import dataclasses
import os
import pathlib
from collections.abc import Callable

from tff_pfl.experiment.run_directory import reading
from tff_pfl.files import write_json
from tff_pfl.studies.records import read_record
from tff_pfl.studies.search import Parameters
from tff_pfl.studies.study import Study, StudyError, trial_name

SEARCHED = "searched.json"
"""The file of the trials, in a study's directory: of each variant its search, and parameters."""


def searched(study: Study, root: str | os.PathLike) -> Study:
    """The study with the trials that are chosen so far in the place of its searches.

    A search that has not begun stays.

    Args:
        study: As its file says.
        root: Its directory, which need not be there.

    Raises:
        OutputDirectoryError: If the file of the trials is damaged.
        StudyError: If it is of other searches.
    """
    path = pathlib.Path(root) / SEARCHED
    variants = dict(study.variants)
    for label, parameters in _chosen(study, path, read_record(path)).items():
        search = study.search(label)
        with reading(path):
            trials = list(map(search.settings, parameters[: search.number]))
            variants[label] = dataclasses.replace(variants[label], trials=trials)
    return dataclasses.replace(study, variants=variants)


def extend(
    study: Study, root: str | os.PathLike, score_of: Callable[[str, str], float | None]
) -> bool:
    """Chooses the next trials of each search.

    Where all trials of a search have failed, which has another reason than where they are, it waits
    until one has not.

    Args:
        study: See `searched`.
        root: See `searched`.
        score_of: `(label, trial -> score)`, of which more is better, and which is not finite where
            the model diverged; `None` of trials that failed.

    Returns:
        Whether there are any: else all searches are over, or wait.

    Raises:
        OutputDirectoryError: See `searched`.
        StudyError: See `searched`; or Vizier fails.
    """
    path = pathlib.Path(root) / SEARCHED
    record = read_record(path)
    chosen, goes_on = _chosen(study, path, record), False
    for label, search in study.searches().items():
        tried = [
            (parameters, score_of(label, trial_name(search.settings(parameters))))
            for parameters in chosen.get(label, [])
        ]
        # At first there are two at least, with which the search can tell what is better.
        number = search.at_a_time if tried else max(search.at_a_time, 2)
        number = min(number, search.number - len(tried))
        have_failed = tried and all(score is None for _, score in tried)
        if number > 0 and not have_failed:
            try:
                new = search.suggest(tried, number)
            except ModuleNotFoundError as error:
                raise StudyError(
                    f"Vizier cannot search without {error.name!r}, which is not installed. It is "
                    "in requirements/lock.txt."
                ) from error
            except RuntimeError as error:
                raise StudyError(f"Vizier finds no next trial of {label!r}: {error}") from error
            parameters = [*chosen.get(label, []), *new]
            record[label] = {"search": _identity(study, label), "parameters": parameters}
            goes_on = True
    if goes_on:
        write_json(str(path), record)
    return goes_on


def _chosen(study, path, record) -> dict[str, list[Parameters]]:
    """The parameters of all trials so far, of the variants that have any."""
    chosen = {}
    for label in study.searches().keys() & record.keys():
        with reading(path):
            known, parameters = record[label]["search"], list(record[label]["parameters"])
        if known != _identity(study, label):
            raise StudyError(
                f"{path} has trials of another search for {label!r},\n  {known}\nand not\n"
                f"  {_identity(study, label)}\nDelete it, or give another output directory."
            )
        if parameters:
            chosen[label] = parameters
    return chosen


def _identity(study, label) -> str:
    """All that the trials of a search follow from, but for their scores and their number."""
    search, tuning = study.search(label), study.tuning
    settings = {**study.settings, **study.variants[label].settings, **tuning.settings}
    return (
        f"{dict(search.values)}, at_a_time={search.at_a_time}, seed={search.seed}; "
        f"by {tuning.metric} of {study.variants[label].config} with {settings}, "
        f"rounds {list(tuning.rounds)}, seeds {list(tuning.seeds)}"
    )
