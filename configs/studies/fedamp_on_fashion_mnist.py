"""Tunes how much FedAMP mixes, for FedPG's Table 1 on Fashion-MNIST, on validation data.

With its defaults FedAMP is Local; `tff_pfl/algorithms/fedamp/round.py` says why. A tenth of each
client's training examples becomes validation data.
"""

from tff_pfl.studies import Study, Variant

_BASE = "configs/fedpg.py:dir,fmnist"
_MEDIAN = {"algorithm.distance_scale": "median", "algorithm.sigma": 1.0}


def get_study():
    """Returns the study.

    `alpha` sets the shares of other clients; `lambda_ / alpha`, how far a step goes to the mixture.
    """
    variants = {
        "Local": Variant(f"{_BASE},local"),
        "FedAMP, defaults": Variant(f"{_BASE},fedamp"),
    }
    for alpha in (0.01, 0.1):
        for ratio in (0.1, 1.0, 5.0):
            variants[f"alpha {alpha}, lambda/alpha {ratio}"] = Variant(
                f"{_BASE},fedamp",
                _MEDIAN | {"algorithm.alpha": alpha, "algorithm.lambda_": alpha * ratio},
            )
        variants[f"alpha {alpha}, from the mixture"] = Variant(
            f"{_BASE},fedamp",
            _MEDIAN | {"algorithm.alpha": alpha, "algorithm.start": "mixture"},
        )
    return Study(
        title="How much FedAMP mixes, on validation data",
        variants=variants,
        settings={
            "rounds": 300,
            "evaluation.every": 100,
            "evaluation.split": "validation",
            "data.fractions": (6 / 7 - 0.1, 0.1, 1 / 7),
        },
    )
