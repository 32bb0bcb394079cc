"""Manages the output directory of a run: its files, its settings and its lock."""

import contextlib
import hashlib
import json
import os
import pathlib
import shutil
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

from ml_collections import config_dict

from tff_pfl.arguments.settings import NOTHING, NUMBERS
from tff_pfl.experiment.changes import CHANGES, Change, changes_of, differences, flatten
from tff_pfl.output import locks
from tff_pfl.output.files import (
    folder_name,
    not_spelled_out,
    remove_temporary_files,
    spelled_out,
    write_json,
)

CHECKPOINT = "checkpoint"

# The file that marks a run's directory; it is locked while a program writes there.
_LOCK_FILE = "tff_pfl_run.lock"


def is_run_directory(folder: str | os.PathLike) -> bool:
    """Returns whether a folder is the directory of a run, or a copy without its lock file."""

    def has(name):
        return os.path.exists(os.path.join(folder, name))

    return has(_LOCK_FILE) or (has("config.json") and has("metrics.csv"))


def has_begun(run_dir: str | os.PathLike) -> bool:
    """Returns whether the run in a folder has done a round; before, it has nothing to lose."""
    summary, metrics = (pathlib.Path(run_dir, name) for name in ("summary.json", "metrics.csv"))
    has_rounds = metrics.exists() and metrics.read_bytes().count(b"\n") > 1  # after the header
    return has_rounds or summary.exists()


class OutputDirectoryError(RuntimeError):
    """An error about an output directory: a run must not write there, or cannot be read."""


