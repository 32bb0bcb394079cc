"""A part's JSON: written anew at each change, so that it has all there is whenever a part ends."""

import json
import os
import pathlib
from typing import Any

from tff_pfl.files import write_json
from tff_pfl.tables import aligned

# Longer texts and lists are in the file, not in the table.
_WIDEST = 44
_AS_TEXT = ("error", "out_of_memory")
_HIDDEN = (*_AS_TEXT, "died")


class Report:
    """The figures of a part, in a file.

    Its status is `running`; `complete`; `partial`, if time was too short for what `left_out`
    names, and the next run goes on; `failed`; or `left_out`, if there was no time at all.

    A record is a dict of figures whose `what` is unique; one with `error` is of something that
    failed. What was in the file stays: so a part that is run again can go on.

    Args:
        path: The file.
        **head: What the file begins with, if there is none yet.
    """

    def __init__(self, path: str | os.PathLike, **head):
        self.path = pathlib.Path(path)
        self.content: dict[str, Any] = head | {
            "status": "running",
            "message": "",
            "seconds": 0.0,
            "in_progress": None,
            "notes": [],
            "left_out": [],
            "records": [],
            "log_tail": [],
        }
        if self.path.exists():
            self.content |= json.loads(self.path.read_text())

    def __getitem__(self, key: str) -> Any:
        return self.content[key]

    def update(self, **values) -> None:
        """Sets and saves."""
        self.content |= values
        write_json(self.path, self.content)

    def restart(self) -> None:
        """Forgets how the last process ended, and what failed or was left out in it.

        What a process died of is not forgotten: that it is not tried again.
        """
        kept = [r for r in self["records"] if "error" not in r or r.get("died")]
        fresh = {"message": "", "notes": [], "left_out": [], "log_tail": [], "in_progress": None}
        self.update(status="running", records=kept, **fresh)

    def begin(self, what: str) -> None:
        """Says what is measured next, for the case that the process dies of it."""
        self.update(in_progress=what)

    def add(self, what: str, **figures) -> None:
        """Adds a record, in the place of one of the same `what`."""
        records = [record for record in self["records"] if record["what"] != what]
        self.update(records=[*records, {"what": what, **figures}], in_progress=None)

    def find(self, what: str) -> dict[str, Any] | None:
        """The record, if there is one."""
        return next((r for r in self["records"] if r["what"] == what), None)

    def note(self, text: str) -> None:
        """Adds what the reader should know."""
        if text not in self["notes"]:
            self.update(notes=[*self["notes"], text])

    def leave_out(self, text: str) -> None:
        """Adds what time was too short for."""
        self.update(left_out=[*self["left_out"], text])

    def end(self, seconds: float) -> None:
        """Sets the status after a process that has done all it could."""
        failed = [record["what"] for record in self["records"] if "error" in record]
        status = "failed" if failed else "partial" if self["left_out"] else "complete"
        message = f"see {', '.join(failed)}" if failed else ""
        self.update(status=status, message=message, seconds=round(seconds, 1))

    def fail(self, message: str, log: str | os.PathLike | None = None) -> None:
        """Sets the status after a process that has not."""
        tail = []
        if log is not None and os.path.exists(log):
            tail = pathlib.Path(log).read_text(errors="replace").splitlines()[-40:]
        self.update(status="failed", message=message, log_tail=tail, in_progress=None)

    def table(self) -> str:
        """The records as lines of text, and below them all that is to be said."""
        records = self["records"]
        columns = {key: None for record in records for key in record if key not in _HIDDEN}
        rows = [list(columns), *([_cell(r.get(c)) for c in columns] for r in records)]
        lines = aligned(rows) if records else []
        for key in _AS_TEXT:
            lines += [f"  {key}: {r['what']}: {_line(r[key])}" for r in records if key in r]
        lines += [f"  note: {note}" for note in self["notes"]]
        lines += [f"  no time for: {what}" for what in self["left_out"]]
        if self["message"]:
            lines.append(f"  {self['status']}: {_line(self['message'])}")
        return "\n".join(lines)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | dict):
        return f"{len(value)}, see the file"
    text = str(value)
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 3]}..."


def _line(text: str) -> str:
    return " ".join(text.split())[:300]
