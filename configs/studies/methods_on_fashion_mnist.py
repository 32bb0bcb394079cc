"""Compares all methods on Fashion-MNIST: 50 clients, 50 rounds, three seeds, nothing tuned."""

from tff_pfl.algorithms import ALGORITHMS
from tff_pfl.studies import Study, Variant

# FedBN needs normalisation layers, which the model lacks.
_WITHOUT = ("fedbn",)


def get_study():
    """Returns the study; hyperparameters are those of `configs/fashion_mnist.py` and defaults."""
    methods = sorted(set(ALGORITHMS) - set(_WITHOUT))
    return Study(
        title="All methods on Fashion-MNIST",
        variants={name: Variant(f"configs/fashion_mnist.py:{name}") for name in methods},
        seeds=(0, 1, 2),
        baseline="fedavg",
    )
