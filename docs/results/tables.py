"""Makes the tables of the pages, each by its own function.

A function returns the table's texts, with the heads as columns. Rows are in the order of the file.
"""

import functools
from collections.abc import Callable

import numpy as np
import pandas as pd

from docs.results.data import (
    accuracy,
    last,
    named,
    over_seeds,
    p_value,
    paired,
    percent,
    pick,
    share,
    wide,
)
from tff_pfl.analysis.paired import holm

TABLES: dict[tuple[str, str], Callable[[], pd.DataFrame]] = {}
"""The functions that make tables, by page and name."""
_ONE = ["mean", "std", "worst_5_percent"]


def table(page: str, *names: str):
    """Registers a function that makes a table; with several names, it takes the name."""

    def register(function):
        for name in names:
            made = function if len(names) == 1 else functools.partial(function, name)
            TABLES[page, name] = made
        return function

    return register


# Pages with means over seeds


@table("attacks", "FedAvg", "Ditto", "FedPG")
def _attacks(name):
    return named(over_seeds(accuracy("attacks", study=name), "option"), "attack")


@table("privacy", "Fashion_MNIST", "Fashion_MNIST_global", "digits", "digits_global")
def _privacy(name):
    study = name.removesuffix("_global").replace("_", "-")
    model = "global" if name.endswith("_global") else "personalized"
    return named(over_seeds(accuracy("privacy", model, study=study), "option"), "method")


@table("compression", "uploads")
def _compression():
    parts = []
    for method in ("FedAvg", "FedPer", "PGFed"):
        sent = wide(pick("compression", study=method, quantity="bytes_up", seed=0), "option")
        accuracies = over_seeds(accuracy("compression", study=method), "option")
        sent = (sent[""] / 1000).map("{:.1f}".format).rename(f"{method}, kB")
        parts += [sent, accuracies[""].rename("accuracy"), accuracies["fed back"]]
    return named(pd.concat(parts, axis=1), "upload")


@table("digits", "methods")
def _methods():
    return named(_accuracy_and_bytes("digits"), "method")


@table("fashion_mnist", "methods")
def _methods_and_rates():
    rates = wide(pick("fashion_mnist", study="rates"), "quantity")
    heads = {"seconds": "seconds, relative", "products": "products, relative"}
    formatted = rates.map("{:.2f}".format).rename(columns=heads)
    return named(_accuracy_and_bytes("fashion_mnist").join(formatted), "method")


def _accuracy_and_bytes(page):
    accuracies = over_seeds(pick(page, study="methods", quantity="accuracy"), "model")
    sent, received = (
        pick(page, study="methods", quantity=quantity).groupby("case", sort=False)["value"]
        for quantity in ("bytes_up", "bytes_down")
    )
    return pd.DataFrame(
        {
            "personalized, %": accuracies["personalized"],
            "global, %": accuracies["global"],
            "kB down": (received.first() / 1000).map("{:.1f}".format),
            "kB up": (sent.first() / 1000).map("{:.1f}".format),
        }
    )


@table("digits", "search")
def _search():
    scores = pick("digits", study="trials").set_index("option")
    trials = scores.groupby("case", sort=False)["value"]
    chosen = trials.apply(pd.Series.idxmax).str.extract(r"rate (\S+), lambda_ (\S+)")
    table = chosen.set_axis(["chosen rate", "chosen lambda"], axis=1)
    table["validation, %"] = percent(trials.max())
    table["trials of 95 % or more"] = trials.apply(lambda scores: (scores >= 0.95).sum())
    tested = over_seeds(accuracy("digits", study="search"), "model")
    return named(table.assign(**{"personalized, test, %": tested["personalized"]}), "trials")


# PLGU


@table("plgu", "personalized", "global")
def _controls(model):
    data = accuracy("plgu", model, study="controls", statistic=["mean", "worst_5_percent"])
    return named(over_seeds(data, "statistic"), f"{model} models")


_PAIRS = {
    "personalized": (
        ("PLGU-LF", "PLGU-LF, rho 0"),
        ("PLGU-LF, xi_scale 5", "PLGU-LF, rho 0"),
        ("PLGU-GRep", "PLGU-GRep, rho 0"),
        ("PLGU-GHN", "PLGU-GHN, rho 0"),
        ("PLGU-LF, rho 0", "Ditto"),
        ("PLGU-GRep, rho 0", "FedRep"),
    ),
    "global": (
        ("FedSAM", "FedAvg"),
        ("PLGU-LF", "FedAvg"),
        ("PLGU-LF, xi_scale 5", "FedAvg"),
    ),
}


