"""Saves the state of a federated program with checksums of its files."""

import os
import zlib
from collections.abc import Sequence
from typing import Any

import tensorflow_federated as tff

from tff_pfl.experiment.metrics_log import changed_file_error
from tff_pfl.experiment.run_directory import OutputDirectoryError, RunDirectory, read_json, reading

_FILE = "checksums.json"


class CheckedStateManager(tff.program.ProgramStateManager):
    """A program state manager that detects files changed since a state was saved.

    Files may have grown since: the program releases the rounds after the state again.
    """

    def __init__(
        self,
        manager: tff.program.ProgramStateManager,
        directory: RunDirectory,
        names: Sequence[str],
    ):
        """Prepares the manager.

        Args:
            manager: The manager that saves the states.
            directory: The directory of the files, which also receives `checksums.json`.
            names: The names of the files, such as the file of a
                `tff.program.CSVFileReleaseManager`.
        """
        self._manager = manager
        self._directory = directory
        self._names = tuple(names)

    async def get_versions(self) -> list[int] | None:
        """Returns the saved versions."""
        return await self._manager.get_versions()

    async def load(self, version: int, structure: Any) -> Any:
        """Returns a saved state.

        Raises:
            OutputDirectoryError: A file is missing or has changed since the state was saved, or
                `checksums.json` is missing.
        """
        path = self._directory.file(_FILE)
        if not self._directory.has(_FILE):
            raise OutputDirectoryError(
                f"Cannot resume the program in {self._directory.path}: its {_FILE} is missing. Put "
                "it back, or choose another directory."
            )
        with reading(path):
            for name, recorded in read_json(path)[str(version)].items():
                file = self._directory.file(name)
                if [*_beginning(file, recorded[0])] != recorded:
                    raise changed_file_error(file)
        return await self._manager.load(version, structure)

    async def save(self, program_state: Any, version: int) -> None:
        """Saves the checksums of the files, and then a state."""
        kept = map(str, await self.get_versions() or ())
        before = read_json(self._directory.file(_FILE)) if self._directory.has(_FILE) else {}
        content = {key: before[key] for key in kept if key in before}
        content[str(version)] = {
            name: _beginning(self._directory.file(name)) for name in self._names
        }
        self._directory.write_json(_FILE, content)
        await self._manager.save(program_state, version)


def _beginning(path: str, size: int = -1) -> tuple[int, int]:
    """Returns the size and checksum of a file's first bytes; a missing file is empty."""
    if not os.path.exists(path):
        return 0, 0
    with open(path, "rb") as file:
        content = file.read(size)
    return len(content), zlib.crc32(content)
