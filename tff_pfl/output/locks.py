"""Locks files and folders, also on file systems that several machines share."""

import fcntl
import os


def lock(
    descriptor: int, path: str | os.PathLike, *, shared: bool = False, waits: bool = False
) -> None:
    """Locks an open file or folder until it is closed, or its process ends.

    Args:
        descriptor: The descriptor of the open file or folder.
        path: Its path, for messages.
        shared: Whether others may share the lock.
        waits: Whether to wait until others have released it.

    Raises:
        BlockingIOError: Another process has locked it.
        OSError: Its file system has no locks.
    """
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(descriptor, kind if waits else kind | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError as error:
        raise OSError(
            f"The file system of {os.fspath(path)} has no locks ({error.strerror}), which keep two "
            "programs from writing to one folder. Choose a folder on another file system."
        ) from error
