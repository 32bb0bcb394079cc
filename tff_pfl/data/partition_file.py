"""Who owns which rows of a data set, as a value that can be saved."""

import dataclasses
import hashlib
import json
import os
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tff_pfl.data.partition import PartitionError

SPLITS = ("train", "validation", "test")

_FORMAT = "tff_pfl.data.Partition/1"


class PartitionFileError(ValueError):
    """A file is not a saved `Partition`, or is one of another data set."""


@dataclasses.dataclass(frozen=True, eq=False)
class Partition:
    """Who owns which rows of a data set.

    Attributes:
        train: Per client, the rows it trains on, an int64 array.
        validation: Per client, its rows for tuning; arrays may be empty.
        test: Per client, its rows for testing; arrays may be empty.
        metadata: What made it, JSON-serialisable. `federate` writes the name of the data set
            (`"dataset"`), the fingerprint of its labels (`"labels"`) and its own arguments
            (`"spec"`); `of` adds which of its clients these are (`"clients"`).
    """

    train: tuple[np.ndarray, ...]
    validation: tuple[np.ndarray, ...]
    test: tuple[np.ndarray, ...]
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        counts = {split: len(getattr(self, split)) for split in SPLITS}
        if len(set(counts.values())) != 1:
            raise PartitionError(f"The splits are of different numbers of clients: {counts}.")

    @property
    def num_clients(self) -> int:
        return len(self.train)

    def check(self, num_examples: int) -> None:
        """Refuses rows that do not exist or are used twice: a test row that one trains on.

        Args:
            num_examples: Number of rows of the data set.

        Raises:
            PartitionError: There is such a row; the message says whose.
        """
        parts = [(s, i, rows) for s in SPLITS for i, rows in enumerate(getattr(self, s))]
        for split, client, rows in parts:
            if len(rows) and not (rows.min() >= 0 and rows.max() < num_examples):
                raise PartitionError(
                    f"Client {client}, {split}: rows {rows.min()}..{rows.max()} are not all "
                    f"within 0..{num_examples - 1}, the rows of the data set."
                )
        used = np.concatenate([rows for _, _, rows in parts])
        twice = np.flatnonzero(np.bincount(used) > 1)
        if len(twice):
            owners = [f"client {i} ({s})" for s, i, rows in parts for _ in rows[rows == twice[0]]]
            raise PartitionError(
                f"Row {twice[0]} is used {len(owners)} times: by {', '.join(owners)}. A row "
                "belongs to one client and one split."
            )

    def of(self, client_ids: Sequence[int]) -> "Partition":
        """The partition of some of the clients, whose ids are then 0, 1 and so on."""
        parts = [tuple(getattr(self, split)[i] for i in client_ids) for split in SPLITS]
        return Partition(*parts, {**self.metadata, "clients": [int(i) for i in client_ids]})

    def flat(self) -> dict[str, np.ndarray]:
        """Per split all rows, and offsets: client i has `rows[offsets[i]:offsets[i + 1]]`."""
        arrays = {}
        for split in SPLITS:
            parts = getattr(self, split)
            arrays[split] = np.concatenate([np.empty(0, np.int64), *parts])
            arrays[f"{split}_offsets"] = np.cumsum([0, *map(len, parts)], dtype=np.int64)
        return arrays

    def save(self, path: str | os.PathLike) -> None:
        """Writes one .npz file, complete or not at all."""
        content = {"format": _FORMAT, "metadata": json.dumps(dict(self.metadata), default=_plain)}
        temporary = f"{os.fspath(path)}.{os.getpid()}.tmp"
        try:
            with open(temporary, "wb") as file:
                np.savez_compressed(file, **content, **self.flat())
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            if os.path.exists(temporary):
                os.remove(temporary)
            raise

    @classmethod
    def load(cls, path: str | os.PathLike, labels: np.ndarray | None = None) -> "Partition":
        """Reads a file that `save` wrote.

        Args:
            path: The file.
            labels: int `[n]` labels of the data set to use it with; checked to be those that it
                was made for, if it says.

        Raises:
            FileNotFoundError: There is no such file.
            PartitionFileError: The file is damaged, not a partition, or of other labels.
        """
        damage = (zipfile.BadZipFile, zlib.error, ValueError, KeyError, TypeError, EOFError)
        try:
            with open(path, "rb") as file, np.load(file, allow_pickle=False) as content:
                if str(content["format"]) != _FORMAT:
                    raise ValueError(f"its format is {content['format']}, not {_FORMAT}")
                metadata = json.loads(str(content["metadata"]))
                splits = [_unflatten(content[s], content[f"{s}_offsets"]) for s in SPLITS]
                partition = cls(*splits, metadata)
        except damage as error:
            raise PartitionFileError(
                f"{os.fspath(path)} is not a partition that Partition.save wrote, or is damaged "
                f"({error}). Make it again with federate(...).partition.save(path)."
            ) from error
        made_for = metadata.get("labels")
        if labels is not None and made_for is not None and made_for != label_digest(labels):
            raise PartitionFileError(
                f"{os.fspath(path)} was made for other labels (data set "
                f"{metadata.get('dataset')!r}, labels {made_for}; these are "
                f"{label_digest(labels)}). Rows would fall on the wrong clients."
            )
        return partition


def digest(*arrays: np.ndarray) -> str:
    """16 hex digits that tell contents of arrays apart (SHA-256, shortened)."""
    sha = hashlib.sha256()
    for array in arrays:
        sha.update(np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()[:16]


def label_digest(labels: np.ndarray) -> str:
    """The `digest` of labels, whatever integer type they are stored in."""
    return digest(np.asarray(labels).astype(np.int32, copy=False))


def _unflatten(rows, offsets):
    if not (len(offsets) and offsets[-1] == len(rows) and (np.diff(offsets, prepend=0) >= 0).all()):
        raise ValueError("offsets do not fit the rows")
    return tuple(np.split(rows, offsets[1:-1]))


def _plain(value):
    """NumPy scalars and arrays, which configs bring along, for JSON."""
    return value.tolist()
