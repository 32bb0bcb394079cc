"""Finds the user's own lines in tracebacks, and shortens tracebacks to them."""

import functools
import linecache
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TypeVar, cast

_LIBRARY = os.path.dirname(os.path.dirname(__file__)) + os.sep
_INSTALLED = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), "<frozen "})
_SHORT = "__has_short_traceback__"
_F = TypeVar("_F", bound=Callable)


def place(error: BaseException) -> str:
    """Returns the line of the user's code that led to an error, for the end of a message.

    This is the innermost line outside of this library and of installed packages. If no such line
    exists, it is the innermost line of this library.
    """
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if frame.filename.startswith(_LIBRARY)]
    return line_of_user(frames) or _line(ours)


def line_of_user(frames: Sequence, below: str = "") -> str:
    """Returns the innermost line outside of this library and of installed packages, or "".

    Args:
        frames: The frames of a traceback, the innermost last.
        below: The file from whose innermost frame on lines count.
    """
    for frame in reversed(frames):
        if is_users(file := frame.filename):
            return _line([frame])
        if file == below:
            break
    return ""


def _line(frames: list) -> str:
    return "".join(f" ({frame.filename}, line {frame.lineno})" for frame in frames[-1:])


def with_short_tracebacks(function: _F) -> _F:
    """Makes a function's tracebacks end with the user's own line if the user can mend the error.

    These are errors that the library raises on purpose, and errors of a user's function that the
    library calls. Other tracebacks are left as they are, and so are all after
    `tf.debugging.disable_traceback_filtering()`.
    """

    @functools.wraps(function)
    def call(*args, **kwargs):
        try:
            return function(*args, **kwargs)
        except Exception as error:
            if _is_filtering():
                for each in _chain(error):
                    _shorten(each)
            raise

    return cast(_F, call)


def _is_filtering() -> bool:
    tf = sys.modules.get("tensorflow")
    return tf is None or tf.debugging.is_traceback_filtering_enabled()


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an error and those that a traceback shows before it."""
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _shorten(error: BaseException) -> None:
    """Leaves the user's files in an error's traceback, unless they would tell too little."""
    entries, found = [], error.__traceback__
    while found is not None:
        entries.append(found)
        found = found.tb_next
    users = [entry for entry in entries if is_users(_file(entry))]
    is_ours = bool(entries) and _file(entries[-1]).startswith(_LIBRARY)
    if getattr(error, _SHORT, _raises(entries[-1]) if is_ours else bool(users)):
        setattr(error, _SHORT, True)  # callers of this library have only their own entries left
        error.__traceback__ = None
        for entry in reversed(users):
            entry.tb_next, error.__traceback__ = error.__traceback__, entry


def _file(entry: TracebackType) -> str:
    return entry.tb_frame.f_code.co_filename


def _raises(entry: TracebackType) -> bool:
    """Returns whether the line raises an error on purpose."""
    return linecache.getline(_file(entry), entry.tb_lineno).lstrip().startswith("raise")


@functools.cache
def is_users(file: str) -> bool:
    """Returns whether a file is a user's own, neither installed nor of this library."""
    return not ("site-packages" in file or file.startswith((*_INSTALLED, _LIBRARY, "<string>")))
