"""Studies and their parts. A study is a Python file that defines `get_study`:

from tff_pfl.analysis import Study, Tuning, Variant, grid

def get_study():
    return Study(
        title="Two methods on digits",
        variants={
            "FedAvg": Variant("configs/digits.py:fedavg"),
            "Ditto, lambda 1": Variant("configs/digits.py:ditto", {"algorithm.lambda_": 1.0}),
        },
        seeds=(0, 1, 2),
        settings={"rounds": 30},
        tuning=Tuning(
            grid({"local.learning_rate": (0.1, 0.03, 0.01)}),
            {"data.fractions": (0.65, 0.1, 0.25)},
            rounds=(5, 10, 20),
        ),
    )

`get_study` may take a choice, as `get_config` does: that of `--study=FILE:CHOICE`.
"""

import contextlib
import dataclasses
import itertools
import math
import os
import pathlib
import re
import runpy
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from optuna.distributions import FloatDistribution

from tff_pfl.experiment.config.imports import failure
from tff_pfl.experiment.summary import model_and_quantity
from tff_pfl.names import check_names
from tff_pfl.ranges import takes, whole

SEPARATOR = " | "
"""Separates the row and the column in a label of a cross table."""

Settings = Mapping[str, Any]
"""Keys of a config, without `config.`, and their values."""

Values = FloatDistribution | tuple
"""The possible values of a setting: an interval of numbers, or some values, equally likely."""

_DIGITS = 3  # of numbers that are drawn


def uniform(least: float, most: float) -> Values:
    """Returns the numbers between two, equally likely, rounded to three digits."""
    return FloatDistribution(least, most)


def log_uniform(least: float, most: float) -> Values:
    """Returns the numbers between two, whose logarithms are equally likely, to three digits."""
    return FloatDistribution(least, most, log=True)


def one_of(*values: Any) -> Values:
    """Returns some values, equally likely."""
    return values


