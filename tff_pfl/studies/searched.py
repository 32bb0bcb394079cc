"""The trials that the searches of a study have chosen so far, kept in its directory."""

import dataclasses
import os
import pathlib
from collections.abc import Callable

from tff_pfl.experiment.run_directory import read_json, reading
from tff_pfl.files import write_json
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
    variants = dict(study.variants)
    for label, parameters in _recorded(study, root).items():
        with reading(pathlib.Path(root) / SEARCHED):
            search = study.search(label)
            trials = list(map(search.settings, parameters[: search.number]))
        variants[label] = dataclasses.replace(variants[label], trials=trials)
    return dataclasses.replace(study, variants=variants)


def extend(
    study: Study, root: str | os.PathLike, score_of: Callable[[str, str], float | None]
) -> bool:
    """Chooses the next trials of each search.

    Args:
        study: See `searched`.
        root: See `searched`.
        score_of: `(label, trial -> score)`, of which more is better; `None` of trials that failed
            or diverged, which are not chosen near.

    Returns:
        Whether there are any: else all searches are over.

    Raises:
        OutputDirectoryError: See `searched`.
        StudyError: See `searched`; or a package is missing that Vizier imports.
    """
    recorded, goes_on = _recorded(study, root), False
    for label, search in study.searches().items():
        found = recorded.setdefault(label, [])
        # At first there are two at least: of one trial, there is nothing to choose.
        number = search.at_a_time if found else max(search.at_a_time, 2)
        number = min(number, search.number - len(found))
        if number > 0:
            names = [trial_name(search.settings(parameters)) for parameters in found]
            scores = [score_of(label, name) for name in names]
            try:
                found += search.suggest(list(zip(found, scores, strict=True)), number)
            except ModuleNotFoundError as error:
                raise StudyError(
                    f"Vizier cannot search without {error.name!r}, which is not installed. It is "
                    "in requirements/lock.txt."
                ) from error
            goes_on = True
    if goes_on:
        path = pathlib.Path(root) / SEARCHED
        record = read_json(str(path)) if path.exists() else {}
        for label, search in study.searches().items():
            record[label] = {"search": search.identity(), "parameters": recorded[label]}
        write_json(str(path), record)
    return goes_on


def _recorded(study, root) -> dict[str, list[Parameters]]:
    """The parameters of all trials so far, of the variants that have any."""
    path = pathlib.Path(root) / SEARCHED
    record, result = read_json(str(path)) if path.exists() else {}, {}
    for label, search in study.searches().items():
        if label not in record:
            continue
        with reading(path):
            identity, parameters = record[label]["search"], list(record[label]["parameters"])
        if identity != search.identity():
            raise StudyError(
                f"{path} has trials of another search for {label!r},\n  {identity}\nand not\n"
                f"  {search.identity()}\nDelete it, or give another output directory."
            )
        result[label] = parameters
    return result
