"""Measures what privacy costs: FedAvg and personalized methods on digits, epsilon 2, 4, 8 or none.

100 clients, 50 rounds, three seeds. Each client takes part in a round with probability 0.4. Runs
without privacy have uniform weights and the same cohorts, so that privacy is the only difference.
The clipping norm adapts; nothing is tuned. With more rounds, epsilon 2 would need more noise than
`tff.aggregators` allows with 40 clients.
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
    """A variant for each method and epsilon; delta is 100 ** -1.1."""
    return Study(
        title="Privacy on digits",
        variants={
            f"{method}{SEPARATOR}{epsilon}": Variant(f"configs/digits.py:{name}", settings)
            for method, name in _METHODS.items()
            for epsilon, settings in _EPSILONS.items()
        },
        seeds=(0, 1, 2),
        settings={
            "data.num_clients": 100,
            "data.dirichlet.min_examples": 5,
            "clients_per_round": 40,
            "rounds": 50,
            "evaluation.every": 10,
            "participation.sampling": "poisson",
        },
    )