def grid(values: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Returns all combinations.

    Args:
        values: The values of each config key, such as `{"local.learning_rate": (0.1, 0.01)}`.
    """
    combinations = itertools.product(*values.values())
    return [dict(zip(values, chosen, strict=True)) for chosen in combinations]


def draws(values: Mapping[str, Values], number: int, *, seed: int = 0) -> list[dict[str, Any]]:
    """Draws independent random settings.

    Args:
        values: The values of each config key, such as
            `{"local.learning_rate": log_uniform(1e-3, 1)}`.
        number: How many settings are drawn.
        seed: With the same seed, a greater number begins with the same settings.
    """
    rng = np.random.default_rng(seed)
    return [{key: _draw(of, rng) for key, of in values.items()} for _ in range(number)]


def _draw(of: Values, rng: np.random.Generator) -> Any:
    if isinstance(of, tuple):
        return of[rng.integers(len(of))]
    if of.log:
        return rounded(of, math.exp(rng.uniform(math.log(of.low), math.log(of.high))))
    return rounded(of, rng.uniform(of.low, of.high))


def rounded(of: FloatDistribution, number: float) -> float:
    """Returns a number with three digits; a bound, if rounding would go beyond it."""
    return min(max(float(f"{number:.{_DIGITS}g}"), of.low), of.high)


@takes(number=whole(1), at_a_time=whole(1), seed=whole(0))
@dataclasses.dataclass(frozen=True)
class Search:
    """A search for good settings by Optuna, in place of a list of trials.

    Each trial is proposed by a tree-structured Parzen estimator (`optuna.samplers.TPESampler`,
    multivariate) from the scores before it. The first trial is the centre of all intervals, with
    the first of other values; the next few are random.

    Attributes:
        values: The values of each config key, made by `uniform`, `log_uniform` or `one_of`.
        number: The number of trials of each variant. If it is raised, the search goes on. Delete
            runs of the table that a better trial replaces, as after adding trials to a list.
        at_a_time: Trials that are proposed before any of them has a score: more of them can run
            side by side, and each knows less.
        seed: The seed of the search. Equal studies propose equal trials.
    """

    values: Mapping[str, Values]
    number: int
    at_a_time: int = 1
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class Variant:
    """One row of the study's table.

    Attributes:
        config: As `train.py --config` takes it, `FILE[:CHOICE]`.
        settings: Settings that differ from the config.
        trials: Trials that replace those of the study's tuning.
    """

    config: str
    settings: Settings = dataclasses.field(default_factory=dict)
    trials: Sequence[Settings] | Search | None = None


@dataclasses.dataclass(frozen=True)
class Tuning:
    """How settings are chosen: on validation data, before anything is run on test data.

    Several numbers of `rounds` are successive halving: all trials of a list are trained for the
    first number of rounds, the better half of them goes on to the second, and so on. A trial of a
    search goes on while it is in the better half of those that have come as far. A trial that was
    left behind is not chosen.

    Attributes:
        trials: The settings to try for each variant, equal ones once; see `grid`, `draws` and
            `Search`. A variant with one trial is not tuned.
        settings: Settings of all trials, such as "data.fractions" with a part for validation.
            Trials are always evaluated on that part, and nowhere else.
        rounds: Increasing numbers of rounds; if empty, the rounds of the config.
        seeds: Each trial has a run for each seed, and their scores are averaged. Each seed divides
            the data anew, unless `data.merge` is false or there is a `data.partition_file`: test
            examples of the table's other seeds are then among those that settings are chosen with;
            a note says how many.
        metric: "MODEL/QUANTITY", as "personalized/accuracy" or "global/loss": the mean over
            clients after the last round. The lowest loss is the best; otherwise the highest value.
    """

    trials: Sequence[Settings] | Search
    settings: Settings = dataclasses.field(default_factory=dict)
    rounds: Sequence[int] = ()
    seeds: Sequence[int] = (0,)
    metric: str = "personalized/accuracy"

    def __post_init__(self):
        if list(self.rounds) != sorted(set(self.rounds)):
            raise ValueError(f"Tuning's rounds must increase, got {self.rounds!r}.")
        _ = self.decides  # refuses an unknown metric

    @property
    def decides(self) -> tuple[str, str]:
        """The model and the quantity of the metric."""
        return model_and_quantity(self.metric, "tuning's")

    @property
    def stages(self) -> list[int | None]:
        """The rounds of each stage; `None` for those of the config."""
        return list(self.rounds) or [None]


class Run(NamedTuple):
    """One run of a study.

    Attributes:
        label: The label of its variant.
        seed: `config.seed`.
        folder: The folder of its results, in the study's; beside it, `FOLDER.log` has its output.
        flags: The flags of `train.py`, without the output directory and `rounds`.
        rounds: The rounds that it is trained for; `None` for those of its config.
    """

    label: str
    seed: int
    folder: str
    flags: tuple[str, ...]
    rounds: int | None = None


@dataclasses.dataclass(frozen=True)
class Study:
    """Variants, each run with several seeds.

    Attributes:
        title: The title of its table.
        variants: The variants by labels, in the order of the table's rows.
        seeds: Each variant has a run for each seed.
        settings: Settings of all variants; a variant's own have precedence.
        baseline: The label of the variant that seconds are relative to; by default the first.
        tuning: How further settings are chosen for each variant; `None` for a study without tuning.
    """

    title: str
    variants: Mapping[str, Variant]
    seeds: Sequence[int] = (0,)
    settings: Settings = dataclasses.field(default_factory=dict)
    baseline: str | None = None
    tuning: Tuning | None = None

    def __post_init__(self):
        check_names("baseline", filter(None, [self.baseline]), self.variants)
        runs = list(self.runs())
        for label, variant in self.variants.items():
            if variant.trials is not None and self.tuning is None:
                raise ValueError(f"{label!r} has trials, but the study has no tuning.")
            self._check_settings(label)
            for trial in self.trials(label):
                runs += self.tuning_runs(label, trial, None)
        if not runs:
            raise ValueError("A study has one variant or more, and one seed or more.")
        folder, times = Counter(run.folder for run in runs).most_common(1)[0]
        if times > 1:
            raise ValueError(
                f"{times} runs would be in {folder!r}: labels and trials must differ in letters or "
                "digits, and seeds from each other."
            )

    def search(self, label: str) -> Search | None:
        """Returns the search that proposes the trials of a variant; `None` if they are listed."""
        source = self._source(label)
        return source if isinstance(source, Search) else None

    def trials(self, label: str) -> list[Settings]:
        """Returns the listed trials of a variant, equal ones once; `[]` if there is a search."""
        trials = [] if self.search(label) else self._source(label)
        return [trial for i, trial in enumerate(trials) if trial not in trials[:i]]

    def is_tuned(self, label: str) -> bool:
        """Checks whether scores choose the trial of a variant: there is more than one."""
        return self.search(label) is not None or len(self.trials(label)) > 1

    def runs(self, chosen: Mapping[str, Settings] | None = None) -> Iterator[Run]:
        """Yields the runs of the table: for each seed, those of all variants.

        Args:
            chosen: For a study with tuning, the settings that were chosen for each variant, by
                labels; variants without chosen settings are left out.
        """
        for seed in self.seeds:
            for label in self.variants if chosen is None else chosen:
                folder = os.path.join(folder_name(label), f"seed{seed}")
                yield self._run(label, seed, folder, {} if chosen is None else chosen[label])

    def tuning_runs(self, label: str, trial: Settings, rounds: int | None) -> Iterator[Run]:
        """Yields the runs of a trial, one for each seed of the tuning."""
        settings = {**self.tuning.settings, **trial, "evaluation.split": "validation"}
        above = os.path.join("tuning", folder_name(label), folder_name(trial_name(trial)))
        for seed in self.tuning.seeds:
            folder = os.path.join(above, f"seed{seed}")
            yield self._run(label, seed, folder, settings)._replace(rounds=rounds)

    def record(self) -> dict[str, Any]:
        """Returns all that reports need to know about the study, as JSON."""
        folders = {label: [] for label in self.variants}
        for run in self.runs():
            folders[run.label].append(run.folder)
        baseline = self.baseline or next(iter(self.variants))
        return {"title": self.title, "baseline": baseline, "variants": folders}

    def _source(self, label):
        if self.tuning is None:
            return []
        own = self.variants[label].trials
        return self.tuning.trials if own is None else own

    def _run(self, label, seed, folder, settings):
        variant = self.variants[label]
        settings = {**self.settings, **variant.settings, **settings, "seed": seed}
        flags = [f"--config.{key}={value}" for key, value in settings.items()]
        return Run(label, seed, folder, (f"--config={variant.config}", *flags))

    def _check_settings(self, label):
        search, tuning = self.search(label), self.tuning or Tuning([{}])
        tried = [search.values] if search else self.trials(label)
        every = [self.settings, self.variants[label].settings, tuning.settings, *tried]
        problem = None
        if any("seed" in settings for settings in every):
            problem = "'seed', but a study has seeds, a run for each. Leave it out"
        elif tuning.rounds and any("rounds" in settings for settings in tried):
            problem = f"'rounds', and so has its tuning, {tuning.rounds}. Leave out one of them"
        elif len(tuning.rounds) > 1 and any(of.get("privacy.epsilon") for of in every):
            problem = (
                "privacy.epsilon, whose noise is made for one number of rounds, but tuning has "
                "stages. Give it one number of rounds, or set privacy.noise_multiplier instead"
            )
        if problem:
            raise ValueError(f"The settings of {label!r} have {problem}.")


def load_study(source: str | os.PathLike) -> Study:
    """Returns the study of a file.

    Args:
        source: FILE, which defines `get_study()`; or FILE:CHOICE, which defines
            `get_study(choice)`, as files of configs do.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it fails, does not define `get_study`, or does not return a `Study`.
    """
    path, colon, choice = os.fspath(source).partition(":")
    if not pathlib.Path(path).is_file():
        raise FileNotFoundError(f"There is no study {path!r}.")
    with _users_code(f"The study {path}"):
        get_study = runpy.run_path(path)["get_study"]
    with _users_code(f"get_study of {path}"):
        study = get_study(choice) if colon else get_study()
    if not isinstance(study, Study):
        raise ValueError(f"get_study() of {path} returns no Study, but {study!r}.")
    return study


@contextlib.contextmanager
def _users_code(what: str) -> Iterator[None]:
    """Turns exceptions of a study's file into `ValueError`, but for those that already are."""
    try:
        yield
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(failure(what, error)) from error


def trial_name(settings: Settings) -> str:
    """Returns the name of a trial: its values, by the last parts of their keys if unique."""
    short = [key.rpartition(".")[2] for key in settings]
    keys = short if len(set(short)) == len(short) else settings
    values = (f"{key} {value}" for key, value in zip(keys, settings.values(), strict=True))
    return ", ".join(values) or "as it is"


def folder_name(label: str) -> str:
    """Returns a label as the name of a folder."""
    return re.sub(r"[^A-Za-z0-9.=+-]+", "_", label).strip("_.")
