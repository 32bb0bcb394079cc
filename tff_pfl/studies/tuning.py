"""The scores of trials, and which settings they choose."""

import math
import os
import pathlib
from collections.abc import Iterable

import numpy as np

from tff_pfl.evaluation import direction
from tff_pfl.experiment.summary import Summary
from tff_pfl.files import write_json
from tff_pfl.studies.records import read_record
from tff_pfl.studies.searched import searched
from tff_pfl.studies.study import Study

TUNING = "tuning.json"
"""The file of the scores, in a study's directory."""


class Scores:
    """What trials have reached on validation data, after each stage; kept in `tuning.json`.

    A trial goes on from a stage, so that its score there cannot be measured again: it is kept.

    Attributes:
        study: With the trials that its searches have chosen so far; see `searched`.
    """

    def __init__(self, study: Study, root: str | os.PathLike):
        """Reads those of a study's directory that are there.

        Raises:
            OutputDirectoryError: If their file is damaged, or that of the trials of searches.
            StudyError: If there are trials of other searches.
        """
        self.study = searched(study, root)
        self._searches = study.searches()
        self._path = pathlib.Path(root) / TUNING
        self._scores = read_record(self._path)

    def candidates(self, rounds: int | None) -> list[tuple[str, str]]:
        """`(label, trial)` of all that are trained in the stage of so many rounds.

        Where a list has one trial alone, there is nothing to choose, and nothing to train.
        """
        return [
            (label, trial)
            for label in self.study.variants
            if self._has_choice(label)
            for trial in self._left(label, self.study.tuning.stages.index(rounds))
        ]

    def has(self, label: str, trial: str, rounds: int | None) -> bool:
        """Whether the score is known."""
        return trial in self._of(label, rounds)

    def add(self, label: str, trial: str, rounds: int | None, runs: Iterable[Summary]) -> None:
        """Keeps what the runs of a trial have reached, a run a seed, if it is not known."""
        if self.has(label, trial, rounds):
            return
        model, quantity = self.study.tuning.decides
        values = [run.final.mean(quantity, model) for run in runs]
        if None in values:
            raise ValueError(
                f"Runs of {label!r} have no {self.study.tuning.metric}: choose another metric."
            )
        mean = float(np.mean(values))
        stages = self._scores.setdefault(label, {})
        stages.setdefault(self._key(rounds), {})[trial] = mean if math.isfinite(mean) else None
        write_json(str(self._path), self._scores)

    def quality(self, label: str, trial: str, rounds: int | None) -> float | None:
        """The score, such that more is better: `-inf` of what diverged; `None` if there is none."""
        if not self.has(label, trial, rounds):
            return None
        score = self._of(label, rounds)[trial]
        return -math.inf if score is None else direction(self.study.tuning.decides[1]) * score

    def chosen(self) -> dict[str, str]:
        """The trial of each variant, by labels; without those of which no trial succeeded."""
        stages, result = self.study.tuning.stages, {}
        for label in self.study.variants:
            trials = list(self.study.trials(label))
            if self._has_choice(label):
                trials = [
                    trial
                    for trial in self._ranked(label, len(stages) - 1)
                    if math.isfinite(self.quality(label, trial, stages[-1]))
                ]
            if trials:
                result[label] = trials[0]
        return result

    def rows(self) -> list[tuple[str, str, int | None, float | None, bool]]:
        """`(label, trial, rounds, score, whether it was chosen)` of all that are known."""
        chosen = self.chosen()
        return [
            (label, trial, rounds, self._of(label, rounds)[trial], trial == chosen.get(label))
            for label in self.study.variants
            for rounds in self.study.tuning.stages
            for trial in self.study.trials(label)
            if self.has(label, trial, rounds)
        ]

    def _has_choice(self, label):
        """Whether scores choose the trial of a variant."""
        return label in self._searches or len(self.study.trials(label)) > 1

    def _of(self, label, rounds):
        return self._scores.get(label, {}).get(self._key(rounds), {})

    def _left(self, label, stage):
        """The trials of a stage, of its number: all, or the better half of those before."""
        if stage == 0:
            return list(self.study.trials(label))
        before = self._left(label, stage - 1)
        return self._ranked(label, stage - 1)[: (len(before) + 1) // 2]

    def _ranked(self, label, stage):
        """The trials of a stage that have a score, the best first; of equal ones the first."""
        rounds = self.study.tuning.stages[stage]

        known = [x for x in self._left(label, stage) if self.has(label, x, rounds)]
        return sorted(known, key=lambda trial: self.quality(label, trial, rounds), reverse=True)

    def _key(self, rounds):
        tuning = self.study.tuning
        seeds = (
            "" if tuple(tuning.seeds) == (0,) else f", seeds {', '.join(map(str, tuning.seeds))}"
        )
        return f"{tuning.metric}, {'all' if rounds is None else rounds} rounds{seeds}"
