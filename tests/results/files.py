"""The files that pages of results come from, and numbers as pages write them."""

import csv
import functools
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.results.pages import FOLDER
from tff_pfl.evaluation import over_clients

PERSONALIZED = "personalized/local_test/accuracy"
GLOBAL = "global/local_test/accuracy"


def read_rows(path: str) -> list[dict[str, str]]:
    """The rows of a CSV file in the folder of the pages."""
    with open(FOLDER / path, newline="") as file:
        return list(csv.DictReader(file))


def read_json(path: str) -> dict[str, Any]:
    """A JSON file in the folder of the pages."""
    return json.loads((FOLDER / path).read_text())


def paper(run: str) -> Mapping[str, float]:
    """The paper's numbers, of the config of a run."""
    return read_json(f"{run}/config.json")["paper"]


def rate(run: str) -> str:
    """The learning rate of a run."""
    return f"{read_json(f'{run}/config.json')['local']['learning_rate']:g}"


@functools.cache
def evaluated(run: str) -> dict[int, dict[str, float]]:
    """The numbers of `metrics.csv` in the rounds that were evaluated."""
    rows = read_rows(f"{run}/metrics.csv")
    numbers = ({name: float(cell) for name, cell in row.items() if cell} for row in rows)
    return {int(row["round"]): row for row in numbers if "num_clients_never_selected" in row}


def late(run: str, name: str) -> list[float]:
    """A number at the evaluations after round 1,000."""
    return [numbers[name] for number, numbers in evaluated(run).items() if number > 1000]


def final(run: str) -> dict[str, float]:
    """The numbers of the last evaluation."""
    return list(evaluated(run).values())[-1]


def accuracies(path: str, column: str = PERSONALIZED, *, of_selected: bool = False) -> np.ndarray:
    """One of a table of clients; all, or those that have taken part alone."""
    rows = read_rows(path)
    return np.array(
        [float(row[column]) for row in rows if not of_selected or int(row["was_selected"])]
    )


def statistics(values: np.ndarray) -> dict[str, float]:
    """Mean, deviation, lowest and top 5 % of the values of clients."""
    return over_clients(values)


def percent(share: float, digits: int = 2) -> str:
    """A share as `79.62`."""
    return f"{100 * share:.{digits}f}"


def short(share: float) -> str:
    """A share as `.889`."""
    return f"{share:.3f}".removeprefix("0")


def signed(difference: float) -> str:
    """A difference of shares as `-.012`."""
    return f"{difference:+.3f}".replace("0.", ".", 1)
