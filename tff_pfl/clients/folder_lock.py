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
            StateStoreError: If it is locked, here or in another process, or cannot be opened.
        """
        lock_file = os.path.join(path, _LOCK_FILE)
        try:
            if not read_only:
                os.makedirs(path, exist_ok=True)
            names = os.listdir(path)
            if names and _LOCK_FILE not in names:
                raise ForeignStateError(
                    f"{path} holds something else than a store of client states, such as "
                    f"{min(names)!r}. Give a new or an empty directory."
                )
            descriptor = os.open(lock_file, os.O_RDONLY if read_only else os.O_RDWR | os.O_CREAT)
        except (FileExistsError, NotADirectoryError) as e:
            raise ForeignStateError(
                f"Expected a directory for the client states at {path}, found a file."
            ) from e
        except FileNotFoundError as e:
            raise StateStoreError(
                f"There are no client states to be read in {path}. Give the directory of a store, "
                "or open it without read_only, which makes one."
            ) from e
        except OSError as e:
            raise StateStoreError(
                f"Cannot open the client states in {path} ({e}). Give the directory of a store "
                f"that this user may {'read' if read_only else 'write'}."
            ) from e
        self._identities: dict[str, tuple[int, int] | None] = {}
        self.release = weakref.finalize(self, os.close, descriptor)
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if read_only else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError as e:
            self.release()
            raise StateStoreError(
                f"The client states in {path} are open already, here or in another process. "
                "Close them there, or give another directory."
            ) from e
        self.watch(lock_file)

    def watch(self, file: str) -> None:
        """Remembers which file in the directory this is; it is open until `release`."""
        self._identities[file] = _identity(file)

    def is_in_place(self) -> bool:
        """Whether the lock and the watched files are still those in the directory."""
        return all(_identity(file) == found for file, found in self._identities.items())


def _identity(file: str) -> tuple[int, int] | None:
    """What no other file has at the same time; `None` if there is no such file."""
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_dev, status.st_ino
