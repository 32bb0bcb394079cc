"""States a run as one value: all that its numbers depend on."""

import contextlib
import dataclasses
import functools
import operator
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from absl import logging

from tff_pfl import runtime
from tff_pfl.arguments.kinds import KindError, check_kind
from tff_pfl.arguments.ranges import whole
from tff_pfl.arguments.settings import NOTHING, RESULTS, facts, setting, settings
from tff_pfl.clients import (
    EVERYBODY_REPORTS,
    ClientStateStore,
    CohortDataSource,
    Participation,
)
from tff_pfl.clients.padding import Ladder
from tff_pfl.data import ExamplesError, FederatedDataset
from tff_pfl.evaluation import (
    Evaluation,
    Evaluator,
    NewClientsEvaluation,
    fine_tuned,
    locally_trained,
    sampled_clients,
)
from tff_pfl.experiment.capacity import Compilation, compilation, fitted, suitable_capacity
from tff_pfl.experiment.early_stop import EarlyStop
from tff_pfl.experiment.identity import of_run
from tff_pfl.experiment.new_clients import NewClients
from tff_pfl.experiment.recipe import recipe_of_experiment, settings_of
from tff_pfl.local import LocalTraining
from tff_pfl.models import Model
from tff_pfl.privacy import Accountant, PrivacyLoss, default_delta
from tff_pfl.templates import Algorithm, Ingredients, PersonalizedProcess, compose

# How to make the value of a field.
_TIPS = {
    "algorithm": "tff_pfl.make makes one.",
    "dataset": "FederatedDataset.from_client_arrays makes one of each client's arrays.",
}


