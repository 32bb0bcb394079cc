"""Gives TFF's own drivers the parts of an experiment."""

import dataclasses
import functools

import tensorflow_federated as tff

from tff_pfl import evaluation
from tff_pfl.clients import EVERYBODY_REPORTS, ClientStateStore
from tff_pfl.drivers.examples_source import ExamplesDataSource, IdentifiedClient
from tff_pfl.drivers.simulation import (
    SimulationState,
    simulation_evaluation,
    simulation_process,
)
from tff_pfl.experiment import Experiment
from tff_pfl.local import trees


class Simulation:
    """An experiment with the parts that TFF's drivers take.

    Rounds have the cohorts and the numbers of `tff_pfl.train`. New clients and early stops of the
    experiment have no influence.

    Example:
        simulation = tff_pfl.drivers.Simulation(experiment)
        state = tff.simulation.run_training_process(
            simulation.process,
            simulation.training_selection_fn,
            experiment.rounds,
            evaluation_fn=simulation.evaluation_fn,
            evaluation_selection_fn=simulation.evaluation_selection_fn,
            rounds_per_evaluation=experiment.evaluation.every,
            program_state_manager=tff.program.FileProgramStateManager("states"),
            metrics_managers=[tff.program.CSVFileReleaseManager("metrics.csv")],
        )

    In a `tff_pfl.runtime.ProgramContext`, `train_model` of `tff.learning.programs` trains the same
    rounds, and evaluates personal and global models:

        tff.learning.programs.train_model(
            train_process=simulation.process,
            train_data_source=simulation.train_data_source,
            train_per_round_clients=experiment.cohort_size,
            evaluation_manager=tff.learning.programs.EvaluationManager(
                simulation.evaluation_data_source,
                create_process_fn=lambda name: (simulation.evaluation_process, None),
                cohort_size=experiment.members.num_clients,
                ...
            ),
            ...
        )

    Attributes:
        process: The `simulation_process` of the experiment.
        train_data_source: The source of cohorts for `tff.learning.programs.train_model`.
        evaluation_data_source: The source of clients with the experiment's split, for the
            `EvaluationManager` of that program.
    """

    def __init__(self, experiment: Experiment):
        """Makes the parts.

        Raises:
            ValueError, TemplateError: See `Experiment.process`.
            TypeError: See `simulation_process`.
        """
        process, members = experiment.process, experiment.members
        self._experiment = experiment
        store = ClientStateStore(process.initialize_clients, process.client_state_type)
        everybody = dataclasses.replace(experiment, participation=EVERYBODY_REPORTS)
        self._source = experiment.source(store, experiment.cohort_size)
        self.process = simulation_process(process, members.num_clients)
        self.train_data_source = ExamplesDataSource(self._source, with_ids=True)
        self.evaluation_data_source = ExamplesDataSource(
            everybody.source(store, experiment.cohort_size),
            with_ids=True,
            test_split=experiment.evaluation.split,
        )

    @functools.cached_property
    def evaluation_process(self) -> tff.learning.templates.LearningProcess:
        """The `simulation_evaluation` of the experiment, for an `EvaluationManager`."""
        experiment = self._experiment
        return simulation_evaluation(experiment.process, experiment.members.num_clients)

    def training_selection_fn(self, round_num: int) -> list[IdentifiedClient]:
        """Returns the cohort of a round, counted from 1, with its training examples.

        Raises:
            ValueError: Clients are selected by another rule than uniformly at random, so that
                cohorts depend on earlier rounds.
        """
        return self.train_data_source.of_round(round_num - 1, self._experiment.cohort_size)

    def evaluation_selection_fn(self, round_num: int) -> evaluation.Evaluator:
        """Returns the evaluator of the experiment's clients, the same in all rounds."""
        del round_num
        return self._experiment.evaluator

    def evaluation_fn(
        self, state: SimulationState, evaluator: evaluation.Evaluator
    ) -> dict[str, float]:
        """Evaluates the models of clients, as `tff_pfl.train` does.

        Args:
            state: The state of `process`.
            evaluator: The evaluator of the clients.

        Returns:
            The statistics over clients, such as `personalized/local_test/accuracy_mean`; see
            `tff_pfl.evaluation.summarize`.
        """
        ids = evaluator.client_ids
        self._source.store.put(ids, [trees.row(state.clients, i) for i in ids])
        is_last = int(state.server.round_num) == self._experiment.rounds
        metrics = evaluation.summarize(evaluator(state.server, self._source, is_last=is_last))
        if self._experiment.evaluation.validation:
            validated = evaluator.on_own_examples(state.server, self._source, "validation")
            metrics |= evaluation.summarize(validated)
        return evaluation.to_text(metrics)
