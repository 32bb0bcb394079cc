"""Compares FedPG, its variants and FedAvg on FedPG's Tables 1 and 2, Fashion-MNIST, five seeds.

All methods have the comparison's learning rate of 0.1, which is not tuned; the paper takes the best
of three for each method. The paper does not say whether clients with two classes have equal or
unequal amounts, so the study has both.
"""

from tff_pfl.studies import Study, Variant

_OF_TABLE_1 = {
    "FedPG": "fedpg",
    "S-FedPG": "s_fedpg",
    "FedPG, gamma 0.3": "fedpg_gamma0.3",
    "FedPG, gamma 0.6": "fedpg_gamma0.6",
    "FedPG, gamma 1": "fedpg_gamma1.0",
}
_OF_TABLE_2 = {
    "FedPG": "fedpg",
    "M1, mean direction": "fedpg_m1",
    "M2, no fairness": "fedpg_m2",
    "M3, no personal direction": "fedpg_m3",
    "M4, no memory": "fedpg_m4",
}
# With equal amounts, both weightings are the same.
_FEDAVG = {"FedAvg": {"algorithm.weighting": "num_examples"}}
_FEDAVG_TWICE = {**_FEDAVG, "FedAvg, uniform": {"algorithm.weighting": "uniform"}}


def get_study():
    """Returns the rows of Table 1 on Dirichlet partitions, else those of Table 2; FedAvg on all."""
    variants = {}
    for name, partition, methods, fedavg in (
        ("Dir(0.1)", "dir", _OF_TABLE_1, _FEDAVG_TWICE),
        ("Pat-2", "pat", _OF_TABLE_2, _FEDAVG),
        ("Pat-2 unequal", "pat_unequal", _OF_TABLE_2, _FEDAVG_TWICE),
    ):
        base = f"configs/fedpg.py:{partition},fmnist"
        for label, method in methods.items():
            variants[f"{name}: {label}"] = Variant(f"{base},{method}")
        for label, settings in fedavg.items():
            variants[f"{name}: {label}"] = Variant(f"{base},fedavg", settings)
    return Study(
        title="FedPG on Fashion-MNIST, five seeds",
        variants=variants,
        seeds=(0, 1, 2, 3, 4),
        settings={"evaluation.generalization": "last"},
    )
