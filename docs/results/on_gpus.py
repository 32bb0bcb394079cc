"""Makes the tables of the page about GPUs."""

import pandas as pd

from docs.results.data import named, percent, pick, wide

_CONTENDERS = [
    "bare TensorFlow loop",
    "tff_pfl, loop",
    "tff_pfl, stacked",
    "tff_pfl, stacked, XLA",
    "tff_pfl, stacked, XLA, patches",
    "tff_pfl, stacked by 25, XLA",
    "tff_pfl, default",
    "PyTorch, loop",
    "PyTorch, vmap",
    "JAX, vmap",
    "JAX, map",
]


def seconds(quantity: str, precision: str = "float32", study: str = "rounds") -> pd.DataFrame:
    """Returns the seconds of rounds on the H200, a row for a contender and a column for a case."""
    data = pick("gpu", study=study, quantity=quantity, precision=precision)
    return wide(data, "case", "option")


def _rounds():
    table = (1000 * seconds("seconds_per_round")).map(_three_digits)
    return named(table, "milliseconds a round")


def _compiled():
    table = (1000 * seconds("seconds_per_round", study="compiled")).map(_three_digits)
    return named(table.loc[_CONTENDERS], "milliseconds a round")


def _compiled_first():
    table = seconds("first_round_seconds", study="compiled").map(_three_digits)
    return named(table.loc[_CONTENDERS], "seconds of the first round")


def _first_rounds():
    columns = ["linear model, 10 clients", "PGFed's CNN, 10 clients"]
    table = seconds("first_round_seconds")[columns].dropna(how="all").map(_three_digits)
    return named(table, "seconds of the first round")


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


TABLES = {
    ("gpu", "rounds"): _rounds,
    ("gpu", "first_rounds"): _first_rounds,
    ("gpu", "trainings"): _trainings,
    ("gpu", "compiled"): _compiled,
    ("gpu", "compiled_first"): _compiled_first,
}
"""The functions that make the tables, by page and name."""
