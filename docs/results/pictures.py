"""Draws the picture with which a page begins, from the numbers beside the page.

`PICTURES` maps pages to functions; `make results` writes `PAGE/summary.png`.
"""

from collections.abc import Callable, Sequence

import pandas as pd
import seaborn as sns

from docs.results.data import accuracy, last, pick, wide
from docs.results.on_gpus import seconds
from tff_pfl.analysis import figures

PICTURES: dict[str, Callable] = {}
_ACCURACY = "accuracy of clients' own models, %"


def picture(page: str):
    """Registers a function that draws the first picture of a page."""

    def register(function):
        PICTURES[page] = figures.styled(function)
        return PICTURES[page]

    return register


def _dots(axes, data: pd.DataFrame, order: Sequence[str], label: str, reference: str = ""):
    """Draws a row for each case, with a dot for each seed and a line at their mean.

    Args:
        axes: The axes.
        data: The lines of the cases.
        order: The cases, from the top.
        label: The label of the numbers.
        reference: The case whose mean is a vertical line.
    """
    data = data[data["case"].isin(order)].assign(value=100 * data["value"])
    options = {"x": "value", "y": "case", "order": order, "ax": axes}
    means = {"linestyle": "none", "marker": "|", "markersize": 13, "markeredgewidth": 2}
    sns.pointplot(data, errorbar=None, color=figures.COLORS[1], **means, **options)
    sns.stripplot(data, jitter=False, size=6, alpha=0.7, color=figures.COLORS[0], **options)
    if reference:
        of_reference = data.loc[data["case"] == reference, "value"].mean()
        axes.axvline(of_reference, color="0.4", linestyle=":", linewidth=1.2)
    axes.set(xlabel=label, ylabel="")


@picture("digits")
def digits():
    """Draws the accuracy of each method on digits in three seeds."""
    return _methods("digits")


@picture("fashion_mnist")
def fashion_mnist():
    """Draws the accuracy of each method on Fashion-MNIST in three seeds."""
    return _methods("fashion_mnist")


def _methods(page):
    figure = figures.new_figure(height=5.5)
    data = accuracy(page, study="methods")
    data = data[data["case"] != "constant"]  # far below the others
    order = data.groupby("case")["value"].mean().sort_values(ascending=False, kind="stable").index
    axes = figure.subplots()
    _dots(axes, data, list(order), _ACCURACY, reference="local")
    axes.xaxis.set(ticks_position="top", label_position="top")
    axes.tick_params(axis="y", labelsize=5.5)
    drawn = {
        "a seed": axes.collections[0],
        "mean of the seeds": axes.lines[0],
        "Local": axes.lines[-1],
    }
    axes.legend(drawn.values(), drawn.keys(), loc="upper left")
    return figure


@picture("attacks")
def attacks():
    """Draws the mean accuracy under each attack and aggregator."""
    figure = figures.new_figure(width=9.0, height=3.6)
    methods = ("FedAvg", "Ditto")
    for axes, method in zip(figure.subplots(1, 2, sharey=True), methods, strict=True):
        data = accuracy("attacks", study=method)
        means = data.groupby(["case", "option"], sort=False)["value"].mean().reset_index()
        options = {"vmin": 50, "vmax": 96, "cmap": "viridis", "cbar": False, "annot": True}
        sns.heatmap(100 * wide(means, "option"), fmt=".0f", ax=axes, **options)
        axes.set(title=method, xlabel="", ylabel="")
    figure.suptitle("Accuracy of honest clients' own models, %, mean of three seeds")
    return figure


@picture("pgfed")
def pgfed():
    """Draws the accuracies after 100 rounds, and the paper's."""
    figure = figures.new_figure(height=3.2)
    data = last(accuracy("pgfed", study="100 rounds", statistic="mean"))
    paper = pick("pgfed", study="100 rounds", paper=True).set_index("case")["value"]
    order = list(
        data.groupby("case")["value"].mean().sort_values(ascending=False, kind="stable").index
    )
    axes = figure.subplots()
    _dots(axes, data, order, _ACCURACY)
    axes.plot(100 * paper[order], order, "D", color="black", markerfacecolor="none")
    figure.suptitle("CIFAR-10, 25 clients: a dot a seed, their mean; a diamond for the paper")
    return figure


@picture("fedpg")
def fedpg():
    """Draws the global models of FedPG and of FedPG without its parts."""
    figure = figures.new_figure(height=2.8)
    data = last(pick("fedpg", study="five seeds", model="global", statistic="mean"))
    data = data[(data["pool"] == "generalization_test") & (data["quantity"] == "accuracy")]
    data = data.assign(case=data["case"].str.removeprefix("Pat-2: "))
    order = ["FedPG", "M2, no fairness", "M4, no memory", "M1, mean direction"]
    _dots(figure.subplots(), data, order, "accuracy of the global model, %", reference="FedPG")
    figure.suptitle("Fashion-MNIST, two classes a client: a dot a seed, their mean")
    return figure


@picture("pfedmb")
def pfedmb():
    """Draws our accuracies beside the paper's in two partitions."""
    figure = figures.new_figure(width=8.0, height=3.6)
    studies = ("two classes", "Dirichlet")
    for axes, study in zip(figure.subplots(1, 2, sharey=True), studies, strict=True):
        ours = last(accuracy("pfedmb", study=study, statistic="mean"))
        ours = 100 * ours.groupby("case")["value"].mean().sort_values(kind="stable")
        paper = 100 * pick("pfedmb", study=study, paper=True).set_index("case")["value"]
        axes.plot(ours, ours.index, "o", label="here")
        axes.plot(paper.reindex(ours.index), ours.index, "D", markerfacecolor="none", label="paper")
        axes.set(title=study, xlabel=_ACCURACY)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right")
    figure.suptitle("CIFAR-10, 15 clients")
    return figure


@picture("plgu")
def plgu():
    """Draws PLGU's methods with and without perturbation, and what they extend."""
    figure = figures.new_figure(height=3.8)
    order = ["Ditto", "PLGU-LF, rho 0", "PLGU-LF", "FedRep", "PLGU-GRep, rho 0", "PLGU-GRep"]
    order += ["pFedHN, 3 hidden layers", "PLGU-GHN, rho 0", "PLGU-GHN"]
    data = last(accuracy("plgu", study="controls", statistic="mean"))
    axes = figure.subplots()
    _dots(axes, data, order, _ACCURACY)
    for row in (2.5, 5.5):
        axes.axhline(row, color="0.4", linewidth=0.8)
    figure.suptitle("CIFAR-10: the base, without (rho 0) and with perturbation")
    return figure


@picture("gpu")
def gpu():
    """Draws the milliseconds of a round of each contender, ours in another color."""
    figure = figures.new_figure(height=3.2)
    milliseconds = 1000 * seconds("seconds_per_round")
    networks = ("linear model", "PGFed's CNN")
    for axes, network in zip(figure.subplots(1, 2), networks, strict=True):
        rounds = (
            milliseconds[f"{network}, 10 clients"]
            .dropna()
            .sort_values(ascending=False, kind="stable")
        )
        colors = [figures.COLORS[name.startswith("tff_pfl")] for name in rounds.index]
        bars = axes.barh(rounds.index, rounds, color=colors)
        axes.bar_label(bars, fmt="%.3g", padding=2, fontsize=9)
        axes.set(title=network, xlabel="ms a round", xlim=(0, 1.2 * rounds.max()))
        axes.grid(visible=False, axis="y")
    figure.suptitle("FedAvg with 10 clients on an H200")
    return figure
