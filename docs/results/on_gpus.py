"""Makes the tables and the picture of the page about GPUs."""

import pandas as pd

from docs.results.data import named, percent, pick, wide
from docs.results.tables import table
from tff_pfl.analysis import figures

_CLIENTS = ", 10 clients"
_NETWORKS = ("linear model", "PGFed's CNN")


def _seconds(quantity: str, precision: str = "float32") -> pd.DataFrame:
    """Returns the seconds of rounds on the H200, a row for a contender and a column for a case."""
    data = pick("gpu", study="rounds", quantity=quantity, precision=precision)
    return wide(data, "case", "option")


@table("gpu", "rounds")
def _rounds():
    table = (1000 * _seconds("seconds_per_round")).map(_three_digits)
    return named(table, "milliseconds a round")


@table("gpu", "first_rounds")
def _first_rounds():
    columns = ["linear model, 10 clients", "PGFed's CNN, 10 clients"]
    table = _seconds("first_round_seconds")[columns].dropna(how="all").map(_three_digits)
    return named(table, "seconds of the first round")


@table("gpu", "trainings")
def _trainings():
    data = pick("gpu", study="trainings")
    table = wide(data, "quantity", ["case", "option"]).reset_index("option")
    for name in ("first_round_seconds", "seconds_per_round"):
        table[name] = table[name].map(_three_digits)
    table["accuracy"] = percent(table["accuracy"])
    heads = {"option": "device", "first_round_seconds": "first round, s"}
    heads |= {"seconds_per_round": "later rounds, s", "accuracy": "accuracy, %"}
    return named(table[list(heads)].rename(columns=heads), "training")


def _three_digits(value: float) -> str | None:
    """Formats a number with three digits or all of its whole part, such as `0.961` or `2,318`."""
    if pd.isna(value):
        return None
    return f"{value:,.0f}" if value >= 100 else f"{value:#.3g}"


@figures.styled
def rounds_picture():
    """Draws the milliseconds of a round on an H200 as bars."""
    figure = figures.new_figure(height=3.2)
    milliseconds = 1000 * _seconds("seconds_per_round")
    for axes, network in zip(figure.subplots(1, len(_NETWORKS)), _NETWORKS, strict=True):
        rounds = milliseconds[network + _CLIENTS].dropna().sort_values(ascending=False)
        colors = [figures.COLORS[name.startswith("tff_pfl")] for name in rounds.index]
        bars = axes.barh(rounds.index, rounds, color=colors)
        axes.bar_label(bars, fmt="%.3g", padding=2, fontsize=9)
        axes.set(title=network, xlabel="ms a round", xlim=(0, 1.2 * rounds.max()))
        axes.grid(visible=False, axis="y")
    figure.suptitle("FedAvg with 10 clients on an H200")
    return figure
