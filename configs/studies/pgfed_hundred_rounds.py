"""Runs PGFed's Table 1 on CIFAR-10 with 25 clients: three seeds of 100 rounds.

All methods have the learning rate 0.001. `docs/results/pgfed.md` says for which of them it was
chosen, and on what.
"""

from tff_pfl.studies import Study, Variant

_METHODS = ("pgfed", "fedper", "pgfedmo", "fedrod", "fedavg", "local")


def get_study():
    """Returns the study. A run takes half an hour on two cores."""
    rate = {"local.learning_rate": 0.001}
    return Study(
        title="PGFed's Table 1 on CIFAR-10, 25 clients, 100 rounds",
        variants={
            method: Variant(f"configs/pgfed.py:cifar10,25,{method}", rate) for method in _METHODS
        },
        seeds=(0, 1, 2),
        settings={"rounds": 100, "evaluation.every": 10},
    )
