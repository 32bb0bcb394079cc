"""Files into pieces of bounded size, each of which can be unpacked without the others.

Files are cut into blocks of equal size, and each block is compressed by itself, so that all cores
have work; as many compressed blocks as fit make a piece.
"""

import concurrent.futures
import functools
import gzip
import hashlib
import io
import json
import lzma
import os
import pathlib
import tarfile
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from requirements.gpu_pack import elf, unpack

MIB = 1 << 20
_BLOCK = 32 * MIB


class Member(NamedTuple):
    """A file of the pack.

    Attributes:
        path: where it comes to lie, relative to the folder that the pack is unpacked into.
        content: the file that it is a copy of, or its bytes.
        mode: its permissions.
        blank: ranges of bytes that the copy has zeros in the place of.
    """

    path: str
    content: pathlib.Path | bytes
    mode: int = 0o644
    blank: Sequence[elf.Range] = ()

    @property
    def size(self) -> int:
        if isinstance(self.content, bytes):
            return len(self.content)
        return self.content.stat().st_size

    def read(self, start: int, stop: int) -> bytes:
        if isinstance(self.content, bytes):
            return self.content[start:stop]
        with self.content.open("rb") as file:
            file.seek(start)
            data = bytearray(file.read(stop - start))
        for first, last in self.blank:
            first, last = max(first, start) - start, min(last, stop) - start
            if first < last:
                data[first:last] = bytes(last - first)
        return bytes(data)


class Part(NamedTuple):
    """The bytes from `start` to `stop` of a member."""

    member: Member
    start: int
    stop: int


def cut(members: Iterable[Member], block_size: int) -> list[list[Part]]:
    """Blocks of at most `block_size` bytes, in the members' order."""
    blocks, room = [], 0
    for member in members:
        size, start = member.size, 0
        while True:
            if not room:
                blocks.append([])
                room = block_size
            stop = min(size, start + room)
            blocks[-1].append(Part(member, start, stop))
            room -= stop - start
            start = stop
            if start == size:
                break
    return blocks


def archive(parts: Sequence[Part]) -> bytes:
    """The parts as a tar archive, which notes where a part of a file belongs in it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for member, start, stop in parts:
            info = tarfile.TarInfo(member.path)
            info.size, info.mode = stop - start, member.mode
            if isinstance(member.content, pathlib.Path):
                info.mtime = int(member.content.stat().st_mtime)
            if stop - start < member.size:
                info.pax_headers = {unpack.OFFSET: str(start)}
            tar.addfile(info, io.BytesIO(member.read(start, stop)))
    return buffer.getvalue()


def compress(parts: Sequence[Part], preset: int, cache: pathlib.Path) -> pathlib.Path:
    """The file in `cache` that has the parts' compressed archive."""
    plain = archive(parts)
    file = cache / f"{hashlib.sha256(plain).hexdigest()}-{preset}.tar.xz"
    if not file.exists():
        new = file.with_suffix(".new")
        new.write_bytes(lzma.compress(plain, preset=preset))
        new.replace(file)
    return file


def fill(sizes: Sequence[int], limit: int) -> list[list[int]]:
    """Indices of blocks, piece by piece: the largest first, each into the first piece with room."""
    pieces, rooms = [], []
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        k = next((k for k, room in enumerate(rooms) if room >= sizes[i]), len(rooms))
        if k == len(rooms):
            pieces.append([])
            rooms.append(limit)
        pieces[k].append(i)
        rooms[k] -= sizes[i]
    return pieces


def write_pack(
    first: Sequence[Member],
    groups: Iterable[Sequence[Member]],
    output: pathlib.Path,
    cache: pathlib.Path,
    *,
    piece_size: int,
    preset: int = 6,
) -> dict:
    """Writes the pieces, the manifest and `bring_up.sh` into `output`, in the place of older ones.

    Args:
        first: what unpacks the others: an interpreter and `unpack.py`. One piece, by gzip.
        groups: the other members. A change in one group leaves the blocks of others as they are.
        output: a folder for the pack.
        cache: a folder for compressed blocks, which are not compressed again.
        piece_size: the most bytes of a piece.
        preset: of xz, 0 to 9.

    Returns:
        The manifest: `pieces`, a list of `name`, `size` and `sha256`, and `unpacked`, the bytes of
        all members.

    Raises:
        ValueError: if the first piece is larger than `piece_size`, or that is too small for blocks.
    """
    block_size = min(_BLOCK, piece_size // 2)
    output.mkdir(parents=True, exist_ok=True)
    cache.mkdir(parents=True, exist_ok=True)
    for old in (*output.glob("piece-*"), *output.glob("manifest.json")):
        old.unlink()
    groups = [list(group) for group in groups]
    blocks = [block for group in groups for block in cut(group, block_size)]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:  # xz frees the interpreter
        job = functools.partial(compress, preset=preset, cache=cache)
        files = list(pool.map(job, blocks))
    sizes = [file.stat().st_size for file in files]
    if max(sizes, default=0) > piece_size:
        raise ValueError(f"pieces of {piece_size} bytes are too small for a block of {max(sizes)}")

    whole = [Part(member, 0, member.size) for member in first]
    (output / unpack.FIRST).write_bytes(gzip.compress(archive(whole), mtime=0))
    if (size := (output / unpack.FIRST).stat().st_size) > piece_size:
        raise ValueError(f"the first piece has {size} bytes, of {piece_size} that are allowed")
    filled = fill(sizes, piece_size)
    digits = max(2, len(str(len(filled))))
    for k, indices in enumerate(filled, start=1):
        with (output / f"piece-{k:0{digits}d}.tar.xz").open("wb") as piece:
            for i in indices:
                piece.write(files[i].read_bytes())
    manifest = {
        "pieces": [_entry(path) for path in sorted(output.glob("piece-*"))],
        "unpacked": sum(member.size for group in (first, *groups) for member in group),
    }
    here = pathlib.Path(__file__).parent
    (output / "bring_up.sh").write_bytes((here / "bring_up.sh").read_bytes())
    (output / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    return manifest


def _entry(path):
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"name": path.name, "size": path.stat().st_size, "sha256": digest}
