"""Measures what privacy costs on Fashion-MNIST, for epsilon 2, 4, 8 or none.

FedAvg and personalized methods; 500 clients with about 140 examples of few classes each; 80 rounds;
three seeds. Each client takes part in a round with probability 0.15. The runs without privacy have
uniform weights and the same cohorts, so that privacy is the only difference. The model is small,
because noise grows with the square root of its size. The clipping norm adapts; nothing is tuned.
"""

from tff_pfl.analysis import SEPARATOR
from tff_pfl.studies import Study, Variant

_METHODS = {"FedAvg": "fedavg", "FedPer": "fedper", "Ditto": "ditto", "pFedMB": "pfedmb"}
_EPSILONS = {
    "2": {"privacy.epsilon": 2.0},
    "4": {"privacy.epsilon": 4.0},
    "8": {"privacy.epsilon": 8.0},
    "none": {"algorithm.weighting": "uniform"},
}


def get_study():
    """A variant for each method and epsilon; delta is 500 ** -1.1."""
    return Study(
        title="Privacy on Fashion-MNIST",
        variants={
            f"{method}{SEPARATOR}{epsilon}": Variant(f"configs/digits.py:{name}", settings)
            for method, name in _METHODS.items()
            for epsilon, settings in _EPSILONS.items()
        },
        seeds=(0, 1, 2),
        settings={
            "data.name": "fashion_mnist",
            "data.num_clients": 500,
            "data.dirichlet.min_examples": 10,
            "model.options.hidden": (32,),
            "local.epochs": 1,
            "local.batch_size": 20,
            "clients_per_round": 75,
            "rounds": 80,
            "evaluation.every": 20,
            "evaluation.clients_per_call": 100,
            "checkpoint_every": 20,
            "participation.sampling": "poisson",
        },
    )
