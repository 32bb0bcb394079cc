"""A `Partition`, the rows of a data set that each client owns, and its files."""

import dataclasses
import functools
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tree

from tff_pfl.data.client_names import checked_names, id_of, ids_by_text
from tff_pfl.data.client_rows import ClientRows
from tff_pfl.data.partition import PartitionError
from tff_pfl.output.files import save_compressed, whole_file

SPLITS = ("train", "validation", "test")

_FORMAT = "tff_pfl.data.Partition/1"


class PartitionFileError(ValueError):
    """An error for a file that is not a saved `Partition`, or was made for another data set."""


@dataclasses.dataclass(frozen=True, eq=False)
class Partition:
    """The rows of a data set that each client owns.

    Each split is given as `ClientRows`, or as a sequence of one array per client; names in any
    sequence.

    Attributes:
        train: For each client, its rows for training, an int64 array.
        validation: For each client, its rows for tuning; arrays may be empty.
        test: For each client, its rows for testing; arrays may be empty.
        metadata: A JSON-serialisable record of how the partition was made. `federate` writes the
            name of the data set (`"dataset"`), the digest of its labels (`"labels"`) and its own
            arguments (`"spec"`). `of` adds the ids that the clients had before (`"clients"`) and,
            if clients are held out, the number of the other clients (`"num_trained"`).
        names: The names of the clients by id, `[N]` of int64 or text; `None` if they have none.
            Tables and reports have names instead of ids.
    """

    train: Any
    validation: Any
    test: Any
    _: dataclasses.KW_ONLY
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    names: Any = None

    def __post_init__(self):
        """Converts the splits to `ClientRows`, and the names to an array."""
        for split in SPLITS:
            parts = getattr(self, split)
            if not isinstance(parts, ClientRows):
                object.__setattr__(self, split, ClientRows.of(parts))
        counts = {split: len(getattr(self, split)) for split in SPLITS}
        if len(set(counts.values())) != 1:
            raise PartitionError(f"The splits have different numbers of clients: {counts}.")
        if self.names is not None:
            object.__setattr__(self, "names", checked_names(self.names, self.num_clients))

    @property
    def num_clients(self) -> int:
        """The number of clients."""
        return len(self.train)

    def named(self, names: Sequence[int | str]) -> "Partition":
        """Returns the partition with these names of its clients, in the order of their ids.

        Raises:
            ValueError: There is not one name for each client, a name occurs twice, or names are
                neither all text nor all whole numbers.
        """
        return dataclasses.replace(self, names=names)

    def ids_of(self, clients: Iterable[int | str]) -> list[int]:
        """Returns the ids of clients that are given by name.

        Clients without names are given by id. Numbers are refused if names are text. Text may stand
        for a number, such as "7" from a command line.

        Raises:
            UnknownNameError: A client does not exist, or is a number although names are text.
            TypeError: A client is neither text nor a whole number, or `clients` is one client.
        """
        if isinstance(clients, str) or not isinstance(clients, Iterable):
            raise TypeError(f"Clients must be a list of names or ids, got {clients!r}.")
        kind = None if self.names is None else self.names.dtype.kind
        return [id_of(client, self._by_text, kind) for client in clients]

    def name_of(self, client_id: int) -> int | str:
        """Returns the name of a client, or its id if clients have no names."""
        return client_id if self.names is None else self.names[client_id].item()

    @functools.cached_property
    def _by_text(self) -> dict[str, int]:
        return ids_by_text(range(self.num_clients) if self.names is None else self.names.tolist())

    def check(self, num_examples: int) -> None:
        """Checks that all rows exist, and that no row is used twice, for training and test say.

        Args:
            num_examples: The number of rows of the data set.

        Raises:
            PartitionError: A row does not exist or is used twice; the message names its clients.
        """
        is_used, num_uses = np.zeros(num_examples, np.bool_), 0
        for split in SPLITS:
            parts = getattr(self, split)
            if not parts.are_within(num_examples):
                is_wrong = (parts.rows < 0) | (parts.rows >= num_examples)
                client = parts.client_of(np.argmax(is_wrong))
                rows = parts[client]
                raise PartitionError(
                    f"Client {client}, {split}: rows {rows.min()}..{rows.max()} are not all "
                    f"within 0..{num_examples - 1}, the rows of the data set."
                )
            is_used[parts.rows] = True
            num_uses += len(parts.rows)
        if np.count_nonzero(is_used) < num_uses:
            self._raise_for_a_row_used_twice()

    def _raise_for_a_row_used_twice(self):
        splits = {split: getattr(self, split) for split in SPLITS}
        used = np.concatenate([parts.rows for parts in splits.values()])
        row = np.flatnonzero(np.bincount(used) > 1)[0]
        owners = [
            f"client {parts.client_of(place)} ({split})"
            for split, parts in splits.items()
            for place in np.flatnonzero(parts.rows == row)
        ]
        raise PartitionError(
            f"Row {row} is used {len(owners)} times: by {', '.join(owners)}. A row may belong to "
            "one client and one split only."
        )

    def of(self, client_ids: Sequence[int], **metadata: Any) -> "Partition":
        """Returns the partition of some of the clients, which get the ids 0, 1 and so on.

        They keep their names.

        Args:
            client_ids: The ids of these clients in this partition.
            **metadata: Entries to add to the metadata.
        """
        parts = [getattr(self, split).chosen(client_ids) for split in SPLITS]
        all_clients = self.metadata.get("clients") or range(self.num_clients)
        clients = [int(all_clients[i]) for i in client_ids]
        names = None if self.names is None else self.names[np.asarray(client_ids, np.int64)]
        metadata = {**self.metadata, "clients": clients, **metadata}
        return Partition(*parts, metadata=metadata, names=names)

    def flat(self) -> dict[str, np.ndarray]:
        """Returns rows and offsets by split: client i has `rows[offsets[i]:offsets[i + 1]]`.

        If the clients have names, `names` has them.
        """
        arrays = {}
        for split in SPLITS:
            parts = getattr(self, split)
            arrays[split] = parts.rows.astype(np.int64, copy=False)
            arrays[f"{split}_offsets"] = parts.offsets.astype(np.int64, copy=False)
        return arrays if self.names is None else arrays | {"names": self.names}

    def save(self, path: str | os.PathLike) -> None:
        """Writes one .npz file; an interrupted write leaves no partial file."""
        content = {"format": _FORMAT, "metadata": json.dumps(dict(self.metadata), default=_plain)}
        with whole_file(path, "wb") as file:
            save_compressed(file, content | self.flat())

    @classmethod
    def load(cls, path: str | os.PathLike, labels: Any = None) -> "Partition":
        """Reads a file that `save` wrote.

        Args:
            path: The file.
            labels: The labels of the data set that the partition is used with. If given,
                checks that all rows exist, and that the digest of labels in the metadata, if
                there is one, is the same.

        Raises:
            FileNotFoundError: The file does not exist.
            PartitionFileError: The file is damaged, not a partition, or made for other labels.
        """
        path = os.path.expanduser(path)
        with open(path, "rb") as file:
            try:
                with np.load(file, allow_pickle=False) as content:
                    partition = cls._from_content(content)
            # The readers of zip files and arrays raise too many kinds of errors to list.
            except Exception as error:
                reason = str(error).strip().rstrip(".") or type(error).__name__
                raise PartitionFileError(
                    f"{path} is not a partition that Partition.save wrote, or is damaged "
                    f"({reason}). Make it again with federate(...).partition.save(path)."
                ) from error
        if labels is not None:
            partition._check_labels(path, labels)
        return partition

    @classmethod
    def _from_content(cls, content: Mapping[str, np.ndarray]) -> "Partition":
        if str(content["format"]) != _FORMAT:
            raise ValueError(f"its format is {content['format']}, not {_FORMAT}")
        metadata = dict(json.loads(str(content["metadata"])))
        rows = (ClientRows(content[split], content[f"{split}_offsets"]) for split in SPLITS)
        return cls(*rows, metadata=metadata, names=content.get("names"))

    def _check_labels(self, path, labels):
        made_for = self.metadata.get("labels")
        if made_for is not None and made_for != label_digest(labels):
            raise PartitionFileError(
                f"{path} was made for other labels (data set {self.metadata.get('dataset')!r}, "
                f"labels {made_for}; these are {label_digest(labels)}). Clients would get the "
                "wrong rows."
            )
        try:
            self.check(len(tree.flatten(labels)[0]))
        except PartitionError as error:
            raise PartitionFileError(f"{path}: {error}") from error


def digest(*arrays: np.ndarray) -> str:
    """Returns the first 16 hex digits of the SHA-256 hash of the arrays' contents."""
    sha = hashlib.sha256()
    for array in arrays:
        sha.update(np.ascontiguousarray(array).data)
    return sha.hexdigest()[:16]


def label_digest(labels: Any) -> str:
    """Returns the `digest` of labels, which is the same for every integer type of classes."""
    arrays = list(map(np.asarray, tree.flatten(labels)))
    is_of_classes = len(arrays) == 1 and arrays[0].ndim == 1 and arrays[0].dtype.kind in "iu"
    return digest(arrays[0].astype(np.int32, copy=False)) if is_of_classes else digest(*arrays)


def _plain(value):
    """Converts paths, and NumPy's scalars and arrays, which configs may have, for JSON."""
    return os.fspath(value) if isinstance(value, os.PathLike) else value.tolist()
