"""Runs a simulation by TFF's driver, in this process or as a program that tests kill."""

import sys

import tensorflow_federated as tff

from tests.experiment.killed import tiny_dataset
from tests.federation import tiny_experiment
from tff_pfl import runtime
from tff_pfl.drivers import Simulation

ROUNDS = 12


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