class RunDirectory:
    """The output directory of a run, or of a program with `files` of its own.

        with RunDirectory("runs/mine", settings, resume=True, files=["a.csv"]) as directory:
            write_to(directory.file("a.csv"))

    `train` makes that of a run by itself. Only one process at a time writes there. A run cannot be
    resumed with other settings, unless it has not done a round. Unfinished files of a killed
    process are removed.

    Attributes:
        changes: The settings of a resumed run that have changed and may change.
        settings: The run's settings, as JSON values.
        path: The path of the directory, which has these files:
            `config.json`     all settings
            `versions.json`   versions of software and the machine, for each session of the run
            `quantities.json` whether more of each quantity is better, and if it is a share
            `metrics.csv`     a row for each round
            `timings.csv`     seconds of each round, its parts and its evaluation
            `clients/`        a table for each evaluation, with a row for each client
            `new_clients.csv` a row for each client that did not train, if there are any
            `snapshots/`      the algorithm's snapshot at each evaluation, if it takes any
            `tensorboard/`    the metrics for TensorBoard
            `partition.npz`   the examples of each client, and `partition.png`, a picture of them
            `checkpoint/`     server state, client states and position, committed together
            `summary.json`    the final and the best evaluations
            `trackers.json`   the ids that trackers gave the run, if it has any
    """

    FILES = (
        "config.json",
        "versions.json",
        "quantities.json",
        "metrics.csv",
        "timings.csv",
        "clients",
        "new_clients.csv",
        "snapshots",
        "tensorboard",
        "partition.npz",
        "partition.png",
        CHECKPOINT,
        "summary.json",
        "trackers.json",
    )

    def __init__(
        self,
        path: str | os.PathLike,
        settings: Mapping[str, Any] = types.MappingProxyType({}),
        *,
        resume: bool = False,
        overwrite: bool = False,
        files: Sequence[str] = FILES,
    ):
        """Checks that a run may write to the directory, which `create` makes later.

        Args:
            path: The path of the directory.
            settings: The resolved config: JSON values, or NumPy's numbers and arrays. A run is
                not resumed with other settings.
            resume: Whether to resume the run in the directory, if there is one.
            overwrite: Whether `create` deletes the run in the directory, if there is one.
            files: The files and folders that the program writes there.

        Raises:
            OutputDirectoryError: The directory has a run, but neither `resume` nor `overwrite` is
                set; or a run with other settings; or files that do not belong to a run.
        """
        self.path = os.path.abspath(os.path.expanduser(path))
        self.settings = json.loads(json.dumps(dict(settings), cls=_Encoder))
        self._resume = resume
        self._overwrite = overwrite
        self._files = tuple(dict.fromkeys(["config.json", *files]))
        self._starts_over = False
        self._lock: IO | None = None
        self.changes: list[Change] = []
        self._check()

    def create(self) -> None:
        """Makes the directory and writes the settings, or opens the run that is resumed.

        Call this when the run is ready to start, so that a run that fails earlier does not delete
        the run that it would overwrite. The directory is locked for other programs until `close` or
        the end of the process.

        Raises:
            OutputDirectoryError: Another program is writing to the directory; or see `__init__`.
        """
        os.makedirs(self.path, exist_ok=True)
        self._check()
        lock = open(self.file(_LOCK_FILE), "w")  # noqa: SIM115
        try:
            locks.lock(lock.fileno(), self.path)
        except BlockingIOError as error:
            lock.close()
            raise OutputDirectoryError(
                f"Another program is writing to {self.path}. Wait until it ends, or pass another "
                "directory."
            ) from error
        self._lock = lock
        for name in self._files:
            remove_temporary_files(self.path, name)
            remove_temporary_files(self.file(name))
        if self._overwrite or self._starts_over:
            for name in reversed(self._files):  # the settings last: they identify the other files
                self.delete(name)
        if "clients" in self._files:
            os.makedirs(self.file("clients"), exist_ok=True)
        if not (self._resume and self.has("config.json")):
            self.write_settings()

    @property
    def is_open(self) -> bool:
        """Whether the directory was created and has not been closed since."""
        return self._lock is not None and not self._lock.closed

    @property
    def resumes(self) -> bool:
        """Whether the run could be resumed if it ended now, not the run that it would overwrite."""
        return self._lock is not None or not self._overwrite

    def write_settings(self) -> None:
        """Writes `config.json`; a resumed run does so after all checks."""
        self.write_json("config.json", spelled_out(self.settings))

    def close(self) -> None:
        """Unlocks the directory for other programs."""
        if self._lock is not None:
            self._lock.close()

    def __enter__(self) -> "RunDirectory":
        """Calls `create`."""
        self.create()
        return self

    def __exit__(self, *exc_info) -> None:
        """Calls `close`."""
        self.close()

    def file(self, *parts: str) -> str:
        """Returns the path of a file in the directory."""
        return os.path.join(self.path, *parts)

    def has(self, name: str) -> bool:
        """Returns whether the directory has a file or folder."""
        return os.path.exists(self.file(name))

    def write_json(self, name: str, value: Any) -> None:
        """Writes a JSON file, completely or not at all."""
        write_json(self.file(name), value)

    def delete(self, name: str) -> None:
        """Deletes a file or a folder if it exists."""
        path = self.file(name)
        if os.path.isdir(path):
            shutil.rmtree(path)
        elif os.path.exists(path):
            os.remove(path)

    def _check(self):
        if os.path.exists(self.path) and not os.path.isdir(self.path):
            raise OutputDirectoryError(f"{self.path} is a file, not a directory.")
        content = os.listdir(self.path) if os.path.isdir(self.path) else []
        if content and _LOCK_FILE not in content:
            raise OutputDirectoryError(
                f"{self.path} contains files that do not belong to a run "
                f"({', '.join(sorted(content)[:3])}). Choose an empty or a new directory."
            )
        if self._overwrite:
            return
        if "config.json" not in content:
            # Empty folders may exist if `create` was interrupted before it wrote the settings.
            if left := [name for name in self._files if self._has_content(name)]:
                raise OutputDirectoryError(
                    f"{self.path} contains a run ({', '.join(left)}) without its config.json. Put "
                    "config.json back, pass --overwrite (in Python, overwrite=True) to delete the "
                    "run, or choose another directory."
                )
            return
        if not self._resume:
            raise OutputDirectoryError(
                f"{self.path} already contains a run. Pass --resume to continue it (in Python, "
                "resume=True), --overwrite to delete it, or another directory."
            )
        self.changes = changed_settings(self.path, self.settings)
        changed = [change for change in self.changes if change.what == NUMBERS]
        is_of_a_run = "metrics.csv" in self._files
        self._starts_over = bool(changed) and is_of_a_run and not has_begun(self.path)
        if self._starts_over:
            self.changes = []
            return
        # Only a run in a folder of its own, or of `compare`, states what it computes.
        before = read_settings(self.path)
        known = {key: before[key] for key in before if key == "fingerprints"}
        self.settings = known | self.settings
        if changed:
            raise OutputDirectoryError(
                f"The run in {self.path} has other settings:\n  "
                + "\n  ".join(map(str, changed))
                + "\n"
                "Resume it with its own settings, or choose another directory. Only "
                f"{', '.join(CHANGES)} may change."
            )

    def _has_content(self, name):
        path = self.file(name)
        return bool(os.listdir(path)) if os.path.isdir(path) else os.path.exists(path)


