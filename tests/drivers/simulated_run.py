"""Runs a simulation by TFF's driver, in this process or as a program that tests kill."""

import sys

import tensorflow_federated as tff

from tests.federation import random_examples, tiny_experiment
from tff_pfl import runtime
from tff_pfl.data import FederatedDataset
from tff_pfl.drivers import Simulation

ROUNDS = 12


def tiny_dataset():
    data = [random_examples(5 + i, seed=i) for i in range(5)]
    return FederatedDataset.from_client_arrays([(d.x, d.y, d.x, d.y) for d in data], 3)


def drive(experiment, metrics_manager, **options):
    """Trains and evaluates an experiment by `run_training_process`; returns the last state."""
    simulation = Simulation(experiment)
    return tff.simulation.run_training_process(
        simulation.process,
        simulation.training_selection_fn,
        experiment.rounds,
        evaluation_fn=simulation.evaluation_fn,
        evaluation_selection_fn=simulation.evaluation_selection_fn,
        rounds_per_evaluation=experiment.evaluation.every,
        metrics_managers=[metrics_manager],
        **options,
    )


def drive_in(folder):
    """Trains, or resumes, with metrics and states in a folder."""
    drive(
        tiny_experiment(tiny_dataset(), rounds=ROUNDS),
        tff.program.CSVFileReleaseManager(f"{folder}/metrics.csv", tff.program.CSVSaveMode.WRITE),
        program_state_manager=tff.program.FileProgramStateManager(f"{folder}/states"),
    )


if __name__ == "__main__":
    runtime.set_graph_context(vectorize="never")
    drive_in(sys.argv[1])
