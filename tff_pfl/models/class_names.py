"""Checks that labels are classes, and that data, tasks and runs mean the same classes by them."""

import functools
import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from absl import logging

_SHOWN = 10


def check_same_classes(
    classes: Iterable[str], whose: str, class_names: Iterable[str], data: str
) -> None:
    """Checks that the classes of a data set have the names and the order of those of a task or run.

    Args:
        classes: The names of the task's or the run's classes, by number.
        whose: A name of the task or the run, for the message.
        class_names: The names of the data set's classes, by number.
        data: The name of the data set.

    Raises:
        ValueError: A class has another name, or is missing.
    """
    classes = list(map(str, classes))
    for number, names in enumerate(itertools.zip_longest(classes, map(str, class_names))):
        if names[0] != names[1]:
            own, other = ("missing" if name is None else repr(name) for name in names)
            shown = f"pandas.Categorical(labels, {classes if len(classes) <= _SHOWN else 'NAMES'})"
            raise ValueError(
                f"Class {number} is {own} in {whose}, but {other} in the data {data!r}. Number the "
                f"classes alike: pass {shown if classes else 'numbers as labels'}."
            )


def in_order(weights: Mapping[str, float], classes: tuple[str, ...]) -> list[float]:
    """Returns weights by name in the order of the classes.

    Raises:
        ValueError: The weights are those of other classes.
    """
    if set(weights) != set(classes):
        raise ValueError(
            f"Class weights are of {', '.join(weights)}, but the task has the classes "
            f"{', '.join(classes)}."
        )
    return [weights[name] for name in classes]


@functools.cache
def warn_of_class_one(name: str, data: str) -> None:
    """Warns once that metrics of a binary task are those of the class 1 of a data set."""
    logging.warning(
        "Precision, recall and f1 on %r are those of its class 1, %r. To choose it, name both "
        "classes in order: TASKS['binary'](classes=NAMES), pandas.Categorical(labels, NAMES).",
        *(data, name),
    )


def written_as_classes(y: Any) -> str | None:
    """Says how labels differ from class labels, and how they become such, if they can."""
    if not isinstance(y, np.ndarray) or y.dtype.kind not in "biuf" or (y < 0).any():
        return None
    if y.ndim == 2 and y.shape[1] > 1 and ((y == 0) | (y == 1)).all() and (y.sum(1) == 1).all():
        return "are one-hot. Pass y.argmax(axis=1)"
    if y.ndim == 2 and y.shape[1] == 1 and (y == np.floor(y)).all():
        return f"have the shape {y.shape}. Pass y[:, 0].astype(int)"
    if y.ndim == 1 and y.dtype.kind == "f" and (y == np.floor(y)).all():
        return f"are {y.dtype}. Pass y.astype(int)"
    return None