@table("plgu", "personalized_differences", "global_differences")
def _differences(name):
    model, rows = name.removesuffix("_differences"), []
    for own, other in _PAIRS[model]:
        rows.append([f"{own} - {other}"])
        for statistic in ("mean", "worst_5_percent"):
            data = accuracy("plgu", model, study="controls", statistic=statistic)
            seeds = 100 * wide(data, "seed")
            mean, low, high, p = paired(seeds.loc[own] - seeds.loc[other])
            rows[-1] += [f"{mean:+.2f} ({low:+.2f} to {high:+.2f})", f"{p:.3f}"]
    return pd.DataFrame(rows, columns=[f"{model} models", "mean", "p", "worst 5 %", "p"])


@table("plgu", "one_seed", "one_seed_global")
def _one_seed(name):
    model = "global" if name.endswith("global") else "personalized"
    data = last(accuracy("plgu", model, study="one seed"))
    table = percent(wide(data, "statistic").sort_values("mean", ascending=False))
    if model == "personalized":
        table = table.drop(["FedAvg", "FedSAM"])  # they evaluate their global models
        clients = wide(accuracy("plgu", study="one seed", clients=True), "client")
        selected = clients.drop(columns=[62, 90])  # these clients never took part
        worst = selected.apply(lambda accuracies: accuracies.nsmallest(5).mean(), axis=1)
        table["clients below 60 %"] = (clients < 0.6).sum(axis=1)
        table["mean of the 98"] = percent(selected.mean(axis=1))
        table["their worst 5 %"] = percent(worst)
    return named(table, f"{model} models")


# PGFed


def _evaluated(study: str) -> pd.DataFrame:
    """Returns the lines of personalized models, except for FedAvg's global model."""
    data = pick("pgfed", study=study, pool="local_test")
    is_global = data["case"] == "FedAvg, its global model"
    return data[data["model"] == np.where(is_global, "global", "personalized")]


def _best_round(means: pd.Series) -> str:
    """Formats the highest mean and its round."""
    return f"{100 * means.max():.2f} ({means.idxmax()})"


def _in_paper(page: str, study: str) -> pd.Series:
    return percent(pick(page, paper=True, study=study).set_index("case")["value"])


@table("pgfed", "forty_rounds")
def _forty_rounds():
    data = _evaluated("40 rounds")
    accuracies = data[data["quantity"] == "accuracy"]
    table = percent(wide(last(accuracies), "statistic", ["case", "rate"])).reset_index("rate")
    losses = data[data["quantity"] == "loss"].set_index("case")["value"]
    table["mean loss"] = losses.map("{:.2f}".format)
    means = wide(accuracies[accuracies["statistic"] == "mean"], "round")
    table["best round"] = means.apply(_best_round, axis=1)
    return named(table.assign(paper=_in_paper("pgfed", "40 rounds")), "method")


@table("pgfed", "hundred_rounds")
def _hundred_rounds():
    data = last(_evaluated("100 rounds"))
    data = data[data["quantity"] == "accuracy"]
    means = 100 * wide(data[data["statistic"] == "mean"], "seed")
    table = percent(means / 100).add_prefix("seed ")
    table["mean"] = means.mean(axis=1).map("{:.2f}".format)
    lowest = wide(data[data["statistic"] == "worst_5_percent"], "seed")
    table["worst 5 %"] = percent(lowest.mean(axis=1))
    others = means.index[1:]
    found = [paired((means.loc["PGFed"] - means.loc[case]).dropna()) for case in others]
    behind = [f"{mean:.2f} ({low:.2f} to {high:.2f})" for mean, low, high, _ in found]
    table["behind PGFed (95 % interval)"] = pd.Series(behind, others)
    p_values = pd.Series([p for *_, p in found], others)
    table["p"], table["Holm's p"] = p_values.map(p_value), holm(p_values).map(p_value)
    return named(table.assign(paper=_in_paper("pgfed", "100 rounds")), "method")