def changed_settings(path: str | os.PathLike, settings: Mapping[str, Any]) -> list[Change]:
    """Lists the differences between the settings of a run and others.

    Args:
        path: The directory of the run.
        settings: The resolved config, as JSON values. If it lacks `fingerprints`, these are not
            compared.

    Raises:
        OutputDirectoryError: The run's settings are damaged.
    """
    ignored = ["unnamed", *["fingerprints"] * ("fingerprints" not in settings)]
    return differences(read_settings(path), settings, ignored)


def own_folder(parent: str | os.PathLike, name: str, settings: Mapping[str, Any]) -> pathlib.Path:
    """Returns the folder of a run that is named by what it is.

    Runs whose settings differ, other than in what changes nothing, have different folders.

    Args:
        parent: The folder of the folder.
        name: The beginning of its name.
        settings: The run's settings.
    """
    numbers = json.loads(json.dumps(dict(settings), cls=_Encoder))
    numbers.pop("unnamed", None)
    kept = {key: v for key, v in flatten(numbers, ".").items() if changes_of(key) != NOTHING}
    digest = hashlib.sha256(repr(sorted(kept.items())).encode()).hexdigest()
    return pathlib.Path(parent, f"{folder_name(name)}-{digest[:8]}")


@contextlib.contextmanager
def reading(path: str | os.PathLike) -> Iterator[None]:
    """Converts exceptions in its body, which reads a run's file, to errors that name the file.

    Raises:
        OutputDirectoryError: The body raised any exception, except an `OSError` with a file name.
            Readers of JSON, CSV and NumPy files raise many kinds of errors for damaged files.
    """
    try:
        yield
    except OutputDirectoryError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise
        reason = str(error).strip().rstrip(".") or type(error).__name__
        raise OutputDirectoryError(f"{os.fspath(path)} is damaged: {reason}.") from error


def read_json(path: str | os.PathLike) -> dict[str, Any]:
    """Reads the JSON object in a file.

    Raises:
        OutputDirectoryError: The file is damaged or has another kind of JSON value.
    """
    with reading(path), open(path) as file:
        value = json.load(file)
        if not isinstance(value, dict):
            raise ValueError(f"a JSON object was expected, found {json.dumps(value)[:40]}")
    return value


def read_settings(run_dir: str | os.PathLike) -> dict[str, Any]:
    """Reads the settings of a run from its `config.json`.

    The texts "inf", "-inf" and "nan" in the file become numbers again.

    Raises:
        OutputDirectoryError: The file is damaged or has another kind of JSON value.
    """
    return not_spelled_out(read_json(os.path.join(run_dir, "config.json")))


def resolved(config: config_dict.ConfigDict) -> dict[str, Any]:
    """Returns a config as JSON values, with its references resolved."""
    return json.loads(config.to_json(_Encoder))


class _Encoder(config_dict.CustomJSONEncoder):
    """A JSON encoder that writes NumPy's numbers and arrays as numbers and lists."""

    def default(self, obj):
        """Returns the JSON value of a NumPy number or array."""
        return obj.tolist() if hasattr(obj, "tolist") else super().default(obj)


def check_writable(path: str | os.PathLike) -> None:
    """Checks that results can be written, before they are computed.

    Args:
        path: The path or prefix of the files, whose folders need not exist.

    Raises:
        OutputDirectoryError: A file cannot be written there.
    """
    path = os.path.expanduser(path)
    if not os.path.basename(path):
        raise OutputDirectoryError(f"{path} is a folder. Add a name for the files: {path}NAME.")
    folder = pathlib.Path(os.path.abspath(path)).parent
    existing = next(parent for parent in [folder, *folder.parents] if parent.exists())
    if not existing.is_dir():
        raise OutputDirectoryError(f"{path} cannot be written: {existing} is a file.")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise OutputDirectoryError(f"{path} cannot be written: no permission in {existing}.")
