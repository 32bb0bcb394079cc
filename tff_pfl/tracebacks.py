"""The line of code that an error comes from."""

import os
import sysconfig
import traceback

_LIBRARY = os.path.dirname(__file__)
_INSTALLED = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), "<frozen "})


def place(error: Exception) -> str:
    """Returns the line of a user's code that led to an error, for the end of a message.

    It is the last line outside of this library and of installed packages; if there is none, the
    last line of this library.
    """
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "site-packages" not in frame.filename and not frame.filename.startswith(_INSTALLED)
    ]
    own = [frame for frame in frames if not frame.filename.startswith(_LIBRARY + os.sep)]
    last = (own or frames)[-1:]
    return "".join(f" ({frame.filename}, line {frame.lineno})" for frame in last)
