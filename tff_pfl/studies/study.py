"""Defines studies and their parts.

A study is a Python file with a function `get_study`:

from tff_pfl.studies import Study, Tuning, Variant, grid

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

`get_study` may take one argument, the choice in `--study=FILE:CHOICE`, as `get_config` does.
"""

import dataclasses
import itertools
import math
import os
import pathlib
import runpy
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from optuna.distributions import FloatDistribution

from tff_pfl.arguments.names import check_names
from tff_pfl.arguments.quantities import Quantity
from tff_pfl.arguments.ranges import takes, whole
from tff_pfl.config.imports import failure
from tff_pfl.experiment.summary import model_and_quantity
from tff_pfl.output.files import folder_name
from tff_pfl.shipped import config_file

Settings = Mapping[str, Any]
"""Config keys, without `config.`, and their values."""

Values = FloatDistribution | tuple
"""The possible values of a setting: an interval of numbers, or a few equally likely values."""

_DIGITS = 3  # of drawn numbers


def uniform(low: float, high: float) -> Values:
    """Returns a uniform distribution of numbers, rounded to three digits."""
    return FloatDistribution(low, high)


def log_uniform(low: float, high: float) -> Values:
    """Returns a distribution of numbers with uniform logarithms, rounded to three digits."""
    return FloatDistribution(low, high, log=True)


def one_of(*values: Any) -> Values:
    """Returns a distribution in which each value is equally likely."""
    return values


