"""Whole data sets, before they are spread over clients."""

from typing import Any, NamedTuple

import numpy as np
import tree

from tff_pfl.arguments.ranges import whole
from tff_pfl.data.checks import ExamplesError, check_examples
from tff_pfl.data.class_labels import are_names, as_classes, is_categorical
from tff_pfl.data.data_frames import columns_of, labels_of
from tff_pfl.tracing.structures import normalized


class LabelledImages(NamedTuple):
    """A whole data set; arrays may be memory-mapped.

    Attributes:
        name: The name of the data set, as given to `load`.
        x: uint8 `[n, height, width, channels]`, 0..255. Inputs that are not images may have
            another type or shape, or be a structure of arrays, as in `FederatedDataset`.
        y: int32 `[n]` class labels, 0..num_classes-1; other labels if `num_classes` is `None`.
        num_classes: The number of classes, or `None`.
        num_train: The first `num_train` rows are the original training split, the rest the test
            split.
        writer: int32 `[n]`, the natural client of each row of both splits, numbered from 0, for the
            partitioner `natural`; `None` if the data set has no natural clients.
    """

    name: str
    x: Any
    y: Any
    num_classes: int | None
    num_train: int
    writer: np.ndarray | None = None


def without_splits(x: Any, y: Any) -> tuple[LabelledImages, np.ndarray | None]:
    """Makes a data set of inputs and labels, which are classes if they are text or whole numbers.

    Args:
        x: An array, or a structure of arrays; or a pandas data frame, whose columns are inputs.
        y: The labels, an array or a column; or the name of a column of the data frame, whose others
            are inputs.

    Returns:
        The data set, and the names of its classes, if they have any.

    Raises:
        ExamplesError: Labels are whole numbers, but not 0, 1, ... up to the largest; or the data
            frame does not have the column.
    """
    if hasattr(x, "columns"):
        if np.ndim(y) == 0:
            x, y = x.drop(columns=y, errors="ignore"), labels_of(x, y)
        x = columns_of(x, list(x.columns))
    y = y if is_categorical(y) else np.asarray(y)
    if is_categorical(y) or are_names(y):
        number = len(y.dtype.categories if is_categorical(y) else set(y.ravel().tolist()))
        (y,), names = as_classes([y], number)
        return LabelledImages("custom", x, y, number, 0), names
    if y.dtype.kind not in "iub" or y.ndim != 1:
        return LabelledImages("custom", x, y, None, 0), None
    y = y.astype(np.int32) if y.dtype.kind == "b" else y
    values = np.unique(y)
    if len(values) and values.tolist() != list(range(len(values))):
        raise ExamplesError(
            f"The labels are {len(values)} whole numbers from {values[0]} to {values[-1]}. Number "
            "classes from 0 without gaps, as np.unique(y, return_inverse=True)[1] does, or make "
            "quantities floats."
        )
    return LabelledImages("custom", x, y, len(values), 0), None


def checked_images(images: LabelledImages, *, takes_original_split: bool) -> LabelledImages:
    """Checks that a data set can be divided among clients.

    Args:
        images: The data set.
        takes_original_split: Whether the original training split is used; if not, `num_train` may
            be 0.

    Returns:
        The same data set with NumPy arrays: class labels of int32, `writer` of int64.

    Raises:
        ExamplesError: See `check_examples`; or `images` is not `LabelledImages` or has no rows, or
            `num_train` or `writer` do not fit the rows.
    """
    if not isinstance(images, LabelledImages):
        raise ExamplesError(
            "The data must be (x, y), inputs and labels, or the LabelledImages that functions in "
            f"DATASETS return, got {repr(images).splitlines()[0]:.80}."
        )
    check_examples(images.x, images.y, images.num_classes, images.name)
    x, y = (normalized(rows, np.asarray) for rows in (images.x, images.y))
    num_rows = len(tree.flatten(x)[0])
    if not num_rows:
        raise ExamplesError(f"{images.name}: there are no examples to divide among clients.")
    num_train = whole(int(takes_original_split), num_rows)
    num_train.check(f"{images.name}: num_train", images.num_train, ExamplesError)
    if images.num_classes is not None:
        y = y.astype(np.int32, copy=False)
    images = images._replace(x=x, y=y)
    if images.writer is None:
        return images
    writer = np.asarray(images.writer)
    if writer.shape != (num_rows,) or writer.dtype.kind not in "iu":
        raise ExamplesError(
            f"{images.name}: writer must be integers of shape [{num_rows}], one a row, got "
            f"{writer.dtype} of shape {writer.shape}."
        )
    if writer.min() < 0 or writer.max() >= num_rows:
        raise ExamplesError(
            f"{images.name}: writers {writer.min()}..{writer.max()} of {num_rows} rows must be "
            "numbered from 0 without gaps, as np.unique(writer, return_inverse=True)[1] does."
        )
    return images._replace(writer=writer.astype(np.int64, copy=False))
