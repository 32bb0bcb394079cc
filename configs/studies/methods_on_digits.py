"""All methods on handwritten digits: 20 clients, half of them a round, 30 rounds, three seeds."""

from tff_pfl.algorithms import ALGORITHMS
from tff_pfl.analysis import Study, Variant

# Beside the defaults, for methods that these suit badly here.
_OTHER_OPTIONS = {
    "feddyn": {"alpha": 0.1},
    "fedbabu": {"fine_tune_learning_rate": 0.01},
    "per_fedavg": {"inner_learning_rate": 0.05},
}
# Its model has no normalisation layers.
_WITHOUT = ("fedbn",)


def get_study():
    """The study; hyper-parameters are those of `configs/digits.py` and the methods' defaults."""
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
