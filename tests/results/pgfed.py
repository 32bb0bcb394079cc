"""PGFed's page: its tables, and parts of its sentences."""

from collections.abc import Iterator

import numpy as np

from tests.results.files import (
    GLOBAL,
    PERSONALIZED,
    accuracies,
    evaluated,
    final,
    paper,
    percent,
    rate,
    read_rows,
    statistics,
)
from tff_pfl.reports import PairedTest, paired_test

_TAILS = ("worst_5_percent", "best_5_percent")
_RATES = ("0.001", "0.01", "0.1")


def on_cifar10() -> list[list[str | None]]:
    """After the last round, and the best one."""
    rows = []
    for method in ("pgfedmo", "pgfed", "pgfed_ce", "fedper_0.001", "fedper", "local", "fedavg"):
        run, name = f"pgfed/{method}", GLOBAL if method == "fedavg" else PERSONALIZED
        *of_clients, best, in_paper = _last_and_best(run, name)
        loss = f"{final(run)[name.replace('accuracy', 'loss_mean')]:.2f}"
        rows.append([None, rate(run), *of_clients, loss, best, in_paper])
    return rows


_HUNDRED_ROUNDS = ("PGFed", "PGFedMo", "FedRoD", "FedPer", "Local", "FedAvg")
_SEEDS = ("seed0", "seed1", "seed2")
_OF_TWO_SEEDS = ("FedAvg",)


def _of_seeds(method: str) -> list[np.ndarray]:
    """Clients' accuracies in percent after 100 rounds, of each seed."""
    column = GLOBAL if method == "FedAvg" else PERSONALIZED
    folder = f"pgfed/hundred_rounds/{method.lower()}"
    seeds = _SEEDS[:2] if method in _OF_TWO_SEEDS else _SEEDS
    return [100 * accuracies(f"{folder}/{seed}/clients/round_000100.csv", column) for seed in seeds]


def _behind_pgfed(method: str) -> PairedTest:
    """In points, of the seeds that both have."""
    pairs = zip(_of_seeds("PGFed"), _of_seeds(method), strict=False)
    return paired_test([own - other for own, other in pairs])


def hundred_rounds() -> list[list[str | None]]:
    """After the last round: of each seed, of all, beside PGFed, and the paper's."""
    rows = []
    for method in _HUNDRED_ROUNDS:
        of_seeds = _of_seeds(method)
        means = [of_seed.mean() for of_seed in of_seeds]
        lowest = np.mean([statistics(of_seed)["worst_5_percent"] for of_seed in of_seeds])
        missing = ["-"] * (len(_SEEDS) - len(means))
        cells = [f"{number:.2f}" for number in (*means, np.mean(means), lowest)]
        cells[len(means) : len(means)] = missing
        if method == "PGFed":
            cells += ["-", "-"]
        else:
            test = _behind_pgfed(method)
            interval = f"{test.low:.2f} to {test.high:.2f}"
            p_value = "< 0.001" if test.p_value < 0.001 else f"{test.p_value:.3f}"
            cells += [f"{test.difference:.2f} ({interval})", p_value]
        in_paper = paper(f"pgfed/hundred_rounds/{method.lower()}/seed0")
        rows.append([None, *cells, f"{in_paper['personalized_accuracy_percent']:.2f}"])
    return rows


def to_the_end() -> list[list[str | None]]:
    """After a third, two thirds and all of the paper's rounds."""
    run = "pgfed/three_hundred_rounds/seed1"
    return [[None, *_last_and_best(run, PERSONALIZED, number)] for number in (100, 200, 300)]


