"""Takes the columns of a pandas data frame as examples of clients."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from tff_pfl.arguments.names import unknown_name
from tff_pfl.data import partition as partitioners
from tff_pfl.data.checks import ExamplesError
from tff_pfl.data.class_labels import are_names, is_categorical
from tff_pfl.data.client_rows import ClientRows
from tff_pfl.data.partition_file import SPLITS, Partition

FRACTIONS = (0.8, 0.0, 0.2)


def examples_of_frame(frame, x, y, weight) -> tuple[Any, Any, np.ndarray | None]:
    """Returns inputs, labels and the weights of examples, or `None`; see `from_dataframe`."""
    x, y = map(_listed, (x, y))
    _check_no_label_is_an_input(x, y)
    weights = None if weight is None else _weights_of(frame, weight, x, y)
    return columns_of(frame, x), labels_of(frame, y), weights


def _listed(columns) -> Any:
    """Returns columns with lists in place of pandas indexes and arrays of names."""
    if isinstance(columns, Mapping):
        return {name: _listed(part) for name, part in columns.items()}
    is_array = hasattr(columns, "tolist") and not isinstance(columns, Hashable)
    return columns.tolist() if is_array else columns


def labels_of(frame, columns) -> Any:
    """Returns labels like `columns_of`, but a column of names of classes as it is."""
    if isinstance(columns, list | Mapping):
        return columns_of(frame, columns)
    values = _present(frame, columns)
    has_names = is_categorical(values) or are_names(values.to_numpy())
    return values if has_names else _column(frame, columns)


def columns_of(frame, columns) -> Any:
    """Returns `[n]` of a column, `[n, k]` of a list of columns, or a structure of a mapping."""
    if isinstance(columns, Mapping):
        return {name: columns_of(frame, part) for name, part in columns.items()}
    if isinstance(columns, list):
        if not columns:
            raise ExamplesError("A list of columns is empty: name at least one column.")
        parts = [_column(frame, column) for column in columns]
        stacked = np.stack(parts, axis=1)
        for column, part in zip(columns, parts, strict=True):
            if part.dtype.kind in "iu" and stacked.dtype.kind == "f" and _abs_max(part) > 2**53:
                raise ExamplesError(
                    f"Column {column!r} has whole numbers above 2**53, which the float64 of the "
                    "columns beside it rounds. Give it a place of its own in a mapping: "
                    f"{{'own': {column!r}, 'others': [...]}}."
                )
        return stacked
    return _column(frame, columns)


def _abs_max(numbers) -> int:
    return max(-int(numbers.min()), int(numbers.max())) if numbers.size else 0


def _check_no_label_is_an_input(x, y) -> None:
    """Raises an error if some inputs are labels; an autoencoder has all of them as labels."""
    inputs, labels = map(_names_in, (x, y))
    both = [column for column in labels if column in inputs]
    if both and len(both) < len(inputs):
        raise ExamplesError(
            f"Column {both[0]!r} is both an input and a label, so the model would be told what it "
            "is to predict. Take it out of x."
        )


def _weights_of(frame, column, x, y) -> np.ndarray:
    """Returns the column of the weights of examples; it may be no input and no label."""
    for kind, columns in (("an input", x), ("a label", y)):
        if column in _names_in(columns):
            raise ExamplesError(
                f"Column {column!r} is both the weight of examples and {kind}. Leave it out of "
                f"{'x' if columns is x else 'y'}."
            )
    return _column(frame, column)


def _names_in(columns) -> list:
    if isinstance(columns, Mapping):
        return sum(map(_names_in, columns.values()), [])
    return columns if isinstance(columns, list) else [columns]


def partition_of_frame(
    frame, client, split, fractions: Sequence[float] | None, seed: int
) -> Partition:
    """Returns the rows of each client, whose names are sorted; see `from_dataframe`."""
    if not (hasattr(frame, "columns") and len(frame)):
        raise ExamplesError(f"frame must be a pandas data frame with rows, got {frame!r:.80}.")
    if not frame.columns.is_unique:
        repeated = frame.columns[frame.columns.duplicated()][0]
        raise ExamplesError(f"The data frame has several columns {repeated!r}. Rename them.")
    if split is not None and fractions is not None:
        raise ExamplesError(
            f"Rows are cut by the column split={split!r} or by fractions, not by both. Leave one "
            "of them out."
        )
    owners, names = _names_of_clients(_present(frame, client)).factorize(sort=True)
    names = list(names)
    everything = np.arange(len(owners))
    if split is not None:
        given = _present(frame, split).astype(str).to_numpy()
        if unknown := sorted(set(given) - set(SPLITS)):
            raise ExamplesError(
                f"Column {split!r} must have 'train', 'validation' or 'test', found {unknown[0]!r}."
            )
        parts = [everything[given == name] for name in SPLITS]
        rows = [ClientRows.by_owner(part, owners[part], len(names)) for part in parts]
        return Partition(*rows, names=names)
    rng = np.random.default_rng(seed)
    of_clients = ClientRows.by_owner(everything, owners, len(names))
    cut = [partitioners.split(rows, fractions or FRACTIONS, rng) for rows in of_clients]
    return Partition(*zip(*cut, strict=True), names=names)


def _names_of_clients(values):
    """Returns times as text, and whole floats, which pandas makes of gaps, as integers."""
    if values.dtype.kind in "Mm":
        return values.astype(str)
    is_whole = values.dtype.kind == "f" and (values % 1 == 0).all()
    return values.astype(np.int64) if is_whole else values


def _present(frame, column):
    """Returns a column, or a level of the index, without missing values."""
    if isinstance(column, Hashable) and column in frame.columns:
        values = frame[column]
    elif isinstance(column, Hashable) and column is not None and column in frame.index.names:
        values = frame.index.get_level_values(column).to_series()
    else:
        known = [str(name) for name in (*frame.columns, *frame.index.names) if name is not None]
        raise ExamplesError(unknown_name("column of the data frame", column, known))
    if number := int(values.isna().sum()):
        drop = (
            f"Column {column!r} has no value in {number} rows. Drop them, by "
            f"frame.dropna(subset=[{column!r}])"
        )
        if values.dtype.kind == "O":
            raise ExamplesError(f"{drop}, or fill them with a name, such as 'unknown'.")
        raise ExamplesError(
            f"{drop}, or fill them with a number, and say in another column which they are: "
            f"frame[{column!r}].isna()."
        )
    return values


def _column(frame, column) -> np.ndarray:
    values = _present(frame, column)
    if values.dtype.kind not in "biuf":
        raise ExamplesError(
            f"Column {column!r} is {values.dtype}, not numbers. Encode it: a category by "
            f"pandas.Categorical(frame[{column!r}], NAMES).codes, whose order is that of NAMES, a "
            f"date for example by pandas.to_datetime(frame[{column!r}]).dt.dayofyear."
        )
    if values.dtype in (np.int8, np.int16) and (number := int((values == -1).sum())):
        raise ExamplesError(
            f"Column {column!r} is -1 in {number} rows, as pandas.Categorical codes what its names "
            "lack. Add these names, drop the rows, or pass the column as int32 if -1 is a number."
        )
    return values.to_numpy(getattr(values.dtype, "numpy_dtype", None))
