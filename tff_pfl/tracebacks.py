"""Where errors come from."""

import os
import traceback

# By which tensors are compared: what is wrong is where that was written.
_EQUALITY = os.path.join(os.path.dirname(__file__), "equality.py")


def place(error: Exception) -> str:
    """Where an error was raised, outside of installed packages, for the end of a message."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        frame
        for frame in frames
        if "site-packages" not in frame.filename and frame.filename != _EQUALITY
    ]
    return f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
