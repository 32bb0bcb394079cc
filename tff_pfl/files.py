"""Files that are there completely or not at all."""

import contextlib
import json
import math
import os
import pathlib
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

_NOT_FINITE = {text: float(text) for text in ("nan", "inf", "-inf")}
# Names given by `whole_file`, and by TFF's managers, which also write folders.
_TEMPORARY = re.compile(r".+\.\d+\.tmp|.+_temp\d{4}")


@contextlib.contextmanager
def whole_file(path: str | os.PathLike, mode: str = "w", **options: Any) -> Iterator[IO]:
    """Opens a file that is there completely, and on the disk, or as it was before.

    Args:
        path: The file.
        mode: Of `open`, for writing.
        **options: Of `open`.
    """
    # Of this process alone, as others may write the same file.
    temporary = f"{os.fspath(path)}.{os.getpid()}.tmp"
    try:
        with writing(path), open(temporary, mode, **options) as file:
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
    """Removes what `whole_file` and TFF's managers leave when a process is killed.

    Args:
        folder: Which may not be there.
        names: A pattern of the files that nobody writes at the moment.
    """
    for left in pathlib.Path(folder).glob(f"{names}[._]*"):
        if _TEMPORARY.fullmatch(left.name):
            shutil.rmtree(left) if left.is_dir() else left.unlink()


@contextlib.contextmanager
def writing(path: str | os.PathLike) -> Iterator[None]:
    """Within, an error of the system that names no file, such as of a full disk, names this one."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = os.fspath(path)
        raise


def write_json(path: str | os.PathLike, value: Any) -> None:
    """Writes `to_json` of a value, completely or not at all."""
    with whole_file(path) as file:
        file.write(to_json(value, indent=2) + "\n")


def to_json(value: Any, indent: int | None = None) -> str:
    """Returns strict JSON, which any reader takes: NaN and infinities are null."""
    return json.dumps(finite(value), indent=indent, allow_nan=False)


def finite(value: Any) -> Any:
    """Returns a JSON value with `None` in place of NaN and infinities."""
    return _changed(value, lambda leaf: None if _is_not_finite(leaf) else leaf)


def spelled_out(value: Any) -> Any:
    """Returns a JSON value with the texts "nan", "inf" and "-inf" in place of these numbers."""
    return _changed(value, lambda leaf: str(float(leaf)) if _is_not_finite(leaf) else leaf)


def not_spelled_out(value: Any) -> Any:
    """Returns a JSON value with the texts of `spelled_out` as numbers again."""
    return _changed(value, lambda x: _NOT_FINITE.get(x, x) if isinstance(x, str) else x)


def _is_not_finite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _changed(value: Any, change: Callable[[Any], Any]) -> Any:
    """Changes the leaves of nested mappings and sequences."""
    if isinstance(value, Mapping):
        return {key: _changed(of, change) for key, of in value.items()}
    if isinstance(value, list | tuple):
        return [_changed(of, change) for of in value]
    return change(value)


def sync_folder(path: str | os.PathLike) -> None:
    """Files that were renamed in a folder keep their names, whatever happens to the power."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
