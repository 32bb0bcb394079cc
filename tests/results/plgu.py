"""PLGU beside its controls: a column a variant, a line a client of a seed."""

import functools

import numpy as np

from tests.results.files import paper, read_rows, statistics
from tff_pfl.reports import PairedTest, paired_test

_PERSONAL, _GLOBAL = "plgu/controls_personalized.csv", "plgu/controls_global.csv"
# Who is tested against whom: first the perturbation alone, then all else that a method has.
_PERSONAL_PAIRS = (
    ("PLGU-LF", "PLGU-LF, rho 0"),
    ("PLGU-LF, xi_scale 5", "PLGU-LF, rho 0"),
    ("PLGU-GRep", "PLGU-GRep, rho 0"),
    ("PLGU-GHN", "PLGU-GHN, rho 0"),
    ("PLGU-LF, rho 0", "Ditto"),
    ("PLGU-GRep, rho 0", "FedRep"),
)
_GLOBAL_PAIRS = (
    ("FedSAM", "FedAvg"),
    ("PLGU-LF", "FedAvg"),
    ("PLGU-LF, xi_scale 5", "FedAvg"),
)


def _lowest(accuracies: np.ndarray) -> float:
    return statistics(accuracies)["worst_5_percent"]


@functools.cache
def _of_seeds(path: str, label: str) -> list[np.ndarray]:
    """In percent, the accuracies of a variant's clients, by seed."""
    rows = read_rows(path)
    seeds = sorted({row["seed"] for row in rows})
    return [
        100 * np.array([float(row[label]) for row in rows if row["seed"] == seed]) for seed in seeds
    ]


def _test(path, label, other, statistic=np.mean) -> PairedTest:
    pairs = zip(_of_seeds(path, label), _of_seeds(path, other), strict=True)
    return paired_test([np.array([statistic(own) - statistic(others)]) for own, others in pairs])


def _variants(path) -> list[list[str]]:
    """A row a variant: mean and lowest 5 %, with their deviations over seeds."""
    rows = []
    for label in list(read_rows(path)[0])[2:]:
        of_seeds = [
            [statistic(accuracies) for accuracies in _of_seeds(path, label)]
            for statistic in (np.mean, _lowest)
        ]
        rows.append(
            [label, *(f"{np.mean(each):.2f} ± {np.std(each, ddof=1):.2f}" for each in of_seeds)]
        )
    return rows


def _differences(path, pairs) -> list[list[str]]:
    """A row a pair: of mean and lowest 5 %, the difference with its interval, and p."""
    rows = []
    for label, other in pairs:
        row = [f"{label} - {other}"]
        for statistic in (np.mean, _lowest):
            test = _test(path, label, other, statistic)
            row += [
                f"{test.difference:+.2f} ({test.low:+.2f} to {test.high:+.2f})",
                f"{test.p_value:.3f}",
            ]
        rows.append(row)
    return rows


def personalized() -> list[list[str]]:
    return _variants(_PERSONAL)


def of_global() -> list[list[str]]:
    return _variants(_GLOBAL)


def personalized_differences() -> list[list[str]]:
    return _differences(_PERSONAL, _PERSONAL_PAIRS)


def global_differences() -> list[list[str]]:
    return _differences(_GLOBAL, _GLOBAL_PAIRS)


def personalized_tests() -> dict[str, PairedTest]:
    """Of the mean over clients, by the first name of a pair."""
    return {label: _test(_PERSONAL, label, other) for label, other in _PERSONAL_PAIRS}


def lowest_of_hypernetworks() -> float:
    """Of PLGU-GHN's lowest 5 %, the difference to those without perturbation."""
    return _test(_PERSONAL, "PLGU-GHN", "PLGU-GHN, rho 0", _lowest).difference


def equal_columns() -> tuple[bool, bool, bool]:
    """Whether Ditto's global model is FedAvg's, PLGU-LF's at rho 0, and PLGU-GHN's pFedHN's."""
    without = "PLGU-LF, rho 0"
    pairs = (
        (_GLOBAL, "Ditto", "FedAvg"),
        (_GLOBAL, without, "FedAvg"),
        (_PERSONAL, "PLGU-GHN, rho 0", "pFedHN, 3 hidden layers"),
    )
    return tuple(
        all(map(np.array_equal, _of_seeds(path, label), _of_seeds(path, other)))
        for path, label, other in pairs
    )


def gains_of_paper() -> tuple[list[float], list[float]]:
    """Of the means, in points: of personal models in the order of the pairs; of global ones."""
    personal, global_ = (f"{model}_accuracy_percent_mean" for model in ("personalized", "global"))
    extended = {"plgu_lf": "ditto", "plgu_grep": "fedrep", "plgu_ghn": "pfedhn"}
    return (
        [
            paper(f"plgu/{method}")[personal] - paper(f"plgu/{other}")[personal]
            for method, other in extended.items()
        ],
        [
            paper(f"plgu/{method}")[global_] - paper("plgu/fedavg")[global_]
            for method in ("fedsam", "plgu_lf")
        ],
    )
