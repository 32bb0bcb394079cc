"""Learning rates for PGFed's Table 1 on CIFAR-10, 25 clients, of the methods added last.

Compared on validation data: a tenth of each client's examples, taken from its training examples.
"""

from tff_pfl.studies import Study, Variant

METHODS = ("apfl", "fedbabu", "feddyn", "fedrod", "lg_fedavg", "per_fedavg")


def get_study():
    """Two rates of the paper's grid each; for APFL, which has no momentum, higher ones."""
    variants = {}
    for method in METHODS:
        for rate in (0.1, 0.01) if method == "apfl" else (0.01, 0.001):
            variants[f"{method}, rate {rate}"] = Variant(
                f"configs/pgfed.py:cifar10,25,{method}", {"local.learning_rate": rate}
            )
    return Study(
        title="Learning rates for PGFed's Table 1 on CIFAR-10, on validation data",
        variants=variants,
        settings={
            "rounds": 12,
            "evaluation.every": 3,
            "evaluation.split": "validation",
            "data.fractions": (0.65, 0.1, 0.25),
        },
    )
