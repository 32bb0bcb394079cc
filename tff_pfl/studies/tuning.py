"""Chooses the settings of a study's variants by trials, scores and halving, stored by Optuna."""

import contextlib
import math
import os
import pathlib
import warnings
import zlib
from collections.abc import Iterator
from typing import Any

import optuna
import sqlalchemy
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import TrialState

from tff_pfl.experiment.run_directory import OutputDirectoryError
from tff_pfl.experiment.run_files import RunFiles
from tff_pfl.experiment.summary import finished_summary
from tff_pfl.studies.study import (
    Settings,
    Study,
    Training,
    Values,
    rounded,
    trial_name,
)

TUNING = "tuning.db"
"""The name of Optuna's storage: an SQLite file with an Optuna study for each variant."""

_RANDOM_TRIALS = 5  # before the estimator's first proposal
_DIRECTIONS = {1: "maximize", -1: "minimize"}
_BETTER = "better"  # the attribute of an Optuna study with the direction that its runs state


@contextlib.contextmanager
def storage_errors(root: str | os.PathLike) -> Iterator[None]:
    """Turns errors of the storage, such as a full disk, into `OutputDirectoryError`."""
    try:
        yield
    except (sqlalchemy.exc.SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
        reason = str(error.__cause__ or error).splitlines()[0]
        raise OutputDirectoryError(
            f"{pathlib.Path(root) / TUNING} cannot be read or written: {reason}. If it is damaged, "
            "delete it: trials are then compared again, by their existing runs."
        ) from error


class Tuner:
    """The trials of one variant.

    In Optuna, a trial is "running" until all its scores are known, so a killed study can resume it.
    Then it is "complete", or "pruned" if it stopped early or diverged. The scores are Optuna's
    intermediate values, by rounds.

    Attributes:
        label: The label of the variant.
        name: The name of the Optuna study.
    """

    def __init__(self, study: Study, label: str, root: str | os.PathLike):
        """Opens the storage, and makes it if it does not exist.

        The name of the Optuna study contains a digest of everything that determines the scores. If
        the metric, the seeds, the settings or the search in a study's file change, its tuning
        begins anew.

        Args:
            study: A study with tuning.
            label: The label of the variant.
            root: The study's folder.
        """
        self.label = label
        self._study, self._tuning, self._search = study, study.choice, study.search(label)
        self._root = pathlib.Path(root)
        self._failed: set[int] = set()
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.name = f"{label} ({zlib.crc32(self._identity().encode()):08x})"
        self._optuna = optuna.create_study(
            storage=f"sqlite:///{self._root.resolve() / TUNING}",
            study_name=self.name,
            direction=_DIRECTIONS[self._tuning.sign],
            load_if_exists=True,
        )
        learned = self._optuna.user_attrs.get(_BETTER)
        self._sign = self._tuning.direction or learned or self._tuning.sign

    def propose(self) -> bool:
        """Adds the next trials, unless some trials are still to run.

        A list adds all its trials at once. A search stops proposing once all trials so far have
        failed, because their settings are then probably not the reason.

        Returns:
            Whether there are trials to run.
        """
        trials = self._trials()
        if self._search is None:
            known = set(map(_name, trials))
            for name in self._listed():
                if name not in known:
                    self._add(name)
        elif not self._open() and not (trials and len(self._failed) == len(trials)):
            for _ in range(min(self._search.at_a_time, self._search.number - len(trials))):
                self._add_suggested()
        return bool(self._open())

    def runs(self, rounds: int | None) -> Iterator[Training]:
        """Yields the runs of the trials that take part in the stage with this number of rounds.

        Raises:
            OutputDirectoryError: A run has done more rounds, so its score at this stage is lost.
        """
        for trial in self._of_stage(rounds):
            for run in self._study.tuning_runs(self.label, self._settings(trial), rounds):
                summary = finished_summary(self._root / run.folder, rounds)
                done = 0 if summary is None or summary.stopped else summary.final.round_num
                if rounds is not None and done > rounds:
                    raise OutputDirectoryError(
                        f"{self._root / run.folder} has already done {done} rounds, so its score "
                        f"after {rounds} is lost and cannot be compared. Give another output "
                        "directory."
                    )
                yield run

    def score(self, rounds: int | None) -> None:
        """Stores the scores of a stage, and ends the trials that do not continue.

        Raises:
            OutputDirectoryError: The runs do not have the metric.
        """
        for trial in self._of_stage(rounds):
            runs = list(self._study.tuning_runs(self.label, self._settings(trial), rounds))
            summaries = [finished_summary(self._root / run.folder, rounds) for run in runs]
            if None in summaries:
                self._failed.add(trial.number)
            else:
                self._learn_direction(self._root / runs[0].folder)
                # Only this constructor resumes a trial of an earlier process.
                ongoing = optuna.trial.Trial(self._optuna, trial._trial_id)
                ongoing.report(self._mean(summaries), _step(rounds))
        is_last = rounds == self._tuning.stages[-1]
        scores = self._scores(rounds)
        ranked = sorted(scores, key=lambda n: self._rank(scores[n]), reverse=True)
        ahead = ranked if is_last else ranked[: (len(ranked) + 1) // 2]
        for number in [trial.number for trial in self._open() if trial.number in scores]:
            if number not in ahead or not math.isfinite(scores[number]):
                self._optuna.tell(number, state=TrialState.PRUNED)
            elif is_last:
                self._optuna.tell(number, scores[number])

    def chosen(self) -> Settings | None:
        """Returns the settings with the best score, or `None` if no trial is complete.

        The first of several best trials is chosen.
        """
        complete = [trial for trial in self._trials() if trial.state == TrialState.COMPLETE]
        best = max(complete, key=lambda trial: self._rank(trial.value), default=None)
        return None if best is None else self._settings(best)

    def scores(self) -> Iterator[dict[str, Any]]:
        """Yields the rows of `tuning.csv`: all known scores, by stage and then by trial.

        A score is the mean over the seeds of the tuning after `rounds`, or NaN if a model has
        diverged. `rounds` is `None` for the rounds of the config.
        """
        chosen = self.chosen()
        best = None if chosen is None else trial_name(chosen)
        for rounds in self._tuning.stages:
            scores = self._scores(rounds)
            for trial in self._trials():
                if trial.number in scores:
                    yield {
                        "label": self.label,
                        "trial": _name(trial),
                        "rounds": rounds,
                        "score": scores[trial.number],
                        "chosen": _name(trial) == best,
                    }

    def _identity(self) -> str:
        study, tuning = self._study, self._tuning
        variant = study.variants[self.label]
        settings = {**study.settings, **variant.settings, **tuning.settings}
        search = self._search and (dict(self._search.values), self._search.seed)
        parts = (variant.config, settings, tuning.metric, list(tuning.rounds), list(tuning.seeds))
        stated = () if tuning.direction is None else (tuning.direction,)
        return repr((*parts, search, *stated))

    def _listed(self) -> dict[str, Settings]:
        return {trial_name(trial): trial for trial in self._study.trials(self.label)}

    def _trials(self) -> list[optuna.trial.FrozenTrial]:
        """Returns the trials, except for trials that were removed from the list."""
        trials = self._optuna.get_trials(deepcopy=False)
        listed = self._listed()
        return [trial for trial in trials if self._search or _name(trial) in listed]

    def _open(self) -> list[optuna.trial.FrozenTrial]:
        return [
            trial
            for trial in self._trials()
            if trial.state == TrialState.RUNNING and trial.number not in self._failed
        ]

    def _of_stage(self, rounds) -> list[optuna.trial.FrozenTrial]:
        """Returns the trials that have scores of all earlier stages, but not of this one."""
        stages = self._tuning.stages
        before = set(map(_step, stages[: stages.index(rounds)]))
        return [trial for trial in self._open() if trial.intermediate_values.keys() == before]

    def _scores(self, rounds) -> dict[int, float]:
        """Returns the scores after this number of rounds, by the numbers of the trials."""
        step = _step(rounds)
        reached = ((trial.number, trial.intermediate_values) for trial in self._trials())
        return {number: scores[step] for number, scores in reached if step in scores}

    def _rank(self, score: float | None) -> float:
        return -math.inf if score is None or math.isnan(score) else self._sign * score

    def _settings(self, trial) -> Settings:
        """Returns the settings of a config that a trial stands for."""
        if self._search is None:
            return self._listed()[_name(trial)]
        return {
            key: choice[value] if isinstance(choice, tuple) else rounded(choice, value)
            for key, choice in self._search.values.items()
            for value in [trial.params[key]]
        }

    def _learn_direction(self, folder) -> None:
        """Stores whether more of the metric is better for a run, unless the tuning says it."""
        _, quantity = self._tuning.metric_parts
        if self._tuning.direction is None:
            self._sign = RunFiles(folder).quantities[quantity].better
            self._optuna.set_user_attr(_BETTER, self._sign)

    def _mean(self, summaries) -> float:
        model, quantity = self._tuning.metric_parts
        values = [summary.final.mean(quantity, model) for summary in summaries]
        if None in values:
            raise OutputDirectoryError(
                f"Runs of {self.label!r} have no {self._tuning.metric}. Choose another metric."
            )
        mean = sum(values) / len(values)
        return mean if math.isfinite(mean) else math.nan

    def _add(self, name, params=None, distributions=None):
        """Adds a trial in one step, so that a killed process leaves a whole trial or nothing."""
        self._optuna.add_trial(
            optuna.trial.create_trial(
                state=TrialState.RUNNING,
                params=params,
                distributions=distributions,
                user_attrs={"trial": name},
            )
        )

    def _add_suggested(self):
        """Adds the trial that a copy of the study in memory suggests after the trials so far."""
        trials, values = self._optuna.get_trials(deepcopy=False), self._search.values
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = optuna.samplers.TPESampler(
                n_startup_trials=_RANDOM_TRIALS,
                multivariate=True,
                constant_liar=True,  # trials without a score count as bad
                seed=(1_000_003 * self._search.seed + len(trials)) % 2**32,
            )
        copy = optuna.create_study(sampler=sampler, direction=_DIRECTIONS[self._sign])
        copy.add_trials(trials)
        if not trials:
            copy.enqueue_trial({key: _center(choice) for key, choice in values.items()})
        trial = copy.ask({key: _distribution(choice) for key, choice in values.items()})
        name = trial_name(self._settings(trial))
        self._add(name, trial.params, trial.distributions)


def _step(rounds: int | None) -> int:
    return rounds or 0


def _name(trial) -> str:
    return trial.user_attrs["trial"]


def _center(values: Values) -> float | int:
    if isinstance(values, tuple):
        return 0
    low, high = values.low, values.high
    return math.sqrt(low * high) if values.log else (low + high) / 2


def _distribution(values: Values) -> BaseDistribution:
    """Returns Optuna's distribution: an interval, or the indices of values of any type."""
    return CategoricalDistribution(range(len(values))) if isinstance(values, tuple) else values
