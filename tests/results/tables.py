"""The tables of the pages of results, as the committed files have them.

A table is a list of rows of as many cells as it has in the page; `None` is a cell whose number is
in no file. Labels, in the first column, are those of the page.
"""

import numpy as np

from tests.results import fedpg, pgfed, plgu, studies
from tests.results.files import (
    GLOBAL,
    PERSONALIZED,
    accuracies,
    final,
    paper,
    percent,
    rate,
    read_json,
    read_rows,
    short,
    statistics,
)

Rows = list[list[str | None]]
LAST_ROUNDS = {
    "local": 70,
    "fedavg": 70,
    "fedprox": 70,
    "fedper": 70,
    "pfedme": 20,
    "ifca": 70,
    "fedfomo": 70,
    "fedamp": 70,
    "pfedmb": 40,
}
"""Of pFedMB's comparison with fifteen clients, in the order of its table."""


def methods_on_digits() -> Rows:
    """All of the table: means and deviations over seeds."""
    personalized, in_global, down, up, seconds = (
        studies.of_labels("digits/methods.csv", column)
        for column in ("personalized", "global", "bytes_down", "bytes_up", "round_seconds")
    )
    of_fedavg = np.median(seconds["fedavg"])
    return [
        [
            label,
            studies.mean_and_deviation(personalized[label]),
            studies.mean_and_deviation(in_global[label]),
            f"{down[label][0] / 1000:.1f}",
            f"{up[label][0] / 1000:.1f}",
            f"{np.median(seconds[label]) / of_fedavg:.2f}",
        ]
        for label in personalized
    ]


def fedpg_cifar10() -> Rows:
    """The last evaluation is the only one that was kept."""
    metrics = read_json("fedpg/dir,cifar10,fedpg/evaluation.json")["metrics"]
    last = [short(metrics[f"{name}_mean"]) for name in (PERSONALIZED, GLOBAL)]
    return [[None] * 9 + [cell] for cell in last]


def fedamp_tuned() -> Rows:
    """Settings are in the labels of the file; those of the first two rows have none there."""
    rows = []
    for row in read_rows("fedpg/fedamp_tuning.csv"):
        alpha, _, pull = row["label"].removeprefix("alpha ").partition(", ")
        if pull == "from the mixture":
            settings = [alpha, "start from the mixture"]
        elif pull.startswith("lambda/alpha "):
            settings = [alpha, f"{float(pull.removeprefix('lambda/alpha ')):g}"]
        else:
            settings = [None, None]
        rows.append([None, *settings, percent(float(row["personalized"]))])
    return rows


def pfedmb_pairs() -> Rows:
    """Test accuracies of the runs that were kept, and the paper's numbers of their methods."""
    runs = [
        *("local", None, None, "fedavg", None, "pfedmb_0.05", "pfedmb"),
        *(None, "pfedmb_unweighted", "merged_pairs", "ifca"),
    ]
    papers = {0: "local", 2: "fedavg", 4: "pfedmb", 7: "pfedmb_unweighted"}
    rows = []
    for number, run in enumerate(runs):
        row = [None] * 7
        if run is not None:
            of_clients = statistics(accuracies(f"pfedmb/pairs/{run}/clients.csv"))
            row[1] = str(read_json(f"pfedmb/pairs/{run}/config.json")["rounds"])
            row[2] = rate(f"pfedmb/pairs/{run}")
            row[4:6] = percent(of_clients["mean"]), percent(of_clients["std"])
        if run == "pfedmb_0.05":  # the one that was evaluated on validation data while it ran
            row[2] = f"{row[2]}, alpha 0.1"
            validation = "personalized/local_validation/accuracy_mean"
            row[3] = percent(final(f"pfedmb/pairs/{run}")[validation])
        if number in papers:
            row[6] = f"{paper(f'pfedmb/pairs/{papers[number]}')['accuracy_percent']:.2f}"
        rows.append(row)
    return rows


def pfedmb_fifteen_clients(partition: str) -> Rows:
    """After 20 rounds and after the last one."""
    rows = []
    for method, rounds in LAST_ROUNDS.items():
        run = f"pfedmb/{partition}/{method}"
        row = [None, rate(run)]
        for number in (20, rounds):
            of_clients = statistics(accuracies(f"{run}/clients_round_{number}.csv"))
            row += [percent(of_clients["mean"]), percent(of_clients["std"])]
        row.insert(4, str(rounds))
        rows.append([*row, f"{paper(run)['accuracy_percent']:.2f}"])
    return rows


def with_the_second_seed() -> dict[str, float]:
    """Mean accuracies of the methods of the table that have one."""
    runs = {
        label: f"pfedmb/moon_dirichlet/{label}/seed1"
        for label in ("Local", "FedAvg", "FedProx", "FedPer", "FedFomo", "pFedMB")
    }
    return {label: final(run)[f"{PERSONALIZED}_mean"] for label, run in runs.items()}


