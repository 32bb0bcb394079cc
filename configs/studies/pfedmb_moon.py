"""Runs pFedMB's tables with momentum, weight decay, crops and flips: `--study=FILE:PARTITION`.

    PARTITION  pairs (Table 1, ten clients), or two_classes or dirichlet (Table 2, 15 clients)

`configs/pfedmb.py` says where this recipe comes from. Ten rounds choose one of three learning rates
for each method on the validation images, with a fourth, larger one for pFedMB. All models are
fine-tuned at the same rate. pFedMB's other options are those of the tables without the recipe.
pFedMe is left out, because its round takes five times as long as FedAvg's.
"""

from tff_pfl.arguments.names import check_names
from tff_pfl.studies import Study, Tuning, Variant, grid

_RATES = grid({"local.learning_rate": (0.003, 0.01, 0.03)})
# Branches start larger, so that their mean is as large as ordinary initial weights. At first the
# mixture moves at the learning rate divided by the number of branches.
_MORE_RATES = grid({"local.learning_rate": (0.003, 0.01, 0.03, 0.1)})
_THREE = {"algorithm.branches": 3, "algorithm.init_scale": 1.732}
_FIVE = {"algorithm.branches": 5, "algorithm.init_scale": 2.236}

_FIFTEEN = {
    "Local": ("local", {}, _RATES),
    "FedAvg": ("fedavg", {}, _RATES),
    "FedProx": ("fedprox", {"algorithm.mu": 0.01}, _RATES),
    "FedPer": ("fedper", {}, _RATES),
    "IFCA": ("ifca", {"algorithm.num_clusters": 2}, _RATES),
    "FedFomo": ("fedfomo", {"algorithm.num_models": 5}, _RATES),
    "FedAMP": (
        "fedamp",
        {
            "algorithm.distance_scale": "median",
            "algorithm.sigma": 1.0,
            "algorithm.alpha": 0.1,
            "algorithm.lambda_": 0.01,
        },
        _RATES,
    ),
    "pFedMB": ("pfedmb", _THREE, _MORE_RATES),
}
_PAIRS = {
    "Local": ("local", {}, _RATES),
    "FedAvg": ("fedavg", {}, _RATES),
    "pFedMB": ("pfedmb", _FIVE, _MORE_RATES),
    "pFedMB, not weighing by alpha": ("pfedmb_unweighted", _FIVE, _MORE_RATES),
    "IFCA, five clusters": ("ifca", {"algorithm.num_clusters": 5}, _RATES),
    "one model a pair": ("local", {"data.num_clients": 5, "clients_per_round": 5}, _RATES),
}
_TABLES = {"pairs": (10, _PAIRS), "two_classes": (15, _FIFTEEN), "dirichlet": (15, _FIFTEEN)}


def get_study(partition):
    """Returns the study of a partition."""
    check_names("PARTITION", [partition], _TABLES)
    clients, methods = _TABLES[partition]
    return Study(
        title=f"pFedMB's {partition.replace('_', ' ')}, {clients} clients, recipe of MOON",
        variants={
            label: Variant(
                f"configs/pfedmb.py:{partition},{clients},{method},moon", settings, trials
            )
            for label, (method, settings, trials) in methods.items()
        },
        seeds=(0, 1, 2),
        settings={"rounds": 40, "evaluation.every": 10, "checkpoint_every": 10},
        tuning=Tuning(_RATES, {"evaluation.every": 0}, rounds=(10,)),
    )
