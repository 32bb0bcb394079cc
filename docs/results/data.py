"""Selects the numbers of the pages by their labels, and formats them for tables."""

import functools
import pathlib
from collections.abc import Sequence

import numpy as np
import pandas as pd

from tff_pfl.analysis.paired import paired_test

FOLDER = pathlib.Path(__file__).parent
_LABELS = ("study", "case", "option", "rate", "model", "pool", "quantity", "statistic", "source")


@functools.cache
def _read(page: str) -> pd.DataFrame:
    texts = dict.fromkeys(_LABELS, str)
    data = pd.read_csv(FOLDER / page / "results.csv", dtype=texts, keep_default_na=False)
    for column in {"seed", "round", "client"} & set(data):
        data[column] = pd.to_numeric(data[column]).astype("Int64")
    return data.reindex(columns=[*data, *({"source", "client"} - set(data))], fill_value=None)


def pick(page: str, *, paper: bool = False, clients: bool = False, **where) -> pd.DataFrame:
    """Returns the lines with these labels, by default statistics over clients of our runs.

    Args:
        page: The page, a folder beside this file.
        paper: Whether to return the paper's numbers instead.
        clients: Whether to return the lines of single clients instead.
        **where: A value, or a list of values, for each label.
    """
    data = _read(page)
    data = data[(data["source"] == "paper") == paper]
    data = data[data["client"].notna() == clients]
    for column, value in where.items():
        data = data[data[column].isin(value if isinstance(value, list) else [value])]
    return data


def accuracy(page: str, model: str = "personalized", pool: str = "local_test", **where):
    """Returns the lines of accuracies, by default of own models on own test examples."""
    return pick(page, model=model, pool=pool, quantity="accuracy", **where)


def wide(data: pd.DataFrame, columns: str, index: str | Sequence[str] = "case") -> pd.DataFrame:
    """Pivots the values into columns, with rows in the order of the file."""
    return data.pivot_table("value", index, columns, aggfunc="first", sort=False)


def last(data: pd.DataFrame) -> pd.DataFrame:
    """Returns the lines of each case's last round."""
    return data[data["round"] == data.groupby("case")["round"].transform("max")]


def paired(differences: Sequence[float]) -> tuple[float, float, float, float]:
    """Returns the mean, its 95 % interval by Student's t, and the two-sided p value."""
    return paired_test([np.array([difference]) for difference in differences])[:4]


def percent(values: pd.DataFrame | pd.Series, digits: int = 2):
    """Formats shares in percent, such as `79.62`; missing values stay missing."""
    return values.map(lambda value: None if pd.isna(value) else f"{100 * value:.{digits}f}")


def over_seeds(data: pd.DataFrame, columns: str) -> pd.DataFrame:
    """Formats mean and standard deviation over seeds, in percent; of one seed, its number."""
    data = data.groupby(["case", columns], sort=False)["value"].agg(["mean", "std"]).reset_index()
    data["value"] = percent(data["mean"]) + (" ± " + percent(data["std"])).fillna("")
    return wide(data, columns)


def share(value: float, sign: str = "-") -> str:
    """Formats a share as `.889`, or with the sign "+" a difference as `+.012`."""
    return f"{value:{sign}.3f}".replace("0.", ".", 1)


def p_value(p: float) -> str:
    """Formats a p value."""
    return "below 0.001" if p < 0.001 else f"{p:.3f}"


def named(table: pd.DataFrame, first: str, **heads: str) -> pd.DataFrame:
    """Makes the index the first column, and renames the other columns."""
    heads |= {"worst_5_percent": "worst 5 %", "best_5_percent": "best 5 %"}
    return table.rename_axis(columns=None).rename_axis(first).reset_index().rename(columns=heads)


def markdown(table: pd.DataFrame) -> str:
    """Returns a table as Markdown, with dashes for missing values."""
    rule = ["---"] + ["---:"] * (table.shape[1] - 1)
    rows = [table.columns, rule, *table.fillna("-").to_numpy()]
    return "".join(f"| {' | '.join(map(str, row))} |\n" for row in rows)
