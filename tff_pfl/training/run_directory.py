"""The output directory of a run: its files, and who may write to it."""

import json
import os
import shutil
from collections.abc import Mapping
from typing import Any

from ml_collections import config_dict

# Settings that may differ when a run is resumed: they change no number of a round.
RESUMABLE = ("rounds", "checkpoint_every", "data.data_dir", "paper")


class OutputDirectoryError(RuntimeError):
    """An output directory that this run must not write to."""


class RunDirectory:
    """The files of a run.

    Attributes:
        path: The directory. In it:
            `config.json`     all settings
            `metrics.csv`     a row a round
            `timings.csv`     seconds of each round and evaluation
            `clients/`        for each evaluation, a row a client
            `tensorboard/`    the metrics for TensorBoard
            `partition.npz`   who owns which examples, and `partition.png`, a picture of it
            `checkpoint/`     server state, client states and position, one consistent generation
            `summary.json`    the final and the best evaluation
    """

    FILES = (
        "config.json",
        "metrics.csv",
        "timings.csv",
        "clients",
        "tensorboard",
        "partition.npz",
        "partition.png",
        "checkpoint",
        "summary.json",
    )

    def __init__(
        self,
        path: str | os.PathLike,
        settings: Mapping[str, Any],
        *,
        resume: bool = False,
        overwrite: bool = False,
    ):
        """Checks whether a run may write to the directory; `create` then makes it.

        Args:
            path: The directory.
            settings: The resolved config; JSON values.
            resume: Whether to go on with the run that is there, if there is one.
            overwrite: Whether `create` deletes the run that is there, if there is one.

        Raises:
            OutputDirectoryError: If it holds a run and neither is asked for, or a run with other
                settings, or files that are not a run's.
        """
        self.path = os.path.abspath(path)
        self._settings = json.loads(json.dumps(settings))
        self._overwrite = overwrite
        if os.path.exists(self.path) and not os.path.isdir(self.path):
            raise OutputDirectoryError(f"{self.path} is a file, not a directory.")
        content = os.listdir(self.path) if os.path.isdir(self.path) else []
        if content and "config.json" not in content:
            raise OutputDirectoryError(
                f"{self.path} holds files that are not a run's ({', '.join(sorted(content)[:3])}). "
                "Choose an empty or a new directory."
            )
        if content and resume:
            self._check_settings(self._settings)
        elif content and not overwrite:
            raise OutputDirectoryError(
                f"{self.path} holds a run already. Pass --resume to go on with it, --overwrite to "
                "delete it, or another --output_dir."
            )

    def create(self) -> None:
        """Makes the directory and writes the settings, or goes on with what is there.

        A run calls it when it is ready to start: one that fails before claims nothing, and deletes
        nothing of the run that it was to overwrite.
        """
        if self._overwrite:
            self._delete_run()
        os.makedirs(self.file("clients"), exist_ok=True)
        self.write_json("config.json", self._settings)

    def file(self, *parts: str) -> str:
        """The path of a file in the directory."""
        return os.path.join(self.path, *parts)

    def write_json(self, name: str, value: Any) -> None:
        """Writes a file completely or not at all."""
        temporary = self.file(f"{name}.tmp")
        with open(temporary, "w") as file:
            json.dump(value, file, indent=2)
            file.write("\n")
        os.replace(temporary, self.file(name))

    def _delete_run(self):
        for name in self.FILES:
            path = self.file(name)
            if os.path.isdir(path):
                shutil.rmtree(path)
            elif os.path.exists(path):
                os.remove(path)

    def _check_settings(self, settings):
        try:
            with open(self.file("config.json")) as file:
                old = json.load(file)
        except ValueError as error:
            raise OutputDirectoryError(
                f"{self.file('config.json')} is damaged ({error}); the run cannot be resumed."
            ) from error
        old, new = flatten(old, "."), flatten(settings, ".")
        changed = [
            f"  {key}: {old.get(key)!r} then, {new.get(key)!r} now"
            for key in sorted(old.keys() | new.keys())
            if old.get(key) != new.get(key)
            and not any(key == free or key.startswith(f"{free}.") for free in RESUMABLE)
        ]
        if changed:
            raise OutputDirectoryError(
                f"The run in {self.path} has other settings:\n" + "\n".join(changed) + "\n"
                "Resume it with its own, or choose another --output_dir. Only "
                f"{', '.join(RESUMABLE)} may change."
            )


def flatten(nested: Mapping[str, Any], separator: str, prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one level, of names joined by `separator`."""
    flat = {}
    for name, value in nested.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, separator, f"{prefix}{name}{separator}")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def resolved(config: config_dict.ConfigDict) -> dict[str, Any]:
    """A config as JSON values, with nothing left to look up."""
    return json.loads(config.to_json_best_effort())
