"""How records of client states are stored, and by what it is noticed that one is not as it was.

Each record begins with a checksum of its key and its value. The mark of a record is this checksum;
the records of 256 clients in a row have theirs on a page of marks, which is a record as well; the
root has the marks of all pages. So the root, 4 bytes for 256 clients, says what every record is,
and that of a client is looked up in it by way of one page.
"""

import zlib
from collections.abc import Iterator
from typing import NamedTuple

PAGE_CLIENTS = 256  # a page takes a quarter of one of LMDB's
NO_MARK = bytes(4)
_CHECKSUM_BYTES = 4
_DIGEST_BYTES = 8


def key_of(number: int) -> bytes:
    """Of a client, or of a page of marks: in LMDB's order, numbers ascend."""
    return number.to_bytes(8, "big")


def record_of(key: bytes, value: bytes) -> bytes:
    """A value as it is stored under its key: after the checksum of both."""
    return _checksum(key, value) + value


def value_of(key: bytes, record: bytes | memoryview) -> bytes | None:
    """What `record_of` was given; `None`, if the checksum is another."""
    value = bytes(record[_CHECKSUM_BYTES:])
    return value if _checksum(key, value) == record[:_CHECKSUM_BYTES] else None


def mark_of(record: bytes | memoryview | None) -> bytes:
    """4 bytes, without reading more than its checksum; `NO_MARK` where there is no record."""
    return NO_MARK if record is None else _as_mark(bytes(record[:_CHECKSUM_BYTES]))


def mark_of_value(key: bytes, value: bytes) -> bytes:
    """That of the record of a value, which is not made."""
    return _as_mark(_checksum(key, value))


def share_of(key: bytes, record: bytes | memoryview) -> int:
    """What a record adds to a digest: its key, checksum and length, without reading the rest."""
    checksum = int.from_bytes(record[:_CHECKSUM_BYTES], "big")
    return zlib.crc32(key, checksum) + (len(record) << 32)


def digest_of(shares: int) -> bytes:
    """8 bytes, of the sum of the shares of some records."""
    return (shares % (1 << 8 * _DIGEST_BYTES)).to_bytes(_DIGEST_BYTES, "big")


class Marks(bytearray):
    """The marks of records in a row; behind the last there are none."""

    def at(self, place: int) -> bytes:
        """The mark of a record."""
        return bytes(self[4 * place : 4 * place + 4]) or NO_MARK

    def put(self, place: int, mark: bytes) -> None:
        """Sets the mark of a record."""
        self.extend(bytes(max(0, 4 * place + 4 - len(self))))
        self[4 * place : 4 * place + 4] = mark

    def places(self) -> Iterator[int]:
        """Those of all records that there are, in ascending order."""
        return (place for place in range(len(self) // 4) if self.at(place) != NO_MARK)


class Root(NamedTuple):
    """What says which records there are.

    Attributes:
        attachments: The digest of these, which are few.
        pages: The marks of the pages that have the marks of clients.
    """

    attachments: bytes
    pages: Marks

    @classmethod
    def of(cls, value: bytes) -> "Root":
        """The root that `value` wrote."""
        return cls(value[:_DIGEST_BYTES], Marks(value[_DIGEST_BYTES:]))

    def value(self) -> bytes:
        """As it is stored."""
        return self.attachments + bytes(self.pages)


def _as_mark(checksum: bytes) -> bytes:
    return checksum if checksum != NO_MARK else b"\0\0\0\1"


def _checksum(key: bytes, value: bytes) -> bytes:
    return zlib.crc32(value, zlib.crc32(key)).to_bytes(_CHECKSUM_BYTES, "big")
