"""pFedMB's tables with momentum, weight decay, crops and flips: `--study=FILE:PARTITION`.

    PARTITION  pairs (Table 1, ten clients), or two_classes or dirichlet (Table 2, 15 clients)

`configs/pfedmb.py` says where the recipe is from. Every method has three trials on the validation
images, its models fine-tuned at the rate of all. pFedMe, whose round takes five times that of
FedAvg, is left out.
"""

from tff_pfl.names import check_names
from tff_pfl.studies import Study, Tuning, Variant, grid

_RATE = "local.learning_rate"
_RATES = grid({_RATE: (0.003, 0.01, 0.03)})


def _with_rates(key, settings):
    """Trials of a rate and another setting each."""
    return [{_RATE: rate, f"algorithm.{key}": value} for rate, value in settings]


def _pfedmb(branches):
    """Branches start larger, so that their mean is as large as an ordinary start."""
    start = {"algorithm.branches": branches, "algorithm.init_scale": round(branches**0.5, 3)}
    return [
        {_RATE: 0.03, **start},
        {_RATE: 0.1, **start},
        {_RATE: 0.01, **start, "algorithm.normalize_step": True},
    ]


_FIFTEEN = {
    "Local": ("local", {}, _RATES),
    "FedAvg": ("fedavg", {}, _RATES),
    "FedProx": ("fedprox", {}, _with_rates("mu", [(0.01, 0.01), (0.01, 0.1), (0.03, 0.01)])),
    "FedPer": ("fedper", {}, _RATES),
    "IFCA": ("ifca", {}, _with_rates("num_clusters", [(0.01, 2), (0.01, 4), (0.03, 2)])),
    "FedFomo": ("fedfomo", {}, _with_rates("num_models", [(0.01, 5), (0.01, 10), (0.03, 5)])),
    "FedAMP": (
        "fedamp",
        {"algorithm.distance_scale": "median", "algorithm.sigma": 1.0, "algorithm.alpha": 0.1},
        _with_rates("lambda_", [(0.01, 0.01), (0.01, 0.1), (0.03, 0.01)]),
    ),
    "pFedMB": ("pfedmb", {}, _pfedmb(3)),
}
_PAIRS = {
    "Local": ("local", {}, _RATES),
    "FedAvg": ("fedavg", {}, _RATES),
    "pFedMB": ("pfedmb", {}, _pfedmb(5)),
    "pFedMB, not weighing by alpha": ("pfedmb_unweighted", {}, _pfedmb(5)),
    "IFCA, five clusters": ("ifca", {"algorithm.num_clusters": 5}, _RATES),
    "one model a pair": ("local", {"data.num_clients": 5, "clients_per_round": 5}, _RATES),
}
_TABLES = {"pairs": (10, _PAIRS), "two_classes": (15, _FIFTEEN), "dirichlet": (15, _FIFTEEN)}


def get_study(partition):
    """The study of a partition."""
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
        tuning=Tuning(_RATES, {"evaluation.every": 0}, rounds=(5, 15)),
    )