def _last_and_best(run: str, name: str, last: int | None = None) -> list[str]:
    """Cells of an accuracy: over clients after the last round, the best round, the paper's."""
    of_rounds = {number: of for number, of in evaluated(run).items() if number <= (last or number)}
    means = {number: of[f"{name}_mean"] for number, of in of_rounds.items()}
    best = max(means, key=means.get)
    in_paper = paper(run).get("personalized_accuracy_percent")
    return [
        *(percent(of_rounds[max(means)][f"{name}_{of}"]) for of in ("mean", "std", *_TAILS)),
        f"{percent(means[best])} ({best})",
        "-" if in_paper is None else f"{in_paper:.2f}",
    ]


def rates_of_other_methods() -> list[list[str | None]]:
    """Validation accuracy of the trials of a tuning."""
    scores = {}
    for row in read_rows("pgfed/rates.csv"):
        scores[row["label"], row["trial"].removeprefix("learning_rate ")] = float(row["score"])
    return [
        [None, *("" if (x := scores.get((label, of))) is None else percent(x, 1) for of in _RATES)]
        for label in ("fedbabu", "fedrod", "lg_fedavg", "apfl", "per_fedavg", "feddyn")
    ]


def thirty_rounds() -> list[list[str | None]]:
    """After the last round."""
    rows = []
    for method in (
        "pgfed",
        "fedper",
        "fedrod",
        "fedbabu",
        "apfl",
        "lg_fedavg",
        "per_fedavg",
        "feddyn",
    ):
        run = f"pgfed/thirty_rounds/{method}"
        last, in_paper = final(run), paper(run).get("personalized_accuracy_percent")
        of_clients = [last[f"{PERSONALIZED}_{of}"] for of in ("mean", "std", "worst_5_percent")]
        of_global = last.get(f"{GLOBAL}_mean")
        rows.append(
            [
                *(None, rate(run), *map(percent, of_clients)),
                "-" if of_global is None else percent(of_global),
                f"{in_paper:.2f}",
            ]
        )
    return rows


def _new_clients_files() -> list[str]:
    """Of FedAvg and PGFed, fine-tuned at their own rates, and at the other's; of Local."""
    files = {
        "fedavg": ("new_clients", "at_0.001_new_clients"),
        "pgfed": ("new_clients", "at_0.01_new_clients"),
        "local": ("new_clients",),
    }
    return [f"pgfed/new_clients_{method}/{file}.csv" for method in files for file in files[method]]


def new_clients() -> list[list[str | None]]:
    """What they receive, and what becomes of it by fine-tuning; the paper's are in no file."""
    rows = []
    for path in _new_clients_files():
        row, received = [None], "personalized" if "local" in path else "global"
        for model in (received, "fine_tuned", "fine_tuned_best_epoch"):
            name = f"{model}/new_clients_test/accuracy"
            of_clients = statistics(accuracies(path, name))
            row.append(f"{percent(of_clients['mean'], 1)} ({percent(of_clients['std'], 1)})")
        rows.append([*row, None])
    return rows


def sentences() -> Iterator[str]:
    """After the last of 40 rounds, in points."""
    own = 100 * evaluated("pgfed/pgfed")[40][f"{PERSONALIZED}_mean"]
    below = paper("pgfed/pgfed")["personalized_accuracy_percent"] - own
    yield f"PGFed after 40 rounds is {below:.1f} points below what the paper has after 300"
    yield from _of_a_hundred_rounds()
    yield from _of_the_end()
    means = [
        evaluated(f"pgfed/{x}")[40][f"{PERSONALIZED}_mean"] for x in ("fedper_0.001", "fedper")
    ]
    yield f"learning_rate=0.001` is {100 * (means[0] - means[1]):.0f} points better after 40 rounds"
    feddyn, per_fedavg = (
        {
            number: 100 * of[f"{PERSONALIZED}_mean"]
            for number, of in evaluated(f"pgfed/thirty_rounds/{method}").items()
        }
        for method in ("feddyn", "per_fedavg")
    )
    yield f"still rises, by {per_fedavg[30] - per_fedavg[20]:.1f} points from round 20"
    yield f"stands still: {feddyn[10]:.1f} after 10 rounds, {feddyn[30]:.1f} after 30"
    yield from _of_new_clients()


