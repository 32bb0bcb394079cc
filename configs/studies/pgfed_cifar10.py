"""Runs PGFed's Table 1 on CIFAR-10 with 25 clients: 30 rounds, rates chosen on validation data.

A tenth of each client's examples is taken from its training examples for validation.
"""

from tff_pfl.studies import Study, Tuning, Variant, grid

_METHODS = ("feddyn", "lg_fedavg", "per_fedavg", "fedrod", "fedbabu")
_BASE = "configs/pgfed.py:cifar10,25"


def get_study():
    """Returns the study. PGFed's and FedPer's rates are known: `docs/results/pgfed.md`."""
    settled = {"local.learning_rate": 0.001}
    return Study(
        title="PGFed's Table 1 on CIFAR-10, 25 clients, 30 rounds",
        variants={
            "pgfed": Variant(f"{_BASE},pgfed", trials=[settled]),
            "fedper": Variant(f"{_BASE},fedper", trials=[settled]),
            # APFL has no momentum, as in the paper, and so needs higher rates.
            "apfl": Variant(f"{_BASE},apfl", trials=grid({"local.learning_rate": (0.1, 0.01)})),
            **{method: Variant(f"{_BASE},{method}") for method in _METHODS},
        },
        settings={"rounds": 30},
        tuning=Tuning(
            grid({"local.learning_rate": (0.01, 0.001)}),
            {"data.fractions": (0.65, 0.1, 0.25), "evaluation.every": 3},
            rounds=(12,),
        ),
    )
