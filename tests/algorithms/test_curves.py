"""Tests that three rounds of each algorithm still give the numbers of `curves.json`.

References in NumPy say whether numbers are right; this test says that they have changed. After a
change that is meant, `python -m tests.algorithms.test_curves` writes the file anew.
"""

import json
import pathlib

import numpy as np
import pytest

from tests.algorithms.rounds import each_round
from tests.federation import local_sgd, make_clients
from tff_pfl import testing
from tff_pfl.algorithms import ALGORITHMS, make
from tff_pfl.local import evaluate
from tff_pfl.testing import EagerProcess

CURVES = pathlib.Path(__file__).with_name("curves.json")
SIZES = (9, 6, 12, 5)
COHORTS = ((0, 1, 2), (3, 1, 0), (2, 3, 1))
FEDERATION = {"num_clients": 4, "clients_per_round": 3}
OPTIONS = {"fedfomo": {"num_models": 2}, "pfedme": {"lambda_": 1.0}}


def curve(name) -> list[float]:
    """Returns the training loss of each round, and the clients' mean loss after the last one."""
    network = testing.tiny_normalized_model if name == "fedbn" else testing.tiny_model
    options = FEDERATION | OPTIONS.get(name, {})
    algorithm = make(name, network(), local_sgd(0.2, epochs=2), **options)
    process = EagerProcess(algorithm, seed=4)
    clients = make_clients(process, SIZES)
    losses = []
    for run in each_round(process, clients, COHORTS):
        (losses_of_round,) = (
            exchange["loss"]
            for exchange in run.metrics.values()
            if isinstance(exchange, dict) and "loss" in exchange
        )
        losses.append(losses_of_round)
    own = zip(process.personalize(run.state, run.clients), run.clients, strict=True)
    measured = [
        evaluate(algorithm.evaluated_model, w, client.data)["loss"].mean for w, client in own
    ]
    return [float(loss) for loss in (*losses, np.mean(measured))]


@pytest.mark.thorough
@pytest.mark.parametrize("name", ALGORITHMS)
def test_three_rounds_give_the_same_losses_as_before(name):
    assert curve(name) == pytest.approx(json.loads(CURVES.read_text())[name], rel=1e-4)


if __name__ == "__main__":
    rows = [
        f"{json.dumps(name)}: {[round(loss, 6) for loss in curve(name)]}" for name in ALGORITHMS
    ]
    CURVES.write_text("{\n" + ",\n".join(rows) + "\n}\n")
