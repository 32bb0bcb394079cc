"""Files that are there completely or not at all."""

import contextlib
import json
import os
import pathlib
import re
from collections.abc import Iterator
from typing import IO, Any

_TEMPORARY = re.compile(r".+\.\d+\.tmp")


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
    """Removes what `whole_file` leaves of processes that are killed.

    Args:
        folder: Which may not be there.
        names: A pattern of the files that nobody writes at the moment.
    """
    for left in pathlib.Path(folder).glob(f"{names}.*.tmp"):
        if _TEMPORARY.fullmatch(left.name):
            left.unlink()


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
    """Writes a file completely or not at all."""
    with whole_file(path) as file:
        json.dump(value, file, indent=2)
        file.write("\n")


def sync_folder(path: str | os.PathLike) -> None:
    """Files that were renamed in a folder keep their names, whatever happens to the power."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
