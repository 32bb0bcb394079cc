"""A part's figures: a JSON that is written anew at each change, so that it has all there is."""

import json
import os
import pathlib
import time
from typing import Any

import pandas as pd

from tff_pfl.files import write_json

ROOT = pathlib.Path(__file__).resolve().parents[2]
_WIDEST = 44  # longer texts and lists are in the file, not in the table


class CheckError(RuntimeError):
    """A part found something wrong, or the check cannot be run as it was asked for."""


class Report:
    """The figures of a part, in a file, and how much time the part has.

    Its status is `running`; `complete`; `partial`, if time was too short for what `left_out`
    names, and the next run goes on; or `failed`. A record is a dict of figures whose `what` is
    unique; one with `error` is of something that failed. What was in the file stays: so a part
    that is run again goes on.

    Args:
        path: The file.
        devices: "GPU", or "CPU" for toy sizes on logical CPU devices.
        seconds: How long the process may take.
    """

    def __init__(self, path: str | os.PathLike, devices: str, seconds: float = 0.0):
        self.path = pathlib.Path(path)
        self.folder = self.path.parent
        self.devices, self.is_toy = devices, devices == "CPU"
        self._started, self._seconds = time.monotonic(), seconds
        self.content: dict[str, Any] = {
            "devices": devices,
            "status": "running",
            "message": "",
            "in_progress": None,
            "notes": [],
            "left_out": [],
            "records": [],
        }
        if self.path.exists():
            self.content |= json.loads(self.path.read_text())

    def __getitem__(self, key: str) -> Any:
        return self.content[key]

    def elapsed(self) -> float:
        """Returns the seconds since the process was started."""
        return time.monotonic() - self._started

    def left(self) -> float:
        """Returns the seconds until the part should stop: a tenth of its time is for the end."""
        return 0.9 * self._seconds - self.elapsed()

    def update(self, **values) -> None:
        """Sets and saves."""
        self.content |= values
        write_json(self.path, self.content)

    def restart(self) -> None:
        """Forgets what failed or was left out, but not what a process died of."""
        kept = [r for r in self["records"] if "error" not in r or r.get("died")]
        fresh = {"message": "", "notes": [], "left_out": [], "in_progress": None}
        self.update(status="running", records=kept, **fresh)

    def is_due(self, what: str, expected_seconds: float = 0.0) -> bool:
        """Says that something is measured next, unless it has been, or time is too short."""
        if self.find(what):
            return False
        if self.left() < expected_seconds:
            self.leave_out(f"{what}: {max(self.left(), 0):.0f} s were left")
            return False
        self.update(in_progress=what)
        return True

    def add(self, what: str, **figures) -> None:
        """Adds a record, in the place of one of the same `what`."""
        records = [record for record in self["records"] if record["what"] != what]
        self.update(records=[*records, {"what": what, **figures}], in_progress=None)

    def find(self, what: str) -> dict[str, Any] | None:
        """Returns the record, if there is one."""
        return next((r for r in self["records"] if r["what"] == what), None)

    def note(self, text: str) -> None:
        """Adds what the reader should know."""
        self.update(notes=list(dict.fromkeys([*self["notes"], text])))

    def leave_out(self, text: str) -> None:
        """Adds what time was too short for."""
        self.update(left_out=[*self["left_out"], text])

    def end(self) -> None:
        """Sets the status after a process that has done all it could."""
        failed = [record["what"] for record in self["records"] if "error" in record]
        status = "failed" if failed else "partial" if self["left_out"] else "complete"
        self.update(status=status, message=f"see {', '.join(failed)}" if failed else "")

    def fail(self, message: str) -> None:
        """Sets the status after a process that has not."""
        self.update(status="failed", message=message, in_progress=None)

    def table(self) -> str:
        """Returns the records as lines of text, and below them all that is to be said."""
        shown = pd.DataFrame([{k: _cell(v) for k, v in r.items()} for r in self["records"]])
        shown = shown.drop(columns=["error", "died"], errors="ignore").fillna("")
        lines = [] if shown.empty else [shown.to_string(index=False)]
        lines += [
            f"  error: {r['what']}: {r['error'][:300]}" for r in self["records"] if "error" in r
        ]
        lines += [f"  note: {note}" for note in self["notes"]]
        lines += [f"  no time for: {what}" for what in self["left_out"]]
        if self["message"]:
            lines.append(f"  {self['status']}: {self['message'][:300]}")
        return "\n".join(lines)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | dict):
        return f"{len(value)}, see the file"
    text = "" if value is None else str(value)
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 3]}..."
