"""The sessions of a run: with which software and machines its rounds were computed."""

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from tff_pfl.experiment.run_directory import read_json, reading

SESSIONS = "versions.json"
CODE = "code of "  # a module of a user's own, in the names of versions


class Session(NamedTuple):
    """With what some rounds of a run were computed, up to those of the next session.

    Attributes:
        rounds_before: Rounds that earlier sessions did.
        versions: See `tff_pfl.experiment.current_versions`.
    """

    rounds_before: int
    versions: Mapping[str, Any]

    @property
    def code(self) -> dict[str, str]:
        """The versions of a user's own modules, see `tff_pfl.experiment.versions.code_of`."""
        return {name: of for name, of in self.versions.items() if name.startswith(CODE)}


def recorded_sessions(run_dir: str | os.PathLike) -> list[Session]:
    """Reads the sessions of a run, in order; none if it did not record any.

    Raises:
        OutputDirectoryError: If the file is damaged.
    """
    path = os.path.join(run_dir, SESSIONS)
    if not os.path.exists(path):
        return []
    with reading(path):
        return [Session(of["rounds_before"], of["versions"]) for of in read_json(path)["sessions"]]
