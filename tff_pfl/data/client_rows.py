"""The rows of all clients in a split, stored without a Python object for each client."""

import itertools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from tff_pfl.data.partition import PartitionError


class ClientRows(Sequence):
    """A sequence with the array of rows of each client; all are slices of one array.

    Both arrays may be memory-mapped; then rows are read only when they are needed.

    Attributes:
        rows: Integers `[n]`, the rows of all clients, one client after the other.
        offsets: int64 `[N + 1]`; client `i` has `rows[offsets[i]:offsets[i + 1]]`.
    """

    def __init__(self, rows: np.ndarray, offsets: np.ndarray):
        """Checks the arrays and stores them without a copy.

        Raises:
            PartitionError: The arrays are not integers, or the offsets do not fit the rows.
        """
        self.rows, self.offsets = np.asarray(rows), np.asarray(offsets)
        for name, array in (("rows", self.rows), ("offsets", self.offsets)):
            if array.ndim != 1 or array.dtype.kind not in "iu":
                raise PartitionError(
                    f"{name} must be integers of shape [?], got {array.dtype} of shape "
                    f"{array.shape}."
                )
        self.offsets = self.offsets.astype(np.int64, copy=False)
        fits = len(self.offsets) and self.offsets[0] == 0 and self.offsets[-1] == len(self.rows)
        if not (fits and (self.offsets[1:] >= self.offsets[:-1]).all()):
            raise PartitionError(
                f"The offsets do not fit the {len(self.rows)} rows: they must start with 0, never "
                "decrease, and end with the number of rows."
            )

    @classmethod
    def of(cls, parts: Iterable[np.ndarray]) -> "ClientRows":
        """Copies the rows of each client into one array.

        Raises:
            PartitionError: The rows of a client are not integers of shape `[?]`.
        """
        parts = list(map(np.asarray, parts))
        for client, part in enumerate(parts):
            if part.ndim != 1 or (len(part) and part.dtype.kind not in "iu"):
                raise PartitionError(
                    f"The rows of client {client} must be integers of shape [?], got {part.dtype} "
                    f"of shape {part.shape}."
                )
        offsets = np.cumsum([0, *map(len, parts)], dtype=np.int64)
        own = [part.astype(np.int64, copy=False) for part in parts]
        return cls(np.concatenate([np.empty(0, np.int64), *own]), offsets)

    @classmethod
    def by_owner(cls, rows: np.ndarray, owners: np.ndarray, num_clients: int) -> "ClientRows":
        """Returns the rows of each client, in their order, from the owner of each row."""
        sizes = np.bincount(owners, minlength=num_clients)
        return cls(rows[np.argsort(owners, kind="stable")], np.cumsum([0, *sizes]))

    @property
    def sizes(self) -> np.ndarray:
        """The number of rows of each client, int64 `[N]`."""
        return np.diff(self.offsets).astype(np.int64, copy=False)

    def chosen(self, client_ids: Sequence[int]) -> "ClientRows":
        """Returns the rows of some of the clients, which get the ids 0, 1 and so on.

        Raises:
            IndexError: A client does not exist, or an id is not an integer.
        """
        found = np.asarray(client_ids)
        if found.size and not np.issubdtype(found.dtype, np.integer):
            raise IndexError(f"Client ids must be integers, got {found.dtype}.")
        ids = found.astype(np.int64)
        unknown = ids[(ids < 0) | (ids >= len(self))]
        if unknown.size:
            raise IndexError(f"Client {unknown[0]} does not exist: ids are 0..{len(self) - 1}.")
        sizes = self.sizes[ids]
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        places = np.arange(offsets[-1]) + np.repeat(self.offsets[ids] - offsets[:-1], sizes)
        return ClientRows(self.rows[places], offsets)

    def are_within(self, num_rows: int) -> bool:
        """Returns whether all rows are within 0..num_rows-1."""
        return not len(self.rows) or 0 <= self.rows.min() <= self.rows.max() < num_rows

    def client_of(self, place: int) -> int:
        """Returns the client that owns a position in `rows`."""
        return int(np.searchsorted(self.offsets, place, side="right")) - 1

    def __len__(self) -> int:
        """Returns the number of clients."""
        return len(self.offsets) - 1

    def __getitem__(self, index):
        """Returns the rows of a client, or a tuple of them for a slice."""
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        if not -len(self) <= index < len(self):
            raise IndexError(f"Client {index} does not exist: there are {len(self)} clients.")
        index %= len(self)
        return self.rows[self.offsets[index] : self.offsets[index + 1]]

    def __iter__(self) -> Iterator[np.ndarray]:
        """Yields the rows of each client."""
        return (self.rows[start:end] for start, end in itertools.pairwise(self.offsets))
