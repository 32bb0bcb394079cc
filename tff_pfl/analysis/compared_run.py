"""Trains a run of `compare` in its folder, with a record of all that its numbers depend on."""

import dataclasses
import functools
import pathlib
from collections.abc import Mapping
from typing import Any

import tensorflow_federated as tff

from tff_pfl import evaluation
from tff_pfl.arguments.kinds import described
from tff_pfl.config.run import suitable_capacity
from tff_pfl.data import FederatedDataset
from tff_pfl.experiment.identity import DESCRIPTIONS
from tff_pfl.experiment.loop import train
from tff_pfl.experiment.run_directory import OutputDirectoryError, RunDirectory, changed_settings
from tff_pfl.experiment.summary import Result, finished_summary
from tff_pfl.experiment.trackers import tracking
from tff_pfl.models import Model
from tff_pfl.output.progress import Bar
from tff_pfl.privacy import Accountant, PrivacyLoss, default_delta
from tff_pfl.templates import Algorithm, PersonalizedProcess, compose


class Ticks(tff.program.ReleaseManager[Mapping[str, float], int]):
    """A release manager that moves a progress bar after each round of a run."""

    def __init__(self, bar: Bar, before: int):
        """Begins after `before` rounds of the bar."""
        self._bar = bar
        self._before = before

    async def release(self, value: Mapping[str, float], key: int) -> None:
        """Moves the bar to round `key` of the run."""
        self._bar.update(self._before + key - self._bar.n)


@dataclasses.dataclass(frozen=True)
class ComparedRun:
    """A run of `compare`, which `train` trains unless it is finished."""

    label: str
    seed: int
    algorithm: Algorithm
    dataset: FederatedDataset
    path: pathlib.Path
    clients_per_round: int
    computation: Mapping[str, str]
    options: Mapping[str, Any]
    accountant: Accountant | None = None

    def __post_init__(self):
        """Checks that cohorts are drawn as the accountant assumes, if the method has noise."""
        _ = self.privacy

    @property
    def title(self) -> str:
        """The method and the seed, for progress and messages."""
        return f"{self.label}, seed {self.seed}"

    @property
    def process(self) -> PersonalizedProcess:
        """The process of the method, with initial weights of the seed."""
        return compose(self.algorithm, self.dataset.examples_type, self.seed)

    @property
    def parts(self) -> tuple[PersonalizedProcess, Model, FederatedDataset, pathlib.Path]:
        """The process, model, data and folder, from which the run is restored."""
        return self.process, self.algorithm.made_of.model, self.dataset, self.path

    @functools.cached_property
    def privacy(self) -> PrivacyLoss | None:
        """The privacy loss of the run's cohorts with the method's noise; `None` without noise.

        Raises:
            ValueError: See `Accountant.check`.
        """
        if self.algorithm.noise_multiplier is None:
            return None
        number, size = self.dataset.num_clients, self.clients_per_round
        participation = self.options["participation"]
        accountant = self.accountant or Accountant(
            number, size, default_delta(number), participation.sampling
        )
        accountant.check(number, size, participation)
        return PrivacyLoss(accountant, self.algorithm.noise_multiplier)

    @functools.cached_property
    def settings(self) -> dict[str, Any]:
        """All that the run's numbers depend on, as JSON values, in the keys of configs."""
        made_of, data, options = self.algorithm.made_of, self.dataset, self.options
        evaluated = described(dataclasses.asdict(options["evaluate"]))
        private = {}
        if loss := self.privacy:
            values = {"noise_multiplier": loss.noise_multiplier, "delta": loss.accountant.delta}
            private["privacy"] = values
        return {
            "seed": self.seed,
            "rounds": options["rounds"],
            "clients_per_round": self.clients_per_round,
            "algorithm": {"name": self.algorithm.name, **described(made_of.options)},
            "model": {"name": made_of.model.name, "num_weights": made_of.model.num_weights},
            "task": {
                "name": made_of.model.task.name,
                "metrics": {it.name: it.better for it in made_of.model.task.quantities.values()},
            },
            "local": made_of.local.settings(),
            "data": {
                "name": data.name,
                "num_clients": data.num_clients,
                "fingerprint": f"{data.fingerprint} {data.inputs_fingerprint}",
            },
            "evaluation": {"every": options["evaluate_every"], **evaluated},
            "participation": described(options["participation"]),
            "early_stop": described(options["early_stop"]),
            "computation": self.computation,
            **private,
        }

    def check_folder(self) -> None:
        """Raises an error if the folder has a run with other settings."""
        if not (self.path / "config.json").exists():
            return
        _, changed = changed_settings(self.path, self.settings)
        known = [change for change in changed if not change.startswith("computation")]
        if changed:
            keys = [change.partition(":")[0].removeprefix("computation.") for change in changed]
            code = [f"{DESCRIPTIONS[key]} has changed" for key in keys if key in self.computation]
            what = "; ".join(known[:3] or code)
            raise OutputDirectoryError(
                f"{self.path} is a run of something else ({what}). Pass another folder, or "
                "overwrite=True to train it again."
            )

    def train(self, overwrite: bool, tracker: str | None, ticks: Ticks) -> Result | None:
        """Trains the run and returns its result; `None` if it is finished and stays."""
        rounds = self.options["rounds"]
        summary = None if overwrite else finished_summary(self.path, rounds)
        if summary is not None and summary.final.round_num <= rounds:
            return None
        model, local = self.algorithm.made_of.model, self.algorithm.made_of.local
        size = self.clients_per_round
        how = {"resume": not overwrite, "overwrite": overwrite}
        with (
            RunDirectory(self.path, self.settings, **how) as directory,
            tracking(tracker, directory) as trackers,
        ):
            return train(
                self.process,
                model,
                self.dataset,
                directory,
                clients_per_round=size,
                seed=self.seed,
                capacity=suitable_capacity(model, self.dataset, size, local.batch_size),
                release_managers=(*trackers, ticks),
                privacy=self.privacy,
                title=self.title,
                verbose=False,
                **self.options,
            )


def in_short(result: Result) -> str:
    """Returns the main metric of the last evaluation, and epsilon of a private run, as text."""
    metrics = result.final.metrics
    main = evaluation.main_metric(metrics)
    text = f"{main._replace(statistic='')} {metrics[main]:.4f}"
    return text if result.privacy is None else f"{text}, epsilon {result.privacy['epsilon']:.4g}"