def grid(values: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Returns all combinations of values.

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
        number: The number of settings to draw.
        seed: The seed. With the same seed, a larger `number` begins with the same settings.
    """
    rng = np.random.default_rng(seed)
    return [{key: _draw(choice, rng) for key, choice in values.items()} for _ in range(number)]


def _draw(values: Values, rng: np.random.Generator) -> Any:
    if isinstance(values, tuple):
        return values[rng.integers(len(values))]
    low, high = values.low, values.high
    if values.log:
        return rounded(values, math.exp(rng.uniform(math.log(low), math.log(high))))
    return rounded(values, rng.uniform(low, high))


def rounded(interval: FloatDistribution, number: float) -> float:
    """Returns a number rounded to three digits, but within the bounds of its interval."""
    return min(max(float(f"{number:.{_DIGITS}g}"), interval.low), interval.high)


@takes(number=whole(1), at_a_time=whole(1), seed=whole(0))
@dataclasses.dataclass(frozen=True)
class Search:
    """A search for good settings by Optuna, instead of a list of trials.

    A tree-structured Parzen estimator (`optuna.samplers.TPESampler`, multivariate) proposes each
    trial from the scores so far. The first trial has the centre of each interval and the first of
    listed values. The next few trials are random.

    Attributes:
        values: The values of each config key, made by `uniform`, `log_uniform` or `one_of`.
        number: The number of trials of each variant. If you raise it, the search continues. If a
            new trial is better, delete the runs of the table that it replaces, as after adding
            trials to a list.
        at_a_time: The number of trials to propose before any of them has a score. A larger number
            runs more trials in parallel, and each proposal knows fewer scores.
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
        config: The config, `FILE[:CHOICE]` as in `train.py --config`.
        settings: Settings that replace values of the config.
        trials: The trials of this variant; by default the trials of the study's tuning.
    """

    config: str
    settings: Settings = dataclasses.field(default_factory=dict)
    trials: Sequence[Settings] | Search | None = None


@dataclasses.dataclass(frozen=True)
class Tuning:
    """The choice of settings on validation data, before any run uses test data.

    Several numbers of `rounds` give successive halving: all trials of a list are trained for the
    first number of rounds, the better half continues to the second number, and so on. A trial of a
    search continues while it is in the better half of the trials that have reached its stage.
    Trials that stop early are never chosen.

    Attributes:
        trials: The settings to try for each variant; see `grid`, `draws` and `Search`. Duplicates
            are dropped. A variant with one trial is not tuned.
        settings: Settings of all trials, such as "data.fractions" with a part for validation.
            Trials are evaluated only on the validation part.
        rounds: Increasing numbers of rounds; if empty, the rounds of the config.
        seeds: The seeds of each trial's runs, whose scores are averaged. By default, each seed
            divides the data anew, so settings are chosen with some test examples of the table's
            other seeds; a note reports how many. `data.merge=False` or a `data.partition_file`
            avoids this.
        metric: "MODEL/QUANTITY", such as "personalized/accuracy" or "global/loss". The score is its
            mean over clients after the last round.
        direction: 1 if the highest score is the best, -1 if the lowest is. Default: as the task of
            the runs states it.
    """

    trials: Sequence[Settings] | Search
    settings: Settings = dataclasses.field(default_factory=dict)
    rounds: Sequence[int] = ()
    seeds: Sequence[int] = (0,)
    metric: str = "personalized/accuracy"
    direction: int | None = None

    def __post_init__(self):
        """Checks the rounds, the metric and the direction."""
        if self.direction not in (None, 1, -1):
            raise ValueError(f"Tuning.direction must be 1, -1 or None, got {self.direction!r}.")
        if list(self.rounds) != sorted(set(self.rounds)):
            raise ValueError(f"Tuning.rounds must increase, got {self.rounds!r}.")
        _ = self.metric_parts  # raises for an unknown metric

    @property
    def metric_parts(self) -> tuple[str, str]:
        """The model and the quantity of the metric."""
        return model_and_quantity(self.metric, "tuning's")

    @property
    def sign(self) -> int:
        """1 if the highest score is the best, -1 if the lowest is, until runs state it."""
        return self.direction or Quantity.named(self.metric_parts[1]).better

    @property
    def stages(self) -> list[int | None]:
        """The rounds of each stage; `None` means the rounds of the config."""
        return list(self.rounds) or [None]


class Training(NamedTuple):
    """One run of a study.

    Attributes:
        label: The label of its variant.
        seed: The value of `config.seed`.
        folder: Its output directory, relative to the study's folder. `FOLDER.log` has its output.
        flags: The flags of `train.py`, without the output directory and `rounds`.
        rounds: The number of rounds to train; `None` means the rounds of its config.
    """

    label: str
    seed: int
    folder: str
    flags: tuple[str, ...]
    rounds: int | None = None

    @property
    def all_flags(self) -> tuple[str, ...]:
        """The flags of `train.py` with its `rounds`."""
        return (*self.flags, *([] if self.rounds is None else [f"--config.rounds={self.rounds}"]))


@dataclasses.dataclass(frozen=True)
class Study:
    """A set of variants, each run with several seeds.

    Attributes:
        title: The title of its table.
        variants: The variants by labels, in the order of the table's rows.
        seeds: The seeds. Each variant has a run for each seed.
        settings: Settings of all variants. A variant's own settings take precedence.
        baseline: The label of the variant that seconds are relative to; by default the first one.
        tuning: The choice of further settings for each variant; `None` means no tuning.
    """

    title: str
    variants: Mapping[str, Variant]
    seeds: Sequence[int] = (0,)
    settings: Settings = dataclasses.field(default_factory=dict)
    baseline: str | None = None
    tuning: Tuning | None = None

    def __post_init__(self):
        """Checks that the settings agree and that no two runs share a folder."""
        check_names("baseline", filter(None, [self.baseline]), self.variants)
        runs = list(self.runs())
        for label, variant in self.variants.items():
            if variant.trials is not None and self.tuning is None:
                raise ValueError(f"{label!r} has trials, but the study has no tuning.")
            self._check_settings(label)
            for trial in self.trials(label):
                runs += self.tuning_runs(label, trial, None)
        if not runs:
            raise ValueError("A study must have at least one variant and one seed.")
        folder, times = Counter(run.folder for run in runs).most_common(1)[0]
        if times > 1:
            raise ValueError(
                f"{times} runs would share the folder {folder!r}. Labels and trials must differ in "
                "letters or digits, and seeds must be different."
            )

    @property
    def choice(self) -> Tuning:
        """The tuning; for a study without tuning, the choice among no trials."""
        return Tuning([]) if self.tuning is None else self.tuning

    def search(self, label: str) -> Search | None:
        """Returns the search that proposes a variant's trials, or `None` if they are listed."""
        source = self._source(label)
        return source if isinstance(source, Search) else None

    def trials(self, label: str) -> list[Settings]:
        """Returns the listed trials of a variant without duplicates; `[]` if there is a search."""
        trials = [] if self.search(label) else self._source(label)
        return [trial for i, trial in enumerate(trials) if trial not in trials[:i]]

    def is_tuned(self, label: str) -> bool:
        """Checks whether a variant has several trials, so that scores choose one."""
        return self.search(label) is not None or len(self.trials(label)) > 1

    def runs(self, chosen: Mapping[str, Settings] | None = None) -> Iterator[Training]:
        """Yields the runs of the table, seed by seed, for all variants.

        Args:
            chosen: For a study with tuning, the chosen settings by labels. Variants without chosen
                settings are left out.
        """
        for seed in self.seeds:
            for label in self.variants if chosen is None else chosen:
                folder = os.path.join(folder_name(label), f"seed{seed}")
                yield self._run(label, seed, folder, {} if chosen is None else chosen[label])

    def tuning_runs(self, label: str, trial: Settings, rounds: int | None) -> Iterator[Training]:
        """Yields the runs of a trial, one for each seed of the tuning."""
        settings = {**self.choice.settings, **trial, "evaluation.split": "validation"}
        above = os.path.join("tuning", folder_name(label), folder_name(trial_name(trial)))
        for seed in self.choice.seeds:
            folder = os.path.join(above, f"seed{seed}")
            yield self._run(label, seed, folder, settings)._replace(rounds=rounds)

    def record(self) -> dict[str, Any]:
        """Returns the information about the study that reports need, as JSON."""
        folders: dict[str, list[str]] = {label: [] for label in self.variants}
        for run in self.runs():
            folders[run.label].append(run.folder)
        baseline = self.baseline or next(iter(self.variants))
        return {"title": self.title, "baseline": baseline, "variants": folders}

    def _source(self, label):
        own = self.variants[label].trials
        return self.choice.trials if own is None else own

    def _run(self, label, seed, folder, settings):
        variant = self.variants[label]
        settings = {**self.settings, **variant.settings, **settings, "seed": seed}
        flags = [f"--config.{key}={value}" for key, value in settings.items()]
        return Training(label, seed, folder, (f"--config={variant.config}", *flags))

    def _check_settings(self, label):
        search, tuning = self.search(label), self.choice
        tried = [search.values] if search else self.trials(label)
        every = [self.settings, self.variants[label].settings, tuning.settings, *tried]
        problem = None
        if any("seed" in settings for settings in every):
            problem = "'seed', but the study sets the seeds of its runs. Leave it out"
        elif tuning.rounds and any("rounds" in settings for settings in tried):
            problem = (
                f"'rounds', but its tuning has rounds={tuning.rounds} too. Leave out one of them"
            )
        elif len(tuning.rounds) > 1 and any(settings.get("privacy.epsilon") for settings in every):
            problem = (
                "privacy.epsilon, which sets the noise for one number of rounds, but tuning has "
                "several. Give it one number of rounds, or set privacy.noise_multiplier instead"
            )
        if problem:
            raise ValueError(f"The settings of {label!r} have {problem}.")


def load_study(source: str | os.PathLike) -> Study:
    """Loads the study in a file.

    Args:
        source: FILE, which must define `get_study()`, or FILE:CHOICE, which must define
            `get_study(choice)`.

    Raises:
        FileNotFoundError: The file does not exist.
        ValueError: The file fails, does not define `get_study`, or does not return a `Study`.
    """
    path, colon, choice = config_file(source).partition(":")
    if not pathlib.Path(path).is_file():
        raise FileNotFoundError(f"There is no study {path!r}.")
    try:
        functions = runpy.run_path(path)
        if "get_study" not in functions:
            raise ValueError(
                f"{path} does not define get_study(), which a study does. A config is trained by "
                "programs/train.py --config=FILE."
            )
        get_study = functions["get_study"]
        study = get_study(choice) if colon else get_study()
    except ValueError:
        raise
    except Exception as error:  # a user's code may raise any exception
        raise ValueError(failure(f"The study {path}", error)) from error
    if not isinstance(study, Study):
        raise ValueError(f"get_study() of {path} must return a Study, got {study!r}.")
    return study


def study_of_methods(
    config: str, methods: Sequence[str], seeds: Sequence[int], settings: Mapping[str, Any] = {}
) -> Study:
    """Returns a study of methods that are trained by one config.

    Args:
        config: The config, `FILE[:CHOICE]`. Each method takes the place of METHOD in the choice, as
            in "configs/pgfed.py:cifar10,25,METHOD", or else comes last.
        methods: The names of the methods.
        seeds: The seeds of each method.
        settings: Settings that replace values of the config.

    Raises:
        ValueError: There are no methods, or the settings contain the seed.
    """
    if "METHOD" not in config:
        config = f"{config}{',' if ':' in config else ':'}METHOD"
    variants = {name: Variant(config.replace("METHOD", name)) for name in methods}
    return Study(", ".join(methods), variants, seeds, settings)


def trial_name(settings: Settings) -> str:
    """Returns the name of a trial: its keys, shortened if that is unique, and their values."""
    short = [key.rpartition(".")[2] for key in settings]
    keys = short if len(set(short)) == len(short) else settings
    values = (f"{key} {value}" for key, value in zip(keys, settings.values(), strict=True))
    return ", ".join(values) or "as it is"
