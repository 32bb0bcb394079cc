"""What a run says of the software and the machines that it was computed with."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tff_pfl.experiment.run_directory import OutputDirectoryError, RunDirectory, read_json, reading

_FILE = "versions.json"
CODE = "code of "  # a module of a user's own, in the names of versions


class Session(NamedTuple):
    """With what some rounds of a run were computed, up to those of the next session.

    Attributes:
        rounds_before: How many rounds others had done.
        versions: See `tff_pfl.experiment.current_versions`.
    """

    rounds_before: int
    versions: Mapping[str, Any]

    @property
    def code(self) -> dict[str, str]:
        """Those of a user's own modules, see `tff_pfl.experiment.versions.code_of`."""
        return {name: of for name, of in self.versions.items() if name.startswith(CODE)}


def recorded_sessions(run_dir: str | os.PathLike) -> list[Session]:
    """What a run was computed with, in order; empty, if it does not say.

    Raises:
        OutputDirectoryError: If the file is damaged.
    """
    path = os.path.join(run_dir, _FILE)
    if not os.path.exists(path):
        return []
    try:
        content = read_json(path)
        with reading(path):
            return [
                Session(of["rounds_before"], dict(of["versions"])) for of in content["sessions"]
            ]
    except OutputDirectoryError as error:
        raise OutputDirectoryError(f"{error} Move it away: no number depends on it.") from error


def write_sessions(directory: RunDirectory, sessions: Sequence[Session]) -> None:
    """Writes what `recorded_sessions` reads."""
    directory.write_json(_FILE, {"sessions": [session._asdict() for session in sessions]})
