"""What a study keeps in its directory, as JSON."""

import os
from typing import Any

from tff_pfl.experiment.run_directory import read_json

RECORD = "study.json"
"""The flags of each run, by folders."""


def read_record(path: str | os.PathLike) -> dict[str, Any]:
    """What is in a file; nothing if there is none.

    Raises:
        OutputDirectoryError: If the file is damaged.
    """
    return read_json(os.fspath(path)) if os.path.exists(path) else {}