@table("pgfed", "three_hundred_rounds")
def _three_hundred_rounds():
    data = accuracy("pgfed", study="300 rounds")
    of_rounds = wide(data, "statistic", "round")
    table = percent(of_rounds.loc[[100, 200, 300]])
    table["best round"] = [_best_round(of_rounds.loc[:last, "mean"]) for last in table.index]
    table["paper"] = _in_paper("pgfed", "300 rounds")["PGFed"]
    return named(table, "PGFed, seed 1, after round")


@table("pgfed", "rates")
def _rates():
    table = wide(accuracy("pgfed", pool="local_validation", study="learning rates"), "rate")
    return named(percent(table[sorted(table)], 1).add_prefix("rate "), "method")


@table("pgfed", "thirty_rounds")
def _thirty_rounds():
    own = wide(last(accuracy("pgfed", study="30 rounds")), "statistic", ["case", "rate"])
    table = percent(own[_ONE]).reset_index("rate")
    data = last(accuracy("pgfed", "global", study="30 rounds", statistic="mean"))
    table["global model"] = percent(data.set_index("case")["value"])
    table["paper"] = _in_paper("pgfed", "30 rounds")
    return named(table, "method", mean="own models")


@table("pgfed", "new_clients")
def _new_clients():
    data = pick("pgfed", study="new clients", clients=True)
    heads = {
        "global": "before",
        "personalized": "before",
        "fine_tuned": "after 20 epochs",
        "fine_tuned_best_epoch": "after the best epoch",
    }
    groups = data.assign(model=data["model"].map(heads)).groupby(["case", "model"], sort=False)
    data = groups["value"].agg(mean="mean", std=lambda values: values.std(ddof=0)).reset_index()
    data["value"] = percent(data["mean"], 1) + " (" + percent(data["std"], 1) + ")"
    table = wide(data, "model").assign(paper=_in_paper("pgfed", "new clients"))
    return named(table, "method, rate of fine-tuning")


# pFedMB


@table("pfedmb", "pairs")
def _pairs():
    key = ["case", "round", "rate"]
    data = pick("pfedmb", study="pairs", model="personalized")
    tested = wide(data[data["pool"] == "local_test"], "statistic", key)
    runs = data[data["round"] == data.groupby(["case", "rate"])["round"].transform("max")]
    validated = data[(data["pool"] == "local_validation") & (data["statistic"] == "mean")]
    in_paper = pick("pfedmb", study="pairs", paper=True)
    parts = {
        "validation": validated.set_index(key)["value"],
        "test": tested["mean"],
        "test, std over clients": tested["std"],
        "paper, test": in_paper.set_index(key)["value"],
    }
    rows = pd.MultiIndex.from_frame(runs[key].drop_duplicates())
    table = percent(pd.DataFrame(parts).reindex(rows)).reset_index(["round", "rate"])
    return named(table, "clients in pairs", round="rounds")


@table("pfedmb", "two_classes", "Dirichlet")
def _fifteen_clients(name):
    study = name.replace("_", " ")
    data = accuracy("pfedmb", study=study, statistic=["mean", "std"])
    early = percent(wide(data[data["round"] == 20], "statistic", ["case", "rate"]))
    final = last(data)
    late = percent(wide(final, "statistic"))
    table = early.reset_index("rate").rename(columns={"mean": "20 rounds", "std": "early std"})
    table["rounds"] = final.groupby("case")["round"].first()
    table["half an hour"] = late["mean"]
    table["late std"] = late["std"]
    table = named(table.assign(paper=_in_paper("pfedmb", study)), study)
    return table.rename(columns={"early std": "std over clients", "late std": "std over clients"})


@table("pfedmb", "MOON")
def _moon():
    study = "MOON's recipe"
    trials = wide(accuracy("pfedmb", pool="local_validation", study=f"trials of {study}"), "rate")
    table = percent(trials[sorted(trials)])
    data = last(accuracy("pfedmb", study=study, rate="0.01"))
    first, second = (percent(wide(data[data["seed"] == seed], "statistic")) for seed in (0, 1))
    table["test, 40 rounds"] = first["mean"]
    table["std over clients"] = first["std"]
    table["seed 1"] = second["mean"]
    return named(table.assign(paper=_in_paper("pfedmb", study)), "Dirichlet")


# FedPG

