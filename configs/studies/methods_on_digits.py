"""Compares all methods on handwritten digits: 20 clients, 10 a round, 30 rounds, three seeds."""

from tff_pfl.algorithms import ALGORITHMS
from tff_pfl.studies import Study, Variant

# Second rows for methods whose defaults do badly here.
_OTHER_OPTIONS = {
    "feddbe": {"kappa": 1.0},
    "feddyn": {"alpha": 0.1},
    "fedbabu": {"fine_tune_learning_rate": 0.01},
    "per_fedavg": {"inner_learning_rate": 0.05},
}
# FedBN needs normalisation layers, which the model lacks.
_WITHOUT = ("fedbn",)


def get_study():
    """Returns the study; hyperparameters are those of `configs/digits.py` and defaults."""
    variants = {}
    for name in sorted(set(ALGORITHMS) - set(_WITHOUT)):
        variants[name] = Variant(f"configs/digits.py:{name}")
        for option, value in _OTHER_OPTIONS.get(name, {}).items():
            settings = {f"algorithm.{option}": value}
            variants[f"{name}, {option} {value}"] = Variant(f"configs/digits.py:{name}", settings)
    return Study(
        title="All methods on digits",
        variants=variants,
        seeds=(0, 1, 2),
        baseline="fedavg",
    )
