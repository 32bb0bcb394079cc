"""Tables of pages whose studies have a file with a line a run."""

import numpy as np

from tests.results.files import percent, read_rows

_METHODS = ("FedAvg", "FedPer", "PGFed")


def _of_labels(path, label, value):
    """The values of all runs, by labels that are made of a line."""
    found = {}
    for row in read_rows(path):
        found.setdefault(label(row), []).append(float(row[value]))
    return found


def _mean_and_deviation(values) -> str:
    return f"{percent(np.mean(values))} ± {percent(np.std(values, ddof=1))}" if values else "-"


def crossed(path: str, row: str = "") -> list[list[str]]:
    """A row and a column a variant, of what `report.py cross_table --each_run` has printed.

    Args:
        path: Of the file.
        row: What the labels of rows begin with; the page is without it.
    """
    values = _of_labels(path, lambda line: (line["row"], line["column"]), "value")
    rows, columns = (list(dict.fromkeys(label)) for label in zip(*values, strict=True))
    rows = [label for label in rows if label.startswith(row)]
    columns = [label for label in columns if any((label_, label) in values for label_ in rows)]
    return [
        [
            label.removeprefix(row),
            *(_mean_and_deviation(values.get((label, column))) for column in columns),
        ]
        for label in rows
    ]


def mean_values(path: str, row: str) -> dict[str, dict[str, float]]:
    """In percent, the means over seeds that `crossed` writes: a row's, by columns."""
    means = {}
    for (label, column), values in _of_labels(
        path, lambda line: (line["row"], line["column"]), "value"
    ).items():
        if label.startswith(row):
            means.setdefault(label.removeprefix(row), {})[column] = 100 * np.mean(values)
    return means


def mean_accuracies(path: str) -> dict[str, float]:
    """In percent, the means over seeds of what `sweep.py` has written, by labels."""
    found = _of_labels(path, lambda line: line["label"], "personalized")
    return {label: 100 * np.mean(values) for label, values in found.items()}


def compression() -> list[list[str]]:
    """A row a compressor; of each method kB, and accuracy without and with error feedback."""
    path = "compression/runs.csv"
    accuracies = _of_labels(path, lambda line: line["label"], "personalized")
    sent = _of_labels(path, lambda line: line["label"], "bytes_up")
    rows = [label.split(" | ")[1] for label in accuracies if label.startswith(f"{_METHODS[0]} |")]
    return [
        [row]
        + [
            cell
            for method in _METHODS
            for cell in (
                f"{sent[f'{method} | {row}'][0] / 1000:.1f}",
                _mean_and_deviation(accuracies[f"{method} | {row}"]),
                _mean_and_deviation(accuracies.get(f"{method} | {row}, fed back")),
            )
        ]
        for row in rows
        if not row.endswith("fed back")
    ]