_LETTERS = {
    ("personalized", "local_test"): "L",
    ("personalized", "synthetic50_test"): "S",
    ("personalized", "generalization_test"): "G",
    ("global", "generalization_test"): "GM",
}


def _of_letters(data: pd.DataFrame) -> pd.DataFrame:
    """Names pools by the letters in FedPG's tables, and leaves out other pools."""
    letters = [_LETTERS.get(key) for key in zip(data["model"], data["pool"], strict=True)]
    return data.assign(letter=letters).dropna(subset="letter")


@table("fedpg", "Dirichlet", "two_classes", "unequal", "seeds", "CIFAR10")
def _fedpg(name):
    study = {
        "Dirichlet": "Dir(0.1), one seed",
        "two_classes": "two classes, one seed",
        "CIFAR10": "CIFAR-10",
    }.get(name, "five seeds")
    data = _of_letters(last(pick("fedpg", study=study, quantity="accuracy")))
    if name == "unequal":
        data = data[(data["seed"] == 0) & data["case"].str.startswith("Pat-2 unequal")]
    key = ["case", "letter"]
    if name == "seeds":
        data = data[data["statistic"] == "mean"].groupby(key, sort=False)["value"]
        data = data.agg(["mean", "std"]).reset_index()
    else:
        data = wide(data, "statistic", key).reset_index()
    in_paper = _of_letters(pick("fedpg", paper=True, study=study)).set_index(key)["value"]
    data["value"] = [
        share(mean)
        + ("" if pd.isna(std) else f" ({share(std)})")
        + (f" / {share(in_paper[case, letter])}" if (case, letter) in in_paper else "")
        for case, letter, mean, std in data[[*key, "mean", "std"]].itertuples(index=False)
    ]
    table = wide(data, "letter")[list(_LETTERS.values())]
    if name == "unequal":
        table.index = table.index.str.removeprefix("Pat-2 unequal: ")
    return named(table, "method")


@table("fedpg", "differences")
def _global_models():
    data = last(pick("fedpg", study="five seeds", model="global", statistic="mean"))
    seeds = wide(data[data["pool"] == "generalization_test"], "seed")
    variants = ("M1, mean direction", "M2, no fairness", "M4, no memory")
    weights = ("FedAvg, clients weigh the same", "FedAvg")
    pairs = {
        "Dir(0.1)": [("S-FedPG", "FedPG"), weights],
        "Pat-2": [(own, "FedPG") for own in variants],
        "Pat-2 unequal": [*((own, "FedPG") for own in variants), weights],
    }
    rows = []
    for partition, own, other in [(key, *pair) for key, of in pairs.items() for pair in of]:
        differences = seeds.loc[f"{partition}: {own}"] - seeds.loc[f"{partition}: {other}"]
        mean, low, high, p = paired(differences)
        interval = f"{share(mean, '+')} ({share(low, '+')} to {share(high, '+')})"
        rows.append([f"{partition}: {own} - {other}", interval, p_value(p)])
    return pd.DataFrame(rows, columns=["global models", "difference", "p"])


@table("fedpg", "rounds")
def _over_rounds():
    data = accuracy("fedpg", "global", study="five seeds", seed=0, statistic="mean")
    of_rounds = wide(data[~data["case"].str.contains("gamma|M3")], "round")
    table = of_rounds[[100, 200, 500, 1000, 2000]].map(share)
    late = of_rounds.loc[:, of_rounds.columns > 1000].mean(axis=1)
    table["mean of the last 1,000 rounds"] = late.map(share)
    table["best (round)"] = of_rounds.apply(lambda x: f"{share(x.max())} ({x.idxmax()})", axis=1)
    return named(table, "global model after round")


@table("fedpg", "CIFAR10_rounds")
def _cifar10_rounds():
    data = pick("fedpg", study="CIFAR-10", pool="local_test", statistic="mean")
    models = {
        "personalized": "personalized models, own test examples",
        "global": "global model, clients' own test examples",
    }
    table = wide(data, "round", "model").sort_index(axis=1).map(share)
    return named(table.loc[list(models)].rename(models), "round")


@table("fedpg", "FedAMP")
def _fedamp():
    data = pick("fedpg", study="FedAMP, tuned").set_index(["case", "option"])
    table = percent(data["value"]).rename("accuracy of clients' own models, %")
    return named(table.reset_index("option"), "distances", option="options")
