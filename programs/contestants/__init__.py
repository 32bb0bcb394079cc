"""What `programs/side_by_side.py` runs: the same work by other frameworks, in their own Pythons.

Each `with_NAME.py` is a program for a Python that has that framework; `common.py` and
`torch_parts.py` are for these alone, and need nothing of this library.
"""

from contestants.driver import (
    BARE,
    FRAMEWORKS,
    Contestant,
    ContestantError,
    Work,
    compare,
    machine,
    place,
)
from contestants.table import markdown_table

__all__ = [
    "BARE",
    "FRAMEWORKS",
    "Contestant",
    "ContestantError",
    "Work",
    "compare",
    "machine",
    "markdown_table",
    "place",
]
