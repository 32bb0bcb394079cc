"""Where errors come from."""

import traceback


def place(error: Exception) -> str:
    """Where an error was raised, outside of installed packages, for the end of a message."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "site-packages" not in frame.filename]
    return f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