def _of_a_hundred_rounds():
    of_seeds = {method: [of.mean() for of in _of_seeds(method)] for method in _HUNDRED_ROUNDS}
    apart = [means[1] - means[0] for method, means in of_seeds.items() if method != "FedAvg"]
    yield f"in seed 1 between {min(apart):.1f} and {max(apart):.1f} points higher than in seed 0"
    apart = [means[0] - means[2] for means in of_seeds.values() if len(means) > 2]
    yield f"in seed 2 between {min(apart):.1f} and {max(apart):.1f} lower"
    behind = {
        method: [own - other for own, other in zip(of_seeds["PGFed"], means, strict=False)]
        for method, means in of_seeds.items()
    }
    yield "PGFed is {:.2f}, {:.2f} and {:.2f} points ahead of FedPer".format(*behind["FedPer"])
    yield "{:.2f}, {:.2f} and {:.2f} of FedRoD".format(*behind["FedRoD"])
    yield "PGFedMo is {:.2f}, {:.2f} and {:.2f} points behind it".format(*behind["PGFedMo"])
    above = {
        method: np.mean(means)
        - paper(f"pgfed/hundred_rounds/{method.lower()}/seed0")["personalized_accuracy_percent"]
        for method, means in of_seeds.items()
    }
    yield "PGFed, PGFedMo and FedRoD are {:.1f}, {:.1f} and {:.1f} points below its means".format(
        *(-above[method] for method in ("PGFed", "PGFedMo", "FedRoD"))
    )
    yield f"FedPer and Local are {above['FedPer']:.1f} and {above['Local']:.1f} above"
    fedavg = evaluated("pgfed/hundred_rounds/fedavg/seed0")
    low, high, end = (percent(fedavg[number][f"{GLOBAL}_mean"]) for number in (70, 50, 100))
    yield f"{high} after 50 rounds of seed 0, {low} after 70, {end} after 100"
    yield f"{-above['FedAvg']:.1f} points below the paper"


def _of_the_end():
    run = "pgfed/three_hundred_rounds/seed1"
    means = {number: 100 * of[f"{PERSONALIZED}_mean"] for number, of in evaluated(run).items()}
    above = means[300] - paper(run)["personalized_accuracy_percent"]
    yield f"After 300 rounds it is {above:.1f} points above the paper's mean"
    seed0 = 100 * final("pgfed/hundred_rounds/pgfed/seed0")[f"{PERSONALIZED}_mean"]
    yield f"after 100 it is {means[100] - seed0:.1f} above seed 0"
    late_means = [mean for number, mean in means.items() if number >= 60]
    yield f"all evaluations are between {min(late_means):.1f} and {max(late_means):.1f}"


def _of_new_clients():
    last, best = (
        [100 * accuracies(path, f"{model}/new_clients_test/accuracy") for path in files]
        for model in ("fine_tuned", "fine_tuned_best_epoch")
        for files in [_new_clients_files()]
    )
    fedavg, fedavg_slower, pgfed, pgfed_faster, local = last
    yield f"PGFed's model is {np.mean(pgfed - local):.1f} points ahead of Local's"
    yield f"better for {np.sum(pgfed > local)} of the {len(local)} clients"
    yield f"and FedAvg's {np.mean(fedavg_slower - local):.1f}"
    gains = [np.mean(b - a) for a, b in zip(last, best, strict=True)]
    yield f"it is worth {max(gains):.1f} points at most"
    yield f"PGFed's model is {np.mean(pgfed - fedavg):.1f} points ahead"
    yield f"better for {np.sum(pgfed > fedavg)} of the {len(pgfed)} clients"
    slower, faster = np.mean(fedavg_slower - pgfed), np.mean(fedavg - pgfed_faster)
    yield f"by {slower:.1f} points at 0.001 and by {faster:.1f} at 0.01"
