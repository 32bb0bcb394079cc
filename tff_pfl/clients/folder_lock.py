"""The lock of a directory of client states."""

import fcntl
import os
import weakref

from tff_pfl.clients.errors import ForeignStateError, StateStoreError

_LOCK_FILE = "client_states.lock"  # Present in every directory that is a store, and in no other.


class FolderLock:
    """Keeps a directory for one who writes to it, or for several who read.

    It ends with `release`, or when nobody has the object any more.
    """

    def __init__(self, path: str, *, read_only: bool):
        """Takes the lock of a directory, which is made unless it is for reading.

        Raises:
            ForeignStateError: If the directory holds something else, or is a file.
            StateStoreError: If it is locked, here or in another process.
        """
        try:
            if not read_only:
                os.makedirs(path, exist_ok=True)
            names = os.listdir(path)
        except (FileExistsError, NotADirectoryError) as e:
            raise ForeignStateError(
                f"Expected a directory for the client states at {path}, found a file."
            ) from e
        if names and _LOCK_FILE not in names:
            raise ForeignStateError(
                f"{path} holds something else than a store of client states, such as "
                f"{min(names)!r}. Give a new or an empty directory."
            )
        flags = os.O_RDONLY if read_only else os.O_RDWR | os.O_CREAT
        descriptor = os.open(os.path.join(path, _LOCK_FILE), flags)
        self.release = weakref.finalize(self, os.close, descriptor)
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if read_only else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError as e:
            self.release()
            raise StateStoreError(
                f"The client states in {path} are open already, here or in another process. "
                "Close them there, or give another directory."
            ) from e
