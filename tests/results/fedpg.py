"""FedPG's tables of Fashion-MNIST: single runs, and the seeds of its study."""

import numpy as np

from tests.results.files import GLOBAL, evaluated, final, late, paper, read_json, short, signed
from tff_pfl.reports import paired_test

_POOLS = {
    "l_acc": "personalized/local_test",
    "s_acc": "personalized/synthetic50_test",
    "g_acc": "personalized/generalization_test",
    "gm_acc": "global/generalization_test",
}


def accuracies_of(run: str, *, deviations: bool, with_paper: bool = True) -> list[str]:
    """L, S, G and GM of a run of FedPG's tables, as its page writes them."""
    metrics = read_json(f"fedpg/{run}/evaluation.json")["metrics"]
    return _of_pools(metrics, paper(f"fedpg/{run}"), deviations, with_paper)


_UNEQUAL = "Pat-2_unequal"
_ABLATIONS = ("M1", "M2", "M4")  # M3's global model is FedPG's
_METHODS = {
    "Dir_0.1": ("FedPG", "S-FedPG", *(f"FedPG_gamma_{gamma}" for gamma in ("0.3", "0.6", "1"))),
    "Pat-2": (
        "FedPG",
        "M1_mean_direction",
        "M2_no_fairness",
        "M3_no_personal_direction",
        "M4_no_memory",
    ),
}
_METHODS[_UNEQUAL] = _METHODS["Pat-2"]
STUDY = {
    partition: (*methods, "FedAvg", *(["FedAvg_uniform"] if partition != "Pat-2" else []))
    for partition, methods in _METHODS.items()
}
"""The variants of FedPG's study, by partition, in the order of its tables."""


def unequal_amounts() -> list[list[str | None]]:
    """The first seed of the study."""
    rows = []
    for method in STUDY[_UNEQUAL]:
        run = f"fedpg/study/Pat-2_unequal_{method}/seed0"
        metrics = read_json(f"{run}/summary.json")["final"]["metrics"]
        with_paper = not method.startswith("FedAvg")
        rows.append([None, *_of_pools(metrics, paper(run), with_paper=with_paper)])
    return rows


SEEDS = (0, 1, 2, 3, 4)
"""Of FedPG's study."""


def of_seeds(variant: str, pool: str) -> np.ndarray:
    """The mean accuracy over clients of each seed of FedPG's study."""
    finals = [final(f"fedpg/study/{variant}/seed{seed}") for seed in SEEDS]
    return np.array([numbers[f"{pool}/accuracy_mean"] for numbers in finals])


def seeds() -> list[list[str | None]]:
    """Of each pool the mean over seeds, their deviation, and the paper's mean."""
    rows = []
    for partition, methods in STUDY.items():
        for method in methods:
            expected = paper(f"fedpg/study/{partition}_{method}/seed0")
            is_in_paper = partition == "Dir_0.1" or not method.startswith("FedAvg")
            row = [None]
            for key, pool in _POOLS.items():
                each = of_seeds(f"{partition}_{method}", pool)
                cell = f"{short(np.mean(each))} ({short(np.std(each, ddof=1))})"
                row.append(f"{cell} / {short(expected[f'{key}_mean'])}" if is_in_paper else cell)
            rows.append(row)
    return rows


# By partition, whose global model is compared with whose.
_TESTED = {
    "Dir_0.1": (("S-FedPG", "FedPG"), ("FedAvg_uniform", "FedAvg")),
    "Pat-2": tuple((other, "FedPG") for other in _METHODS["Pat-2"] if other[:2] in _ABLATIONS),
}
_TESTED[_UNEQUAL] = (*_TESTED["Pat-2"], ("FedAvg_uniform", "FedAvg"))


def differences() -> list[list[str | None]]:
    """Paired over seeds, of the global model on all test examples."""
    rows = []
    for partition, pairs in _TESTED.items():
        for pair in pairs:
            own, other = (of_seeds(f"{partition}_{method}", _POOLS["gm_acc"]) for method in pair)
            test = paired_test([np.array([difference]) for difference in own - other])
            interval = f"{signed(test.low)} to {signed(test.high)}"
            p_value = f"{test.p_value:.3f}" if test.p_value >= 0.001 else "below 0.001"
            rows.append([None, f"{signed(test.difference)} ({interval})", p_value])
    return rows


_OVER_ROUNDS = {
    "Dir_0.1": ("FedPG", "S-FedPG", "FedAvg", "FedAvg_uniform"),
    "Pat-2": ("FedPG", "M1_mean_direction", "M2_no_fairness", "M4_no_memory", "FedAvg"),
    "Pat-2_unequal": (
        "FedPG",
        "M1_mean_direction",
        "M2_no_fairness",
        "M4_no_memory",
        "FedAvg",
        "FedAvg_uniform",
    ),
}


def over_rounds() -> list[list[str | None]]:
    """The global model at some rounds, its mean over the last 1,000, and its best."""
    rows = []
    for partition, methods in _OVER_ROUNDS.items():
        for method in methods:
            run, name = f"fedpg/study/{partition}_{method}/seed0", f"{GLOBAL}_mean"
            values = {number: numbers[name] for number, numbers in evaluated(run).items()}
            best = max(values, key=values.get)
            at = [short(values[number]) for number in (100, 200, 500, 1000, 2000)]
            mean, highest = short(np.mean(late(run, name))), f"{short(values[best])} ({best})"
            rows.append([None, *at, mean, highest])
    return rows


def _of_pools(metrics, expected, deviations=True, with_paper=True):
    cells = []
    for key, name in _POOLS.items():
        cell = short(metrics[f"{name}/accuracy_mean"])
        if deviations and key != "gm_acc":
            cell += f" ({short(metrics[f'{name}/accuracy_std'])})"
        if with_paper:
            cell += f" / {short(expected[f'{key}_mean'])}"
        cells.append(cell)
    return cells


def dirichlet() -> list[list[str | None]]:
    """Table 1."""
    methods = ("fedpg", "s_fedpg", "fedpg_gamma0.3", "fedpg_gamma0.6", "fedpg_gamma1.0", "fedavg")
    rows = [accuracies_of(f"dir,fmnist,{method}", deviations=True) for method in methods]
    for other in ("fedavg_0.05", "fedavg_0.01", "fedavg_uniform"):
        run = f"dir,fmnist,{other}"
        rows.append(accuracies_of(run, deviations=False, with_paper=False))
    return [[None, *row] for row in rows]


def two_classes() -> list[list[str | None]]:
    """Table 2."""
    names = "fedpg fedpg_m1 fedpg_m1_0.05 fedpg_m1_0.01 fedpg_m2 fedpg_m2_0.01 fedpg_m3 fedpg_m4"
    methods = [*names.split(), "fedpg_m4_0.01"]
    return [
        [None, *accuracies_of(f"pat,fmnist,{method}", deviations="_0.0" not in method)]
        for method in methods
    ]