@settings(eq=False)
class Experiment:
    """All that the numbers of a run depend on, checked once, when it is made.

    `tff_pfl.train(experiment, folder)` trains it; `dataclasses.replace` makes others of it.

    Example:
        >>> model, local = testing.tiny_model(), testing.tiny_local()
        >>> x, y = np.ones([6, 4, 4, 1], np.float32), np.arange(6) % 3
        >>> dataset = tff_pfl.FederatedDataset.from_client_arrays([(x, y, x, y)] * 4, 3)
        >>> ditto = tff_pfl.make("ditto", model, local)
        >>> experiment = tff_pfl.Experiment(ditto, dataset, rounds=30, clients_per_round=2)
        >>> experiment.title
        'ditto on custom'

    Raises:
        KindError: A field is of another class, or the algorithm was not made by `tff_pfl.make`.
        ValueError: A number is out of range; the cohorts are impossible, or differ from those of
            the accountant or of the algorithm; an early stop, new clients or a sample of clients
            are impossible; or the model does not fit the labels. The error's attribute `field`
            names the field that is wrong.
    """

    algorithm: Algorithm = setting("The algorithm, made by `tff_pfl.make`.")
    dataset: FederatedDataset = setting("The federation's data.")
    rounds: int = setting("The number of rounds.", whole(1), changes=RESULTS)
    clients_per_round: int | None = setting(
        "The number of clients in a cohort; None: all clients that train.", whole(1), default=None
    )
    seed: int = setting(
        "The seed of initial weights, cohorts, batches and all other draws.",
        whole(0, 2**63 - 1),
        default=0,
    )
    evaluation: Evaluation = setting("The evaluations.", default=Evaluation())
    participation: Participation = setting(
        "Selects the clients of a round and decides which of them report. Unless all "
        "clients always report, metrics count both, such as `participation/num_selected`.",
        default=EVERYBODY_REPORTS,
    )
    early_stop: EarlyStop | None = setting(
        "Ends the run before `rounds`, based on the evaluations every `evaluation.every` "
        "rounds. The round after which it ends the run is evaluated as the last one.",
        default=None,
    )
    new_clients: NewClients | None = setting(
        "The clients that do not train, but are evaluated after the last round.", default=None
    )
    accountant: Accountant | None = setting(
        "Computes epsilon of an algorithm with noise; None: one with the run's cohorts and "
        "`privacy.default_delta`.",
        default=None,
    )
    checkpoint_every: int = setting(
        "The rounds between checkpoints.", whole(1), default=1, changes=NOTHING
    )
    label: str = setting(
        "A label, in place of the names of the algorithm and the data set; see `title`.", default=""
    )

    def __post_init__(self):
        """Checks that the parts fit together."""
        hints = typing.get_type_hints(Experiment)
        for name, (_, its) in facts(Experiment).items():
            if its.range is None:
                check_kind(name, getattr(self, name), hints[name], _TIPS.get(name, ""))
        _ = self.ingredients
        if self.new_clients is not None:
            check_kind("new_clients: local", self.new_clients.local, LocalTraining | None)
        with _field("new_clients"):
            members = self.members
        with _field("model"):
            check_labels(self.model, members)
        with _field("clients_per_round"):
            self.participation.check(members.num_clients, self.cohort_size)
            self.algorithm.made_for.check(members.num_clients, self.cohort_size)
        with _field("participation"):
            self.participation.check_algorithm(self.algorithm)
        with _field("privacy"):
            _ = self.privacy
        with _field("evaluation"):
            _ = self.sample
        if self.early_stop is not None:
            with _field("early_stop"):
                self.early_stop.check(self)

    @property
    def title(self) -> str:
        """The title of progress bars, warnings and the summary."""
        return self.label or f"{self.algorithm.name} on {self.dataset.name}"

    @property
    def cohort_size(self) -> int:
        """The number of clients in a cohort, or the expected number for Poisson sampling."""
        size = self.clients_per_round
        return self.members.num_clients if size is None else operator.index(size)

    @property
    def ingredients(self) -> Ingredients:
        """The ingredients of the algorithm."""
        if self.algorithm.made_of is None:
            raise KindError(
                "The algorithm does not say of which model and local "
                "training it was made. Register its function by tff_pfl.ALGORITHMS.register, and "
                "make it by tff_pfl.make."
            )
        return self.algorithm.made_of

    @property
    def model(self) -> Model:
        """The model that clients train."""
        return self.ingredients.model

    @property
    def local(self) -> LocalTraining:
        """The local training."""
        return self.ingredients.local

    @functools.cached_property
    def members(self) -> FederatedDataset:
        """The data of the clients that train."""
        return self.dataset if self.new_clients is None else self.new_clients.split(self.dataset)[0]

    @functools.cached_property
    def newcomers(self) -> FederatedDataset | None:
        """The data of the clients that do not train, or `None` without new clients."""
        return None if self.new_clients is None else self.new_clients.split(self.dataset)[1]

    @property
    def sample(self) -> np.ndarray | None:
        """The ids of the evaluated clients, ascending; `None`: all clients that train."""
        number = self.evaluation.clients
        return sampled_clients(self.seed, self.members.num_clients, number) if number else None

    @functools.cached_property
    def privacy(self) -> PrivacyLoss | None:
        """The privacy loss of the run's cohorts with the algorithm's noise; `None` without noise.

        Raises:
            ValueError: There is an accountant but no noise, or see `Accountant.check`.
        """
        noise, number = self.algorithm.noise_multiplier, self.members.num_clients
        if noise is None:
            if self.accountant is not None:
                raise ValueError(
                    "There is an accountant, but the algorithm has no noise. Add it by "
                    "tff_pfl.privacy.with_privacy, or leave out the accountant."
                )
            return None
        size, participation = self.cohort_size, self.participation
        accountant = self.accountant or Accountant(
            number, size, default_delta(number), participation.sampling
        )
        accountant.check(number, size, participation.sampling)
        return PrivacyLoss(accountant, noise)

    @functools.cached_property
    def process(self) -> PersonalizedProcess:
        """The process of the algorithm, with the models that are evaluated.

        It is composed once for all experiments of the same `algorithm` object.

        Raises:
            ValueError: A further model needs a global model, which the algorithm does not have; or
                the selector of clients needs what the process hides.
            TemplateError: See `compose`.
        """
        of, models = self.evaluation, ("further_models", "fine_tune_epochs")
        chosen = [getattr(of, name) for name in (*models, "fine_tune_learning_rate")]
        types = str(self.members.examples_type)
        # The algorithm keeps its processes for as long as it lives.
        composed = vars(self.algorithm).setdefault("_composed", {})
        if (key := (types, self.seed, *chosen)) not in composed:
            composed[key] = self._composed()
        process = composed[key]
        with _field("participation"):
            self.participation.check_process(process)
        return process

    def _composed(self) -> PersonalizedProcess:
        algorithm = self.algorithm
        if self.evaluation.fine_tunes_own_models:
            algorithm = self._evaluating("fine_tuned")
        with _field("evaluation.further_models"):
            names = self.evaluation.further_models
            further = {name: self._evaluating(name) for name in names}
        return compose(algorithm, self.members.examples_type, self.seed, further_models=further)

    def _evaluating(self, name: str) -> Algorithm:
        """Returns the algorithm with a further model instead of each client's own model."""
        if name == "locally_trained":
            return locally_trained(self.algorithm, self.local)
        epochs = self.evaluation.fine_tune_epochs
        return fine_tuned(self.algorithm, self.fine_tuning(self.local), epochs=epochs)

    def fine_tuning(self, local: LocalTraining) -> LocalTraining:
        """Returns local training at the rate of the fine-tuning of evaluations."""
        rate = self.evaluation.fine_tune_learning_rate
        return local if rate is None else local.at_constant_rate(rate)

    @functools.cached_property
    def evaluator(self) -> Evaluator:
        """The evaluator of the clients that train.

        Raises:
            ValueError: No client of the sample has examples.
        """
        with _field("evaluation"):
            return Evaluator(self.process, self.members, self.evaluation, self.seed)

    @functools.cached_property
    def new_clients_evaluation(self) -> NewClientsEvaluation | None:
        """The evaluation of the new clients, or `None` if they are not evaluated.

        Raises:
            ValueError: The algorithm has no model that new clients can fine-tune, or they would
                fine-tune it twice.
        """
        chosen, newcomers, process = self.new_clients, self.newcomers, self.process
        if chosen is None or newcomers is None or not chosen.evaluated:
            return None
        fits = process.algorithm.personalize.new_clients
        starts_with_own = process.global_weights is None and fits is None
        with _field("new_clients"):
            if starts_with_own and self.evaluation.fine_tunes_own_models:
                raise ValueError(
                    f"evaluation.fine_tune_epochs={self.evaluation.fine_tune_epochs} fine-tunes "
                    f"each client's own model, but new clients of {self.algorithm.name!r} start "
                    "with such a model and would fine-tune it twice. Set it to 0, or add "
                    "'fine_tuned' to evaluation.further_models to evaluate a fine-tuned model "
                    "beside it."
                )
            local = fitted(chosen.local or self.local, newcomers)
            return NewClientsEvaluation(
                process,
                local,
                newcomers,
                self.evaluation,
                self.seed,
                epochs=chosen.fine_tune_epochs,
                fine_tuning=self.fine_tuning(local),
                locally_trained="locally_trained" in self.evaluation.further_models,
                first_id=self.members.num_clients,
                capacity=self.capacity(self.cohort_size),
            )

    @functools.cached_property
    def identity(self) -> Mapping[str, Any]:
        """All that the numbers of the run depend on, as JSON values; see `identity.of_run`.

        Raises:
            ValueError: See `process`.
        """
        return of_run(self)

    @property
    def compilation(self) -> Compilation:
        """Whether client work is compiled where the context leaves it open; see `compilation`."""
        return compilation(self.model, self.members, self.local, self.rounds, self.cohort_size)

    @contextlib.contextmanager
    def compiling(self, clients_at_a_time: int | None = None) -> Iterator[None]:
        """Tells the runtime whether compilation pays, and what it may expect of cohorts.

        Args:
            clients_at_a_time: The number of clients that are computed together; by default a
                cohort.
        """
        choice = self.compilation
        cohorts = runtime.Cohorts.of(clients_at_a_time or self.cohort_size, self.members.sizes())
        with runtime.compiling(choice.pays, cohorts):
            if runtime.leaves_compilation_open():
                which = "compiled" if choice.pays else "not compiled"
                logging.info("Client work is %s by XLA: %s.", which, choice.reason)
            yield

    def capacity(self, clients_at_a_time: int) -> Ladder | None:
        """Returns the capacity for clients' examples; see `suitable_capacity`."""
        batch_size = self.local.batch_size
        return suitable_capacity(self.model, self.members, clients_at_a_time, batch_size)

    def source(self, store: ClientStateStore, clients_at_a_time: int) -> CohortDataSource:
        """Returns the source of the cohorts, whose states are in a store.

        Args:
            store: The client states of the process.
            clients_at_a_time: The number of clients that are computed together, for which their
                examples are padded.
        """
        return CohortDataSource(
            self.members,
            store,
            self.process.client_type,
            seed=self.seed,
            capacity=self.capacity(clients_at_a_time),
            participation=self.participation,
        )

    def check_evaluated(self) -> None:
        """Checks that some of the evaluated clients have examples in the evaluated splits.

        Raises:
            ExamplesError: None of them has any.
        """
        options, chosen, newcomers = self.evaluation, self.new_clients, self.newcomers
        who = "client that trains" if newcomers else "client"
        if options.clients:
            who = f"client of the sample (clients={options.clients})"
        splits = dict.fromkeys([options.split, *["validation"] * options.validation])
        for split in splits:
            _check_split(self.members, split, who, self.sample)
        if chosen is not None and newcomers is not None and chosen.evaluated:
            _check_split(newcomers, options.split, "new client")

    def written_as(self, settings: Mapping[str, Any]) -> "Experiment":
        """Returns the same experiment with `settings` as another language states them.

        Experiments that `dataclasses.replace` makes of it state their own again.
        """
        written = dataclasses.replace(self)
        vars(written)["settings"] = dict(settings)
        return written

    @property
    def recipe(self) -> dict[str, Any]:
        """The experiment by the names of its parts, as JSON values in the keys of configs.

        `tff_pfl.config.run_of` makes the experiment of a run again of its recipe.

        Raises:
            NoRecipeError: A part has no name: no function of a registry made it.
        """
        return recipe_of_experiment(self)

    @functools.cached_property
    def settings(self) -> dict[str, Any]:
        """The settings that a run records, as JSON values in the keys of configs.

        They are the recipe, or without one a description of the parts, in which `unnamed` says
        which part has no name.
        """
        return settings_of(self)


@contextlib.contextmanager
def _field(name: str) -> Iterator[None]:
    """Notes in an error of its body the field that is wrong."""
    try:
        yield
    except Exception as error:
        vars(error).setdefault("field", name)
        raise


def check_labels(model: Model, dataset: FederatedDataset) -> None:
    """Raises a `ValueError` if the labels of a data set do not fit a model and its task."""
    model.check_classes(dataset.num_classes)
    about = dataset.num_classes, dataset.name, dataset.class_names
    model.task.check_data(dataset.y, *about)


def _check_split(dataset, split, who, clients=None) -> None:
    if not dataset.sizes(split)[slice(None) if clients is None else clients].any():
        raise ExamplesError(
            f"The split to evaluate on is {split!r}, but no {who} of {dataset.name!r} has {split} "
            "examples. Cut some of the rows off for that, before a run."
        )
