"""Prints new clients' accuracy after each epoch: `python -m docs.results.best_epoch RUN`.

PGFed's authors report the epoch with the best mean over clients. It is chosen on the examples of
the evaluation, so it is better than any epoch that a user could choose.
"""

import argparse
import dataclasses

import pandas as pd

from tff_pfl.config import run_of
from tff_pfl.evaluation import MetricName
from tff_pfl.experiment import Run
from tff_pfl.runtime.startup import prepare_process

ACCURACY = MetricName("fine_tuned", "new_clients_test", "accuracy")


def by_epoch(run: Run, rate: float | None = None) -> pd.DataFrame:
    """Returns the accuracies of new clients by the number of epochs of fine-tuning.

    Args:
        run: A run that held new clients out.
        rate: The learning rate of the fine-tuning; `None`: that of the run.

    Returns:
        Columns `epochs`, from 0 to those of the run, `mean` and `std`, over the clients.
    """
    experiment, rows = run.experiment, []
    evaluation = dataclasses.replace(experiment.evaluation, fine_tune_learning_rate=rate)
    with run.restored() as restored:
        for epochs in range(experiment.new_clients.fine_tune_epochs + 1):
            chosen = dataclasses.replace(experiment.new_clients, fine_tune_epochs=epochs)
            tuned = dataclasses.replace(experiment, new_clients=chosen, evaluation=evaluation)
            clients = tuned.new_clients_evaluation(restored.server_state)
            found = clients.values[ACCURACY]
            rows.append({"epochs": epochs, "mean": found.mean(), "std": found.std()})
    return pd.DataFrame(rows)


def main():
    """Prints a line for each number of epochs, and the best one."""
    prepare_process()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", help="the run's folder")
    parser.add_argument("--rate", type=float, help="the learning rate of the fine-tuning")
    arguments = parser.parse_args()
    found = by_epoch(run_of(arguments.run), arguments.rate)
    print(found.to_string(index=False, float_format="{:.4f}".format))
    print(f"best: after {found['epochs'][found['mean'].idxmax()]} epochs")


if __name__ == "__main__":
    main()
