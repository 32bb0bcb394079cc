"""Shared libraries (ELF, x86-64): what of one may as well be zeros, and the smallest that there is.

Zeros in the place of what plays no part leave all else where it is, and compress to nothing.
"""

import mmap
import pathlib
import struct
from collections.abc import Iterator

_ALLOCATED = 2  # SHF_ALLOC: the section is loaded
_LOADED = 1  # PT_LOAD
_NO_BITS = 8  # SHT_NOBITS: the section takes no space in the file
_FATBIN = 0xBA55ED50
_MACHINE_CODE = 2  # the kind of an entry; 1 is PTX, which the driver compiles

Range = tuple[int, int]  # of bytes in a file: start, stop


def unloaded(library: pathlib.Path) -> list[Range]:
    """Where symbols and debug information are, which nothing loads."""
    with _mapped(library) as data:
        # What tools have moved within a file may be loaded, whatever its section says.
        loaded = list(_segments(data))
        return [
            (start, stop)
            for name, flags, start, stop in _sections(data)
            if not flags & _ALLOCATED
            and name != ".shstrtab"
            and all(stop <= first or last <= start for first, last in loaded)
        ]


def foreign_kernels(library: pathlib.Path, capability: int) -> list[Range]:
    """Where kernels are in the machine code of GPUs other than one of this compute capability.

    Args:
        library: a library that holds kernels as `nvcc` embeds them.
        capability: ten times the compute capability: 90. Such a GPU runs the machine code of its
            own major number, up to its own minor number. PTX is for all, and is not listed.
    """
    found = []
    with _mapped(library) as data:
        for name, _, start, stop in _sections(data):
            if name not in (".nv_fatbin", "__nv_relfatbin"):
                continue
            for kind, architecture, *where in _kernels(data, start, stop):
                runs = architecture // 10 == capability // 10 and architecture <= capability
                if kind == _MACHINE_CODE and not runs:
                    found.append(tuple(where))
    return found


def empty_library(name: str) -> bytes:
    """A library of this name that can be opened, and holds nothing."""
    strings = b"\0" + name.encode() + b"\0"
    programs = 64
    symbols = programs + 3 * 56
    table = symbols + 24
    dynamic = table + len(strings) + -len(strings) % 8
    tags = {5: table, 10: len(strings), 6: symbols, 11: 24, 14: 1, 0: 0}  # the name is tag 14
    size = dynamic + 16 * len(tags)

    def program(kind, start, stop, alignment):
        read_and_write = 6
        where = (start, start, start, stop - start, stop - start, alignment)
        return struct.pack("<IIQQQQQQ", kind, read_and_write, *where)

    header = b"\x7fELF\2\1\1".ljust(16, b"\0")
    header += struct.pack("<HHIQQQ", 3, 62, 1, 0, programs, 0)
    header += struct.pack("<IHHHHHH", 0, 64, 56, 3, 64, 0, 0)
    stack = 0x6474E551  # without this entry, the linker would make stacks executable
    header += (
        program(_LOADED, 0, size, 4096) + program(2, dynamic, size, 8) + program(stack, 0, 0, 16)
    )
    body = bytes(24) + strings.ljust(dynamic - table, b"\0")
    return header + body + b"".join(struct.pack("<QQ", *tag) for tag in tags.items())


def _segments(data) -> Iterator[Range]:
    """Where in the file is what is loaded, the ELF header and the program headers included."""
    (table,) = struct.unpack_from("<Q", data, 0x20)
    entry_size, number = struct.unpack_from("<HH", data, 0x36)
    for i in range(number):
        kind, _, start, _, _, size = struct.unpack_from("<IIQQQQ", data, table + entry_size * i)
        if kind == _LOADED:
            yield start, start + size


def _sections(data) -> Iterator[tuple[str, int, int, int]]:
    """`(name, flags, start, stop)` of the sections that take space in the file."""
    (table,) = struct.unpack_from("<Q", data, 0x28)
    entry_size, number, names = struct.unpack_from("<HHH", data, 0x3A)
    entries = [struct.unpack_from("<IIQQQQ", data, table + entry_size * i) for i in range(number)]
    for name, kind, flags, _, start, size in entries:
        if kind not in (0, _NO_BITS):
            begin = entries[names][4] + name
            yield data[begin : data.find(b"\0", begin)].decode(), flags, start, start + size


def _kernels(data, start, stop) -> Iterator[tuple[int, int, int, int]]:
    """`(kind, architecture, start, stop)` of the entries of the containers in a section."""
    while start < stop:
        magic, _, header, size = struct.unpack_from("<IHHQ", data, start)
        if magic != _FATBIN:
            start += 8  # containers are aligned
            continue
        entry, start = start + header, start + header + size
        while entry < start:
            kind, _, header, size = struct.unpack_from("<HHIQ", data, entry)
            (architecture,) = struct.unpack_from("<I", data, entry + 28)
            yield kind, architecture, entry + header, entry + header + size
            entry += header + size


def _mapped(library):
    with library.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
