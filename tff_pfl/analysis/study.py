"""What a study consists of. It is a file of Python that defines `get_study`:

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
import inspect
import numbers
import os
import pathlib
import re
import runpy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tff_pfl.analysis.trials import OneOf, Search, Settings
from tff_pfl.experiment.config.imports import failure
from tff_pfl.experiment.results import model_and_quantity
from tff_pfl.ranges import each, whole

SEPARATOR = " | "
"""What stands between the row and the column in a label of a cross table."""


class StudyError(RuntimeError):
    """A study that cannot be run where it is to be."""


@dataclasses.dataclass(frozen=True)
class Variant:
    """One row of the study's table.

    Attributes:
        config: As `train.py --config` takes it, `FILE[:CHOICE]`.
        settings: Those that differ from the config.
        trials: In place of those of the study's tuning.
    """

    config: str
    settings: Settings = dataclasses.field(default_factory=dict)
    trials: Sequence[Settings] | Search | None = None

    def __post_init__(self):
        if self.trials is not None:
            _check_trials("A variant", self.trials)


@dataclasses.dataclass(frozen=True)
class Tuning:
    """How settings are chosen: on validation data, before anything is run on test data.

    Several numbers of `rounds` are successive halving: all trials of a list are trained for the
    first number of rounds, the better half of them goes on to the second, and so on. A trial of a
    search goes on while it is in the better half of those that have come as far. A trial that was
    left behind is not chosen.

    Attributes:
        trials: What is tried for each variant, equal settings once; see `grid`, `draws` and
            `Search`. A variant of one trial is not tuned.
        settings: Of all trials, such as "data.fractions" with a part for validation. They are
            evaluated on it in any case, and nowhere else.
        rounds: Increasing; none: those of the config.
        seeds: A run of each trial each, whose scores are averaged. Each divides the data anew,
            unless `data.merge` is false or there is a `data.partition_file`: test examples of other
            seeds are then among those that settings are chosen with, and runs say how many.
        metric: "MODEL/QUANTITY", as "personalized/accuracy" or "global/loss": the mean over
            clients after the last round. The lowest loss is the best, of all else the highest.
    """

    trials: Sequence[Settings] | Search
    settings: Settings = dataclasses.field(default_factory=dict)
    rounds: Sequence[int] = ()
    seeds: Sequence[int] = (0,)
    metric: str = "personalized/accuracy"

    def __post_init__(self):
        _check_trials("Tuning", self.trials)
        _check_seeds("Tuning", self.seeds)
        are_numbers = each(whole(1)).contains(self.rounds)
        if not are_numbers or list(self.rounds) != sorted(set(self.rounds)):
            raise ValueError(
                "Tuning's rounds increase from 1 or more, whole numbers in a tuple, got "
                f"{self.rounds!r}."
            )
        _ = self.decides  # refuses an unknown metric

    @property
    def decides(self) -> tuple[str, str]:
        """The model and the quantity of the metric."""
        return model_and_quantity(self.metric, "tuning's")

    @property
    def stages(self) -> list[int | None]:
        """The rounds of each stage; `None`: those of the config."""
        return list(self.rounds) or [None]


class Run(NamedTuple):
    """One run of a study.

    Attributes:
        label: Of its variant.
        seed: `config.seed`.
        folder: Of its results, in that of the study; beside it, `FOLDER.log` has what it prints.
        flags: Of `train.py`, but for the output directory and `rounds`.
        rounds: That it is trained for; `None`: those of its config.
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
        title: Of its table.
        variants: By labels, in the order of the table's rows.
        seeds: A run each.
        settings: Of all; those of a variant have precedence.
        baseline: The label of the variant that seconds are relative to; `None`: the first one.
        tuning: How further settings are chosen for each variant; `None`: there are none.
    """

    title: str
    variants: Mapping[str, Variant]
    seeds: Sequence[int] = (0,)
    settings: Settings = dataclasses.field(default_factory=dict)
    baseline: str | None = None
    tuning: Tuning | None = None

    def __post_init__(self):
        variants = self.variants.values() if isinstance(self.variants, Mapping) else ()
        if not variants or not all(isinstance(variant, Variant) for variant in variants):
            raise ValueError(
                f"variants must be one Variant or more, by labels, got {self.variants!r}."
            )
        _check_seeds("A study", self.seeds)
        if self.baseline not in (None, *self.variants):
            raise ValueError(f"baseline is no variant of the study: {self.baseline!r}.")
        _check_folders(self.variants)
        for label, variant in self.variants.items():
            if variant.trials is not None and self.tuning is None:
                raise ValueError(f"{label!r} has trials, but the study has no tuning.")
            self._check_settings(label)
            for alternatives in self._alternatives(label):
                _check_folders(list(map(trial_name, alternatives)))

    def search(self, label: str) -> Search | None:
        """Returns what proposes the trials of a variant one after the other, if anything does."""
        source = self._source(label)
        return source if isinstance(source, Search) else None

    def trials(self, label: str) -> list[Settings]:
        """Returns the listed trials of a variant, equal ones once; none of a search."""
        trials = self._source(label)
        if isinstance(trials, Search):
            return []
        return [trial for i, trial in enumerate(trials) if trial not in trials[:i]]

    def is_tuned(self, label: str) -> bool:
        """Checks whether scores choose the trial of a variant: there is more than one."""
        return self.search(label) is not None or len(self.trials(label)) > 1

    def runs(self, chosen: Mapping[str, Settings] | None = None) -> Iterator[Run]:
        """Yields the runs of the table: of each seed, those of all variants.

        Args:
            chosen: Of a study with tuning, the settings that were chosen for each variant, by
                labels; variants without them are left out.
        """
        for seed in self.seeds:
            for label in self.variants if chosen is None else chosen:
                folder = os.path.join(folder_name(label), f"seed{seed}")
                yield self._run(label, seed, folder, {} if chosen is None else chosen[label])

    def tuning_runs(self, label: str, trial: Settings, rounds: int | None) -> Iterator[Run]:
        """Yields the runs of a trial, one a seed of the tuning."""
        settings = {**self.tuning.settings, **trial, "evaluation.split": "validation"}
        above = os.path.join("tuning", folder_name(label), folder_name(trial_name(trial)))
        for seed in self.tuning.seeds:
            folder = os.path.join(above, f"seed{seed}")
            yield self._run(label, seed, folder, settings)._replace(rounds=rounds)

    def record(self) -> dict[str, Any]:
        """Returns what reports need to know of the study, as JSON."""
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
        search = self.search(label)
        tried = self.trials(label) if search is None else [search.values]
        tuning = self.tuning or Tuning([{}])
        every = [self.settings, self.variants[label].settings, tuning.settings, *tried]
        if any("seed" in settings for settings in every):
            raise ValueError("Settings cannot have 'seed': a study has seeds, a run for each.")
        if tuning.rounds and any("rounds" in settings for settings in tried):
            raise ValueError(
                f"Trials of {label!r} have 'rounds', and so has the tuning, {tuning.rounds}: all "
                "would be trained for these. Leave out one of them."
            )
        if len(tuning.rounds) > 1 and any(of.get("privacy.epsilon") for of in every):
            raise ValueError(
                f"Trials of {label!r} have privacy.epsilon: their noise is made for a number of "
                "rounds, after which they cannot go on to another stage. Give tuning one number "
                "of rounds, or set privacy.noise_multiplier instead."
            )

    def _alternatives(self, label) -> list[list[Settings]]:
        """Settings whose names have to tell them apart."""
        search = self.search(label)
        if search is None:
            return [self.trials(label)]
        return [
            [{key: x} for i, x in enumerate(of.values) if x not in of.values[:i]]
            for key, of in search.values.items()
            if isinstance(of, OneOf)
        ]


def load_study(source: str | os.PathLike) -> Study:
    """Returns the study of a file.

    Args:
        source: FILE, which defines `get_study()`; or FILE:CHOICE, which defines
            `get_study(choice)`, as files of configs do.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it fails, does not define `get_study`, or needs a choice or takes none; or
            the choice is unknown, or what it returns is no `Study`.
    """
    path, colon, choice = os.fspath(source).partition(":")
    if not pathlib.Path(path).is_file():
        raise FileNotFoundError(f"There is no study {path!r}.")
    with _users_code(f"The study {path}"):
        get_study = runpy.run_path(path).get("get_study")
    if not callable(get_study):
        raise ValueError(f"{path} defines no function get_study().")
    arguments = [choice] if colon else []
    try:
        inspect.signature(get_study).bind(*arguments)
    except TypeError as error:
        problem = "takes no choice" if colon else "needs a choice, as in FILE:CHOICE"
        raise ValueError(f"get_study of {path} {problem}, found {source!r}.") from error
    with _users_code(f"get_study of {path}"):
        study = get_study(*arguments)
    if not isinstance(study, Study):
        raise ValueError(f"get_study() of {path} returns no Study, but {study!r}.")
    return study


@contextlib.contextmanager
def _users_code(what: str) -> Iterator[None]:
    """Within, whatever fails is an error in a study's file; those of values say so themselves."""
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


def _check_trials(whose, trials):
    if isinstance(trials, Search):
        return
    is_sequence = isinstance(trials, Sequence) and all(isinstance(x, Mapping) for x in trials)
    if not is_sequence or not trials:
        raise ValueError(
            f"{whose} has a trial, or more, settings in a list as grid and draws make them, or a "
            f"Search, got {trials!r}."
        )


def _check_seeds(whose, seeds):
    is_sequence = isinstance(seeds, Sequence) and not isinstance(seeds, str)
    are_numbers = is_sequence and all(isinstance(x, numbers.Integral) for x in seeds)
    if not are_numbers or not seeds or len(set(seeds)) != len(seeds):
        raise ValueError(
            f"{whose} has one seed or more, different whole numbers in a tuple, got {seeds!r}."
        )


def _check_folders(labels):
    folders = [folder_name(label) for label in labels]
    for label, folder in zip(labels, folders, strict=True):
        if not folder or folders.count(folder) > 1 or folder == "tuning":
            raise ValueError(f"{label!r} needs a name of letters or digits of its own.")
