"""The output directory of a run: its files, and who may write to it."""

import contextlib
import fcntl
import json
import os
import pathlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ml_collections import config_dict

from tff_pfl.files import not_spelled_out, remove_temporary_files, spelled_out, write_json

# Settings that change no number.
OF_NO_NUMBER = (
    "checkpoint_every",
    "data.data_dir",
    "evaluation.clients_per_call",
    "import_path",
    "paper",
)
# Settings by which a run that is over would have other results.
OF_RESULTS = (
    "evaluation.generalization",
    "evaluation.late_share",
    "evaluation.subsample",
    "evaluation.synthetic",
    "new_clients.best_epoch",
    "new_clients.fine_tune_epochs",
)
# Settings that may differ when a run is resumed: they change no number of a round.
RESUMABLE = ("rounds", *sorted((*OF_NO_NUMBER, *OF_RESULTS)))

CHECKPOINT = "checkpoint"

# Present in every directory of a run, and in no other; locked while a program writes to it.
_LOCK_FILE = "tff_pfl_run.lock"


def is_of_a_run(folder: str | os.PathLike) -> bool:
    """Returns whether a directory is that of a run, or a copy of one that lacks its lock."""

    def has(name):
        return os.path.exists(os.path.join(folder, name))

    return has(_LOCK_FILE) or (has("config.json") and has("metrics.csv"))


class OutputDirectoryError(RuntimeError):
    """An output directory that this run must not write to."""


class RunDirectory:
    """The files of a run: `with RunDirectory(path, settings) as directory: train(...)`.

    Any program can use one with `files` of its own. One process at a time writes there, a run is
    not resumed with other settings, and files that a killed process left unfinished are removed.

    Attributes:
        changes: The settings of a resumed run that are others now, and may be, as text.
        settings: The run's settings, as JSON values.
        path: The directory. In it:
            `config.json`     all settings
            `versions.json`   versions of software and the machine, of each session of the run
            `metrics.csv`     a row a round
            `timings.csv`     seconds of each round, its parts and its evaluation
            `clients/`        for each evaluation, a row a client
            `new_clients.csv` a row for each client that did not train, if there are any
            `snapshots/`      at each evaluation, what the algorithm has to show, if anything
            `tensorboard/`    the metrics for TensorBoard
            `partition.npz`   who owns which examples, and `partition.png`, a picture of it
            `checkpoint/`     server state, client states and position, one consistent generation
            `summary.json`    the final and the best evaluations
    """

    FILES = (
        "config.json",
        "versions.json",
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
    )

    def __init__(
        self,
        path: str | os.PathLike,
        settings: Mapping[str, Any],
        *,
        resume: bool = False,
        overwrite: bool = False,
        files: Sequence[str] = FILES,
    ):
        """Checks whether a run may write to the directory; `create` then makes it.

        Args:
            path: The directory.
            settings: The resolved config: JSON values, or NumPy's numbers and arrays.
            resume: Whether to go on with the run that is there, if there is one.
            overwrite: Whether `create` deletes the run that is there, if there is one.
            files: The files and folders that the program writes there.

        Raises:
            OutputDirectoryError: If it holds a run and neither is asked for, or a run with other
                settings, or files that are not a run's.
        """
        self.path = os.path.abspath(path)
        self.settings = json.loads(json.dumps(settings, cls=_Encoder))
        self._resume = resume
        self._overwrite = overwrite
        self._files = tuple(dict.fromkeys(["config.json", *files]))
        self._lock = None
        self.changes = []
        self._check()

    def create(self) -> None:
        """Makes the directory and writes the settings, or goes on with what is there.

        A run calls it when it is ready to start: one that fails before claims nothing, and deletes
        nothing of the run that it was to overwrite. From then on, until `close` or the end of the
        process, no other run gets the directory.

        Raises:
            OutputDirectoryError: If another program is writing to it, or as in `__init__`.
        """
        os.makedirs(self.path, exist_ok=True)
        self._check()
        lock = open(self.file(_LOCK_FILE), "w")  # noqa: SIM115
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.close()
            raise OutputDirectoryError(
                f"Another program is writing to {self.path}. Choose another --output_dir."
            ) from error
        self._lock = lock
        for name in self._files:
            remove_temporary_files(self.path, name)
            remove_temporary_files(self.file(name))
        if self._overwrite:
            for name in reversed(self._files):  # the settings last, so that they tell of the rest
                self.delete(name)
        if "clients" in self._files:
            os.makedirs(self.file("clients"), exist_ok=True)
        if not (self._resume and self.has("config.json")):
            self.write_settings()

    @property
    def is_open(self) -> bool:
        """Returns whether it was made, and not closed since."""
        return self._lock is not None and not self._lock.closed

    @property
    def resumes(self) -> bool:
        """Returns whether a run that ends now can be resumed: not an old one, yet to be deleted."""
        return self._lock is not None or not self._overwrite

    def write_settings(self) -> None:
        """Writes `config.json`; a run that goes on writes it once it is known that it does."""
        self.write_json("config.json", spelled_out(self.settings))

    def close(self) -> None:
        """Lets other runs have the directory."""
        if self._lock is not None:
            self._lock.close()

    def __enter__(self) -> "RunDirectory":
        self.create()
        return self

    def __exit__(self, *exc_info) -> None:
        self.close()

    def file(self, *parts: str) -> str:
        """Returns the path of a file in the directory."""
        return os.path.join(self.path, *parts)

    def has(self, name: str) -> bool:
        """Returns whether a file or folder is there."""
        return os.path.exists(self.file(name))

    def write_json(self, name: str, value: Any) -> None:
        """Writes a file completely or not at all."""
        write_json(self.file(name), value)

    def delete(self, name: str) -> None:
        """Deletes a file or a folder, if it is there."""
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
                f"{self.path} holds files that are not a run's ({', '.join(sorted(content)[:3])}). "
                "Choose an empty or a new directory."
            )
        if self._overwrite:
            return
        if "config.json" not in content:
            # What is made before the settings may be here, if that was interrupted.
            if left := [name for name in self._files if self._has_content(name)]:
                raise OutputDirectoryError(
                    f"{self.path} holds a run ({', '.join(left)}) without its config.json. Put "
                    "config.json back, pass --overwrite to delete the run, or choose another "
                    "--output_dir."
                )
            return
        if not self._resume:
            raise OutputDirectoryError(
                f"{self.path} holds a run already. Pass --resume to go on with it, --overwrite to "
                "delete it, or another --output_dir."
            )
        self.changes, changed = changed_settings(self.path, self.settings)
        if changed:
            raise OutputDirectoryError(
                f"The run in {self.path} has other settings:\n  " + "\n  ".join(changed) + "\n"
                "Resume it with its own, or choose another --output_dir. Only "
                f"{', '.join(RESUMABLE)} may change."
            )

    def _has_content(self, name):
        path = self.file(name)
        return bool(os.listdir(path)) if os.path.isdir(path) else os.path.exists(path)


