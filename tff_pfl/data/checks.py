"""Checks arrays of examples."""

import numpy as np

from tff_pfl.data.sources import LabelledImages
from tff_pfl.ranges import whole

_CHECKED_AT_A_TIME = 1 << 16  # rows; bounds memory


class ExamplesError(ValueError):
    """An error for arrays that no model can be trained on; it names the first bad example."""


def check_examples(x: np.ndarray, y: np.ndarray, num_classes: int, where: str = "data set") -> None:
    """Checks that a model can be trained on these arrays.

    Args:
        x: `[n, ...]` inputs.
        y: `[n]` class labels.
        num_classes: The number of classes.
        where: A name of the arrays, for the message.

    Raises:
        ExamplesError: An array is masked, x and y differ in length, labels are not integers within
            0..num_classes-1, inputs are not real numbers of up to 64 bits, or an input is not
            finite as float32, the type of models. The message names the first bad example.
    """
    whole(1).check(f"{where}: num_classes", num_classes, ExamplesError)
    if np.ma.isMaskedArray(x) or np.ma.isMaskedArray(y):
        raise ExamplesError(f"{where}: arrays are masked. Fill them, for example by x.filled(0).")
    x, y = np.asarray(x), np.asarray(y)
    if y.ndim != 1 or y.dtype.kind not in "iu":
        raise ExamplesError(
            f"{where}: labels must be integers of shape [n], got {y.dtype} of shape {y.shape}."
        )
    if x.ndim == 0 or len(x) != len(y):
        raise ExamplesError(
            f"{where}: inputs of shape {x.shape} for {len(y)} labels; each input needs one label."
        )
    is_float = x.dtype.kind == "f" or x.dtype.name == "bfloat16"  # bfloat16 has kind "V"
    if not (is_float or x.dtype.kind in "biu") or x.dtype.itemsize > 8:
        raise ExamplesError(
            f"{where}: inputs must be real numbers of up to 64 bits, got {x.dtype}."
        )
    bad = np.flatnonzero((y < 0) | (y >= num_classes))
    if len(bad):
        raise ExamplesError(
            f"{where}: label {y[bad[0]]} of example {bad[0]} is not within 0..{num_classes - 1} "
            f"({len(bad)} such labels)."
        )
    for start in range(0, len(x) if is_float else 0, _CHECKED_AT_A_TIME):
        rows = x[start : start + _CHECKED_AT_A_TIME].reshape(-1, max(1, x[0].size))
        with np.errstate(over="ignore"):
            bad = np.flatnonzero(~np.isfinite(rows.astype(np.float32, copy=False)).all(axis=1))
        if len(bad):
            raise ExamplesError(
                f"{where}: input of example {start + bad[0]} is not finite as float32, the type of "
                "models."
            )


def checked_images(images: LabelledImages, *, takes_original_split: bool) -> LabelledImages:
    """Checks that a data set can be divided among clients.

    Args:
        images: The data set.
        takes_original_split: Whether the original training split is used; if not, `num_train` may
            be 0.

    Returns:
        The same data set with NumPy arrays: `y` of int32, `writer` of int64.

    Raises:
        ExamplesError: See `check_examples`; or `images` is not `LabelledImages` or has no rows, or
            `num_train` or `writer` do not fit the rows.
    """
    if not isinstance(images, LabelledImages):
        raise ExamplesError(
            "images, the result of a function in DATASETS, must be LabelledImages, got "
            f"{images!r:.80}."
        )
    check_examples(images.x, images.y, images.num_classes, images.name)
    num_rows = len(images.y)
    if not num_rows:
        raise ExamplesError(f"{images.name}: there are no examples to divide among clients.")
    num_train = whole(int(takes_original_split), num_rows)
    num_train.check(f"{images.name}: num_train", images.num_train, ExamplesError)
    images = images._replace(
        x=np.asarray(images.x), y=np.asarray(images.y).astype(np.int32, copy=False)
    )
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
