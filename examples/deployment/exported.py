"""Loads an exported side of a process, and packs messages. Needs TensorFlow and NumPy alone."""

import hashlib
import io
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

_HEADER = "header"


def round_as_simulation() -> None:
    """Keeps TensorFlow from fusing operations, as in the simulation; call it once, at the start."""
    tf.config.optimizer.set_experimental_options({"remapping": False})


class MessageError(ValueError):
    """A message or a file that cannot be used."""


class Message(NamedTuple):
    """A header and named tensors."""

    header: dict[str, Any]
    tensors: dict[str, np.ndarray]

    def pack(self) -> bytes:
        """Returns the message as bytes, the same for equal messages."""
        buffer = io.BytesIO()
        header = np.frombuffer(json.dumps(self.header).encode(), np.uint8)
        arrays = {name: np.asarray(self.tensors[name]) for name in sorted(self.tensors)}
        np.savez(buffer, **{_HEADER: header}, **arrays)
        return buffer.getvalue()

    @classmethod
    def unpack(cls, data: bytes) -> "Message":
        """Reads the bytes of `pack`.

        Raises:
            MessageError: The bytes are damaged.
        """
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
                tensors = {name: arrays[name] for name in arrays.files}
            header = json.loads(tensors.pop(_HEADER).tobytes())
        except Exception as error:  # readers of foreign bytes raise errors of many types
            raise MessageError(f"This is no message, or a damaged one: {error}") from error
        if not isinstance(header, dict):
            raise MessageError(f"The header is a {type(header).__name__}, not an object of JSON.")
        return cls(header, tensors)

    def write(self, path: pathlib.Path) -> None:
        """Replaces a file by the message, see `write`."""
        write(path, self.pack())


def write(path: pathlib.Path, data: bytes) -> None:
    """Replaces a file in one step: a program that is killed leaves the old or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    with open(unfinished, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, path)
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def digest(data: bytes) -> str:
    """Returns the SHA-256 of bytes, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


class Side:
    """An exported side of a process.

    Attributes:
        process: The fingerprint of the process, which both sides have.
        exchanges: The names of the exchanges of a round, in order.
    """

    def __init__(self, folder: str | os.PathLike):
        """Loads it.

        Raises:
            MessageError: The folder has no exported side, or a damaged one.
        """
        folder = pathlib.Path(folder)
        try:
            description = json.loads((folder / "process.json").read_bytes())
            saved = (folder / "saved_model.pb").read_bytes()
        except (OSError, ValueError) as error:
            raise MessageError(f"{folder} has no exported process: {error}") from error
        if digest(saved) != description["saved_model"]:
            raise MessageError(f"{folder}/saved_model.pb is damaged. Copy the folder again.")
        self.process = description["process"]
        self.exchanges = list(description["exchanges"])
        self._described = description["signatures"]
        self._signatures = tf.saved_model.load(str(folder)).signatures

    def __contains__(self, signature: str) -> bool:
        """Returns whether there is a signature of this name."""
        return signature in self._signatures

    def call(self, signature: str, *given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Calls a signature with those of the given tensors that it takes.

        Raises:
            MessageError: Some are missing, have another type or shape, or cannot be computed with.
        """
        known = {name: value for tensors in given for name, value in tensors.items()}
        inputs = self._described[signature]["inputs"]
        _check(inputs, {name: value for name, value in known.items() if name in inputs})
        tensors = {name: tf.constant(known[name]) for name in inputs}
        try:
            outputs = self._signatures[signature](**tensors)
        except tf.errors.OpError as error:
            raise MessageError(f"{signature} failed: {error.message}") from error
        return {name: value.numpy() for name, value in outputs.items()}

    def check(self, label: str, tensors: Mapping[str, np.ndarray], signature: str) -> None:
        """Checks that tensors are those of a label that a signature takes, and are finite.

        Raises:
            MessageError: Some are missing, have another type or shape, or NaN or infinite numbers.
        """
        _check(of_label(label, self._described[signature]["inputs"]), tensors)
        for name, value in tensors.items():
            if not np.isfinite(value).all():
                raise MessageError(f"{name} has NaN or infinite numbers.")


def _check(inputs, tensors):
    if wrong := set(inputs) ^ set(tensors):
        raise MessageError(f"These tensors are missing, or too many: {', '.join(sorted(wrong))}.")
    for name, (dtype, shape) in inputs.items():
        value = np.asarray(tensors[name])
        if value.dtype.name != dtype or not tf.TensorShape(shape).is_compatible_with(value.shape):
            found = f"{value.dtype.name}{list(value.shape)}"
            raise MessageError(f"{name} is {found}, not {dtype}{shape}.")


def of_label(label: str, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the tensors of a label, such as `state__head__bias` for "state"."""
    return {name: value for name, value in tensors.items() if name.partition("__")[0] == label}


def labelled(label: str, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Returns tensors with a label before their names."""
    return {f"{label}__{name}": value for name, value in tensors.items()}


def unlabelled(label: str, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the tensors of a label without it."""
    return {name.removeprefix(f"{label}__"): v for name, v in of_label(label, tensors).items()}


def check_process(header: Mapping[str, Any], process: str) -> None:
    """Checks that a message or a file is of this process.

    Raises:
        MessageError: It is of another process.
    """
    if header.get("process") != process:
        raise MessageError(
            f"This is of the process {header.get('process')}, not {process}, which has another "
            "method, model, option or seed."
        )
