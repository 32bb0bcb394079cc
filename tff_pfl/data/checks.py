"""Checks of arrays of examples."""

import numpy as np

from tff_pfl.data.sources import LabelledImages
from tff_pfl.ranges import whole

_CHECKED_AT_A_TIME = 1 << 16  # rows; bounds memory


class ExamplesError(ValueError):
    """Arrays of examples that no model can be trained on; the message names the first bad one."""


def check_examples(x: np.ndarray, y: np.ndarray, num_classes: int, where: str = "data set") -> None:
    """Checks that a model can be trained on arrays.

    Args:
        x: `[n, ...]` inputs.
        y: `[n]` class labels.
        num_classes: Number of classes.
        where: A name of the arrays, for the message.

    Raises:
        ExamplesError: x and y differ in length, labels are not integers within
            0..num_classes-1, or an input is not a number that TensorFlow has, or not finite as
            float32, which models take. The message names the first bad example.
    """
    whole(1).check(f"{where}: num_classes", num_classes, ExamplesError)
    if np.ma.isMaskedArray(x) or np.ma.isMaskedArray(y):
        raise ExamplesError(f"{where}: arrays are masked. Fill them, as by x.filled(0).")
    x, y = np.asarray(x), np.asarray(y)
    if y.ndim != 1 or y.dtype.kind not in "iu":
        raise ExamplesError(
            f"{where}: labels must be integers of shape [n], got {y.dtype} of shape {y.shape}."
        )
    if x.ndim == 0 or len(x) != len(y):
        raise ExamplesError(
            f"{where}: inputs of shape {x.shape} for {len(y)} labels; each input needs one label."
        )
    is_float = x.dtype.kind == "f" or x.dtype.name == "bfloat16"  # whose kind is not NumPy's
    if not (is_float or x.dtype.kind in "biu") or x.dtype.itemsize > 8:
        raise ExamplesError(
            f"{where}: inputs must be numbers of up to 64 bits that are not complex, got {x.dtype}."
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
                f"{where}: input of example {start + bad[0]} is not finite as float32, which "
                "models take."
            )


def checked_images(images: LabelledImages, *, takes_original_split: bool) -> LabelledImages:
    """Checks that a data set can be divided among clients.

    Args:
        images: The data set.
        takes_original_split: Whether `num_train` says what is trained on; else it may be 0.

    Returns:
        The same with arrays: `y` of int32, `writer` of int64.

    Raises:
        ExamplesError: See `check_examples`; or `images` is not `LabelledImages`, has no rows, or
            `num_train` or `writer` do not fit them.
    """
    if not isinstance(images, LabelledImages):
        raise ExamplesError(
            "What is divided among clients, as a function of DATASETS returns it, must be "
            f"LabelledImages, got {images!r:.80}."
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
            f"{images.name}: writers {writer.min()}..{writer.max()} of {num_rows} rows: clients "
            "are numbered from 0 without gaps, as np.unique(writer, return_inverse=True)[1] does."
        )
    return images._replace(writer=writer.astype(np.int64, copy=False))
