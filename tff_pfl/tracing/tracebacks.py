"""Finds the line of code that raised an error."""

import os
import sysconfig
import traceback

_LIBRARY = os.path.dirname(os.path.dirname(__file__))
_INSTALLED = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), "<frozen "})


def place(error: Exception) -> str:
    """Returns the line of the user's code that led to an error, for the end of a message.

    This is the innermost line outside of this library and of installed packages. If no such line
    exists, it is the innermost line of this library.
    """
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "site-packages" not in frame.filename and not frame.filename.startswith(_INSTALLED)
    ]
    own = [frame for frame in frames if not frame.filename.startswith(_LIBRARY + os.sep)]
    last = (own or frames)[-1:]
    return "".join(f" ({frame.filename}, line {frame.lineno})" for frame in last)
