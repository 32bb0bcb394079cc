"""Writes files completely or not at all."""

import contextlib
import json
import math
import os
import pathlib
import re
import shutil
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO, Any

import numpy as np

_NOT_FINITE = {text: float(text) for text in ("nan", "inf", "-inf")}
# NumPy's `savez_compressed` uses 6, which is 11 times slower for sorted ids and saves no bytes.
_LEVEL = 1
# The temporary names of `whole_file`, and of TFF's managers, which also write folders.
_TEMPORARY = re.compile(r".+\.\d+\.tmp|.+_temp\d{4}")


def with_home(arguments: Iterable[str]) -> list[str]:
    """Returns arguments of a program in which the value of `--FLAG=~/...` is a path without `~`."""

    def expanded(argument):
        name, equals, value = argument.partition("=")
        return f"{name}={os.path.expanduser(value)}" if equals and name[:1] == "-" else argument

    return list(map(expanded, arguments))


@contextlib.contextmanager
def without_new_folders(root: str | os.PathLike) -> Iterator[None]:
    """Removes empty folders that its body makes, if it fails: `root`, those above and in it."""
    above = [pathlib.Path(root), *pathlib.Path(root).parents]
    before = {folder for folder in above if folder.exists()} | set(_folders_in(root))
    try:
        yield
    except BaseException:
        for folder in (*_folders_in(root), *above):
            with contextlib.suppress(OSError):  # not empty
                if folder not in before:
                    folder.rmdir()
        raise


def _folders_in(root) -> list[pathlib.Path]:
    """Returns all folders in a folder, the innermost first."""
    found = os.walk(root, topdown=False)
    return [pathlib.Path(folder, name) for folder, names, _ in found for name in names]


@contextlib.contextmanager
def whole_file(path: str | os.PathLike, mode: str = "w", **options: Any) -> Iterator[IO]:
    """Opens a file for writing, and replaces it on the disk once it is complete.

    The old file stays if an error occurs.

    Args:
        path: The file.
        mode: As in `open`, for writing.
        **options: As in `open`.
    """
    path = os.path.expanduser(path)
    # The name has the process's id, because another process may write the same file.
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with writing(path):
            with open(temporary, mode, **options) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.remove(temporary)
        raise
    sync_folder(os.path.dirname(os.path.abspath(path)))


def remove_temporary_files(folder: str | os.PathLike, names: str = "*") -> None:
    """Removes the temporary files that `whole_file` and TFF's managers leave in a killed process.

    Args:
        folder: The folder, which may not exist.
        names: A pattern of the names of the final files. No process may be writing such a file.
    """
    for left in pathlib.Path(folder).glob(f"{names}[._]*"):
        if _TEMPORARY.fullmatch(left.name):
            shutil.rmtree(left) if left.is_dir() else left.unlink()


@contextlib.contextmanager
def writing(path: str | os.PathLike) -> Iterator[None]:
    """Adds the file's name to system errors that lack it, such as the error of a full disk."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = os.fspath(path)
        raise


def save_compressed(file: IO[bytes], arrays: Mapping[str, Any]) -> None:
    """Writes the file of `numpy.savez_compressed(file, **arrays)` several times as fast.

    Args:
        file: A file that is open for writing bytes.
        arrays: A mapping from names to arrays, or to numbers or text, which become arrays.
    """
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, np.asanyarray(array), allow_pickle=False)


def write_parquet(path: str | os.PathLike, columns: Mapping[str, np.ndarray]) -> None:
    """Writes columns of equal length as a Parquet file, completely or not at all.

    Args:
        path: The file.
        columns: Arrays `[n, ...]` by name. Entries that are arrays become lists of a fixed size.
    """
    import pyarrow.parquet

    table = pyarrow.table({name: _arrow(column) for name, column in columns.items()})
    with whole_file(path, "wb") as file:
        pyarrow.parquet.write_table(table, file)


def _arrow(column: np.ndarray) -> Any:
    import pyarrow

    if column.ndim == 1:
        return pyarrow.array(column)
    entries = _arrow(column.reshape(-1, *column.shape[2:]))
    return pyarrow.FixedSizeListArray.from_arrays(entries, column.shape[1])


def write_json(path: str | os.PathLike, value: Any) -> None:
    """Writes a value as strict JSON (see `to_json`), completely or not at all."""
    with whole_file(path) as file:
        file.write(to_json(value, indent=2) + "\n")


def to_json(value: Any, indent: int | None = None) -> str:
    """Returns strict JSON, which any parser accepts: NaN and infinities become null."""
    return json.dumps(finite(value), indent=indent, allow_nan=False)


def finite(value: Any) -> Any:
    """Replaces NaN and infinities in a JSON value by `None`."""
    return _changed(value, lambda leaf: None if _is_not_finite(leaf) else leaf)


def spelled_out(value: Any) -> Any:
    """Replaces NaN and infinities in a JSON value by the texts "nan", "inf" and "-inf"."""
    return _changed(value, lambda leaf: str(float(leaf)) if _is_not_finite(leaf) else leaf)


def not_spelled_out(value: Any) -> Any:
    """Replaces the texts of `spelled_out` in a JSON value by their numbers."""
    return _changed(value, lambda x: _NOT_FINITE.get(x, x) if isinstance(x, str) else x)


def _is_not_finite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _changed(value: Any, change: Callable[[Any], Any]) -> Any:
    """Changes the leaves of nested mappings and sequences."""
    if isinstance(value, Mapping):
        return {key: _changed(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_changed(item, change) for item in value]
    return change(value)


def sync_folder(path: str | os.PathLike) -> None:
    """Flushes the names of a folder's files to the disk, so that they survive a power cut."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def folder_name(label: str) -> str:
    """Turns a label into the name of a folder."""
    return re.sub(r"[^A-Za-z0-9.=+-]+", "_", label).strip("_.")