def pfedmb_with_moons_recipe() -> Rows:
    """Validation accuracies of the trials; test accuracies of the runs."""
    study, rows, second_seed = "pfedmb/moon_dirichlet", [], with_the_second_seed()
    for label, stages in read_json(f"{study}/tuning.json").items():
        (trials,) = stages.values()
        rates = (f"learning_rate {rate}" for rate in (0.003, 0.01, 0.03, 0.1))
        run = f"{study}/{label}/seed0"
        last = read_json(f"{run}/summary.json")["final"]["metrics"]
        rows.append(
            [
                *(label, *(percent(trials[rate]) if rate in trials else "-" for rate in rates)),
                *(percent(last[f"{PERSONALIZED}_{of}"]) for of in ("mean", "std")),
                percent(second_seed[label]) if label in second_seed else "-",
                f"{paper(run)['accuracy_percent']:.2f}",
            ]
        )
    return rows


def tuned_on_digits() -> Rows:
    """What each list of trials has chosen, and what came of it on test data."""
    accuracies = studies.of_labels("digits/search/results.csv", "personalized")
    rows = []
    for label, values in accuracies.items():
        trials = [x for x in read_rows("digits/search/tuning.csv") if x["label"] == label]
        scores = [float(trial["score"]) for trial in trials]
        (chosen,) = (trial["trial"] for trial in trials if trial["chosen"] == "True")
        rows.append(
            [
                label,
                *(part.split()[1] for part in chosen.split(", ")),
                percent(max(scores)),
                str(sum(score >= 0.95 for score in scores)),
                studies.mean_and_deviation(values),
            ]
        )
    return rows


def plgu_personalized() -> Rows:
    """Of all clients, and in the last column of those that have taken part."""
    methods = ("plgu_lf", "ditto", "plgu_grep_all_batches", "fedrep", "pfedme", "plgu_grep")
    rows = []
    for method in (*methods, "plgu_ghn", "pfedhn"):
        path = f"plgu/{method}/clients.csv"
        of_all, selected = accuracies(path), statistics(accuracies(path, of_selected=True))
        rows.append(
            [
                *(None, *map(percent, statistics(of_all).values())),
                str(np.sum(of_all < 0.6)),
                f"{percent(selected['mean'])}, {percent(selected['worst_5_percent'])}",
            ]
        )
    return rows


def plgu_global() -> Rows:
    """Of methods that have a global model."""
    return [
        [None, *map(percent, statistics(accuracies(f"plgu/{run}/clients.csv", GLOBAL)).values())]
        for run in ("fedsam", "plgu_lf", "fedavg", "pfedme")
    ]


TABLES = {
    ("privacy", 0): lambda: studies.crossed("privacy/fashion_mnist.csv", value="personalized"),
    ("privacy", 1): lambda: studies.crossed("privacy/fashion_mnist.csv", value="global"),
    ("privacy", 2): lambda: studies.crossed("privacy/digits.csv", value="personalized"),
    ("privacy", 3): lambda: studies.crossed("privacy/digits.csv", value="global"),
    ("attacks", 0): lambda: studies.crossed("attacks/runs.csv", "FedAvg, "),
    ("attacks", 1): lambda: studies.crossed("attacks/runs.csv", "Ditto, "),
    ("attacks", 2): lambda: studies.crossed("attacks/runs.csv", "FedPG, "),
    ("compression", 0): studies.compression,
    ("digits", 0): methods_on_digits,
    ("digits", 1): tuned_on_digits,
    ("fedpg", 0): fedpg.dirichlet,
    ("fedpg", 1): fedpg.two_classes,
    ("fedpg", 2): fedpg.unequal_amounts,
    ("fedpg", 3): fedpg.seeds,
    ("fedpg", 4): fedpg.differences,
    ("fedpg", 5): fedpg.over_rounds,
    ("fedpg", 6): fedpg_cifar10,
    ("fedpg", 7): fedamp_tuned,
    ("pfedmb", 0): pfedmb_pairs,
    ("pfedmb", 1): lambda: pfedmb_fifteen_clients("two_classes"),
    ("pfedmb", 2): lambda: pfedmb_fifteen_clients("dirichlet"),
    ("pfedmb", 3): pfedmb_with_moons_recipe,
    ("pgfed", 0): pgfed.on_cifar10,
    ("pgfed", 1): pgfed.hundred_rounds,
    ("pgfed", 2): pgfed.to_the_end,
    ("pgfed", 4): pgfed.rates_of_other_methods,
    ("pgfed", 5): pgfed.thirty_rounds,
    ("pgfed", 6): pgfed.new_clients,
    ("plgu", 0): plgu.personalized,
    ("plgu", 1): plgu.personalized_differences,
    ("plgu", 2): plgu.of_global,
    ("plgu", 3): plgu.global_differences,
    ("plgu", 4): plgu_personalized,
    ("plgu", 5): plgu_global,
}
"""By page and number of the table in it; of the others, no number is in a file."""