def changed_settings(
    path: str | os.PathLike, settings: Mapping[str, Any]
) -> tuple[list[str], list[str]]:
    """Compares settings with those of a run that is there.

    Args:
        path: The directory of the run.
        settings: The resolved config; JSON values.

    Returns:
        `(changes that are allowed, changes that change numbers)`, as text.

    Raises:
        OutputDirectoryError: If the run's settings are damaged.
    """
    old, new = flatten(read_settings(path), "."), flatten(settings, ".")
    changes = [], []
    for key in sorted(old.keys() | new.keys()):
        if repr(old.get(key)) != repr(new.get(key)):  # as NaN is not equal to itself
            is_fixed = not any(f"{key}.".startswith(f"{free}.") for free in RESUMABLE)
            changes[is_fixed].append(f"{key}: {old.get(key)!r} then, {new.get(key)!r} now")
    return changes


@contextlib.contextmanager
def reading(path: str | os.PathLike) -> Iterator[None]:
    """Turns what a damaged file of a run raises in its body into an error that names the file.

    Raises:
        OutputDirectoryError: For any exception but those of the system about a file: readers of
            JSON, CSV and NumPy's formats raise all kinds on random bytes.
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


def read_json(path: str) -> dict[str, Any]:
    """Reads the JSON object in a file.

    Raises:
        OutputDirectoryError: If the file holds something else.
    """
    with reading(path), open(path) as file:
        value = json.load(file)
        if not isinstance(value, dict):
            raise ValueError(f"a JSON object was expected, found {json.dumps(value)[:40]}")
    return value


def read_settings(run_dir: str | os.PathLike) -> dict[str, Any]:
    """Reads the settings of a run from its `config.json`.

    The texts "inf", "-inf" and "nan" of the file become numbers again.

    Raises:
        OutputDirectoryError: If the file holds something else.
    """
    return not_spelled_out(read_json(os.path.join(run_dir, "config.json")))


def flatten(nested: Any, separator: str, prefix: str = "") -> dict[str, Any]:
    """Flattens nested mappings, lists and arrays to one level, with names joined by `separator`."""
    if isinstance(nested, Mapping):
        items = nested.items()
    elif isinstance(nested, list | tuple) or getattr(nested, "ndim", 0):
        items = enumerate(nested)
    else:
        return {prefix: nested}
    flat = {}
    for name, value in items:
        flat |= flatten(value, separator, f"{prefix}{separator}{name}" if prefix else str(name))
    return flat


def resolved(config: config_dict.ConfigDict) -> dict[str, Any]:
    """Returns a config as JSON values, with nothing left to look up."""
    return json.loads(config.to_json(_Encoder))


class _Encoder(config_dict.CustomJSONEncoder):
    """Writes NumPy's numbers and arrays as numbers and lists."""

    def default(self, obj):
        return obj.tolist() if hasattr(obj, "tolist") else super().default(obj)


def check_writable(path: str | os.PathLike) -> None:
    """Checks, before anything is computed, that results can be written.

    Args:
        path: The path or prefix of the files; folders may yet be made.

    Raises:
        OutputDirectoryError: If no file can be there.
    """
    path = os.fspath(path)
    if not os.path.basename(path):
        raise OutputDirectoryError(f"{path} is a folder; name the files in it: {path}NAME.")
    folder = pathlib.Path(os.path.abspath(path)).parent
    existing = next(parent for parent in [folder, *folder.parents] if parent.exists())
    if not existing.is_dir():
        raise OutputDirectoryError(f"{path} cannot be written: {existing} is a file.")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise OutputDirectoryError(f"{path} cannot be written: no permission in {existing}.")


def check_empty_folder(path: str | os.PathLike) -> None:
    """Checks, before anything is computed, that results can have a folder of their own.

    Args:
        path: The folder, which may yet be made.

    Raises:
        OutputDirectoryError: If something is there already, or no folder can be.
    """
    folder = pathlib.Path(os.path.abspath(path))
    check_writable(folder / "file" if folder.exists() else folder)
    if folder.exists() and any(folder.iterdir()):
        raise OutputDirectoryError(
            f"{path} is not empty; these results need a folder of their own."
        )
