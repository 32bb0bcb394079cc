"""Tables of pages whose studies have a file with a line a run."""

import numpy as np

from tests.results.files import percent, read_rows

_METHODS = ("FedAvg", "FedPer", "PGFed")


def of_labels(path: str, value: str) -> dict[str, list[float]]:
    """The values of all runs, by labels, of what `sweep.py` has written."""
    return _of_lines(path, lambda line: line["label"], value)


def mean_and_deviation(values: list[float] | None) -> str:
    """As pages write it, in percent; a dash, if there is none."""
    if values is None or np.isnan(values).all():
        return "-"
    return f"{percent(np.mean(values))} ± {percent(np.std(values, ddof=1))}"


def _of_lines(path, label, value):
    """The values of all runs, by labels that are made of a line."""
    found = {}
    for row in read_rows(path):
        found.setdefault(label(row), []).append(float(row[value]))
    return found


def _row_and_column(line) -> tuple[str, str]:
    """Of `report.py cross_table --each_run`; or of `sweep.py`, with labels "ROW | COLUMN"."""
    return tuple(line["label"].split(" | ")) if "label" in line else (line["row"], line["column"])


def crossed(path: str, row: str = "", value: str = "value") -> list[list[str]]:
    """A row and a column a variant.

    Args:
        path: Of a file with a line a run.
        row: What the labels of rows begin with; the page is without it.
        value: The column of the numbers.
    """
    values = _of_lines(path, _row_and_column, value)
    values = {cell: numbers for cell, numbers in values.items() if np.isfinite(numbers).all()}
    rows, columns = (list(dict.fromkeys(label)) for label in zip(*values, strict=True))
    rows = [label for label in rows if label.startswith(row)]
    columns = [label for label in columns if any((label_, label) in values for label_ in rows)]
    return [
        [
            label.removeprefix(row),
            *(mean_and_deviation(values.get((label, column))) for column in columns),
        ]
        for label in rows
    ]


def mean_values(path: str, row: str = "", value: str = "value") -> dict[str, dict[str, float]]:
    """In percent, the means over seeds that `crossed` writes: a row's, by columns."""
    means = {}
    for (label, column), values in _of_lines(path, _row_and_column, value).items():
        if label.startswith(row):
            means.setdefault(label.removeprefix(row), {})[column] = 100 * np.mean(values)
    return means


def mean_accuracies(path: str, value: str = "personalized") -> dict[str, float]:
    """In percent, the means over seeds of what `sweep.py` has written, by labels."""
    found = of_labels(path, value)
    return {label: 100 * np.mean(values) for label, values in found.items()}


def compression() -> list[list[str]]:
    """A row a compressor; of each method kB, and accuracy without and with error feedback."""
    path = "compression/runs.csv"
    accuracies, sent = of_labels(path, "personalized"), of_labels(path, "bytes_up")
    rows = [label.split(" | ")[1] for label in accuracies if label.startswith(f"{_METHODS[0]} |")]
    return [
        [row]
        + [
            cell
            for method in _METHODS
            for cell in (
                f"{sent[f'{method} | {row}'][0] / 1000:.1f}",
                mean_and_deviation(accuracies[f"{method} | {row}"]),
                mean_and_deviation(accuracies.get(f"{method} | {row}, fed back")),
            )
        ]
        for row in rows
        if not row.endswith("fed back")
    ]
