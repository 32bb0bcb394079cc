"""Selects a quantity from the data frames of runs."""

from collections.abc import Iterable

import numpy as np
import pandas as pd
from absl import logging

from tff_pfl.arguments.names import UnknownNameError, unknown_name
from tff_pfl.evaluation import MetricName, main_metric
from tff_pfl.experiment.run_directory import OutputDirectoryError

_MOST = 5  # names in a message


def names_of(frame: pd.DataFrame) -> list[MetricName]:
    """Returns the names of the quantities of a frame, in order."""
    parts = [part for part in MetricName._fields if part in frame]
    return [MetricName(*names) for names in frame[parts].drop_duplicates().values]


def column_of(frame: pd.DataFrame, column: str | None = None) -> str:
    """Returns the whole name of a quantity, "MODEL/POOL/QUANTITY".

    Args:
        frame: The metrics, clients or evaluations of `Runs`.
        column: The whole name, or a short one, such as "loss" or "accuracy_worst_5_percent", for
            the model and the examples of the `main_metric` of the first run, which is the default.

    Raises:
        UnknownNameError: The frame does not have the quantity. The message has the nearest names.
        OutputDirectoryError: No run was evaluated.
    """
    names = names_of(frame)
    known = list(map(str, names))

    def is_known(name):
        return name in known or f"{name}_mean" in known

    if column is not None and is_known(column):
        return column
    main = main_metric(names)
    if main is None:
        raise OutputDirectoryError("No run has an evaluation of models yet.")
    of_main = f"{main.model}/{main.pool}/"
    if column is None or is_known(of_main + column):
        return of_main + (column or main.quantity)
    known = [name.removesuffix("_mean") for name in known]
    if "/" not in column:
        known = [name.removeprefix(of_main) for name in known]
        known = [name for name in known if "/" not in name]
    raise UnknownNameError(unknown_name("column", column, known, most=_MOST))


def select(
    frame: pd.DataFrame, column: str | None = None, exclude_clients: Iterable = ()
) -> pd.DataFrame:
    """Returns the rows of one quantity.

    Args:
        frame: The metrics, clients or evaluations of `Runs`.
        column: "MODEL/POOL/QUANTITY", such as "personalized/local_test/accuracy", or a short name;
            see `column_of`. If the frame has statistics, "MODEL/POOL/QUANTITY_STATISTIC", by
            default the mean.
        exclude_clients: Names or ids of clients to leave out, as in `client_id`. Needs a frame of
            clients.

    Raises:
        UnknownNameError: See `column_of`.
        OutputDirectoryError: No client is left.
    """
    column, names = column_of(frame, column), {str(name): name for name in names_of(frame)}
    name = names.get(f"{column}_mean") or names[column]
    found = frame
    for part, value in name._asdict().items():
        found = found[found[part] == value] if part in found else found
    if exclude := list(dict.fromkeys(map(str, exclude_clients))):
        clients = found["client_id"].astype(str)
        known = set(frame["client_id"].astype(str))
        if absent := [client for client in exclude if client not in known]:
            logging.warning("No evaluated client has the name or id %s.", ", ".join(absent))
        found = found[~clients.isin(exclude)]
        if found.empty:
            raise OutputDirectoryError(
                "exclude_clients leaves out all clients that were evaluated."
            )
    return found


def means(rows: pd.DataFrame, by: list[str]) -> pd.Series:
    """Returns the mean of `value` by groups, in order; NaN if any value of a group is NaN."""
    groups = rows.groupby(by, sort=False)["value"]
    return groups.mean().where(groups.count() == groups.size())


def over_runs(rows: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Returns the `mean` and the `deviation` of `value` over the `runs` of groups, in order.

    Both are NaN if any value of a group is NaN, and the deviation of a single run is NaN.
    """
    groups = rows.groupby(by, sort=False)["value"]
    with np.errstate(invalid="ignore"):  # values may be infinite
        mean, deviation = (groups.agg(how, skipna=False) for how in (pd.Series.mean, pd.Series.std))
    return pd.DataFrame({"mean": mean, "deviation": deviation, "runs": groups.size()})
