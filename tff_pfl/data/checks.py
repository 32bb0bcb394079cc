"""What arrays of examples must be like."""

import numpy as np

from tff_pfl.data.sources import LabelledImages

_CHECKED_AT_A_TIME = 1 << 16  # rows; bounds memory


class ExamplesError(ValueError):
    """Arrays of examples that no model can be trained on; the message names the first bad one."""


def check_examples(x: np.ndarray, y: np.ndarray, num_classes: int, where: str = "data set") -> None:
    """Refuses arrays that no model can be trained on.

    Args:
        x: `[n, ...]` inputs.
        y: `[n]` class labels.
        num_classes: Number of classes.
        where: What the arrays are, for the message.

    Raises:
        ExamplesError: x and y differ in length, labels are not integers within
            0..num_classes-1, or an input is no number that TensorFlow has, or not finite as
            float32, which models take. The message names the first bad example.
    """
    if not isinstance(num_classes, int | np.integer) or num_classes < 1:
        raise ExamplesError(
            f"{where}: num_classes must be a whole number of at least 1, got {num_classes!r}."
        )
    if np.ma.isMaskedArray(x) or np.ma.isMaskedArray(y):
        raise ExamplesError(f"{where}: arrays are masked. Give them without, as by x.filled(0).")
    x, y = np.asarray(x), np.asarray(y)
    if y.ndim != 1 or y.dtype.kind not in "iu":
        raise ExamplesError(
            f"{where}: labels must be integers of shape [n], got {y.dtype} of shape {y.shape}."
        )
    if x.ndim == 0 or len(x) != len(y):
        raise ExamplesError(
            f"{where}: inputs of shape {x.shape} for {len(y)} labels; each input needs one label."
        )
    is_bfloat16 = x.dtype.name == "bfloat16"  # no kind of NumPy's
    if not (is_bfloat16 or (x.dtype.kind in "biuf" and x.dtype.itemsize <= 8)):
        raise ExamplesError(
            f"{where}: inputs must be numbers, got {x.dtype}. Those of up to 64 bits can be read."
        )
    bad = np.flatnonzero((y < 0) | (y >= num_classes))
    if len(bad):
        raise ExamplesError(
            f"{where}: label {y[bad[0]]} of example {bad[0]} is not within 0..{num_classes - 1} "
            f"({len(bad)} such labels)."
        )
    if is_bfloat16 or x.dtype.kind == "f":
        chunks = (x[i : i + _CHECKED_AT_A_TIME] for i in range(0, len(x), _CHECKED_AT_A_TIME))
        with np.errstate(over="ignore"):
            floats = (chunk.astype(np.float32, copy=False) for chunk in chunks)
            finite = [np.isfinite(chunk).all(axis=tuple(range(1, x.ndim))) for chunk in floats]
        bad = np.flatnonzero(~np.concatenate(finite)) if finite else ()
        if len(bad):
            raise ExamplesError(
                f"{where}: input of example {bad[0]} is not finite ({len(bad)} such examples) "
                "as float32, which models take."
            )


def checked_images(images: LabelledImages, *, takes_original_split: bool) -> LabelledImages:
    """Refuses a data set that cannot be divided among clients.

    Args:
        images: The data set.
        takes_original_split: Whether `num_train` says what is trained on; else it may be 0.

    Returns:
        The same with arrays: `y` of int32, `writer` of int64.

    Raises:
        ExamplesError: See `check_examples`; or `num_train` or `writer` is not that of its rows, of
            which there are none, or fewer than natural clients; or it is none.
    """
    if not isinstance(images, LabelledImages):
        raise ExamplesError(
            "What is divided among clients, as a function of DATASETS returns it, must be "
            f"LabelledImages, got {images!r:.80}. Where clients are known, `writer` says whose "
            "each row is, and the partitioner 'natural' goes by it."
        )
    x, y, num_train, writer = images.x, images.y, images.num_train, images.writer
    check_examples(x, y, images.num_classes, images.name)
    if not len(y):
        raise ExamplesError(f"{images.name}: there are no examples to divide among clients.")
    least = int(takes_original_split)
    if not isinstance(num_train, int | np.integer) or not least <= num_train <= len(y):
        raise ExamplesError(
            f"{images.name}: num_train={num_train!r} must be an integer within {least}..{len(y)}, "
            "of the rows that there are."
        )
    images = images._replace(x=np.asarray(x), y=np.asarray(y).astype(np.int32, copy=False))
    if writer is None:
        return images
    writer = np.asarray(writer)
    if writer.shape != (len(y),) or writer.dtype.kind not in "iu" or np.any(writer < 0):
        raise ExamplesError(
            f"{images.name}: writer must be integers from 0 of shape [{len(y)}], one a row, got "
            f"{writer.dtype} of shape {writer.shape}, or some below 0."
        )
    if writer.max() >= len(y):
        raise ExamplesError(
            f"{images.name}: writer {writer.max()} for {len(y)} rows: clients are numbered from 0 "
            "without gaps, as np.unique(writer, return_inverse=True)[1] does."
        )
    return images._replace(writer=writer.astype(np.int64, copy=False))
